"""What goes beside the wheels of a release: SHA256SUMS, and NOTES.md from the version's section of CHANGELOG.md ("Unreleased"
where the version has none yet). A wheel of another version, or whose name says another torch than the library inside was built
with, ends it. `./dev release` calls it; `./dev release --notes` does nothing else."""

import argparse
import hashlib
import pathlib
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def section(changelog, version):
    """(heading, text) of a version, or of what is not released yet."""
    parts = re.split(r"^## (.*)$", changelog, flags=re.MULTILINE)
    sections = dict(zip((heading.strip() for heading in parts[1::2]), parts[2::2]))
    heading = next((one for one in sections if one.lstrip("[v").startswith(version)), None)
    if heading is None and "Unreleased" not in sections:
        raise SystemExit(f"release: CHANGELOG.md has neither {version} nor Unreleased")
    return heading or "Unreleased", sections[heading or "Unreleased"].strip()


def wheel(path, version):
    """(name, torch, sha256) of a wheel that is what its name says."""
    match = re.fullmatch(r"faultline_lab-([^-]+)-(\d+)torch-py3-none-(.+)\.whl", path.name)
    if not match or match[1] != version:
        raise SystemExit(f"release: {path.name} is no wheel of version {version}")
    with zipfile.ZipFile(path) as packed:
        torch = packed.read("faultline/libfaultline.torch").decode().strip()
    if torch.split("+")[0].replace(".", "") != match[2]:
        raise SystemExit(f"release: {path.name} holds a library for torch {torch}")
    return path.name, torch, hashlib.sha256(path.read_bytes()).hexdigest()


def write(folder, version, changelog):
    wheels = [wheel(path, version) for path in sorted(folder.glob("*.whl"))]
    if not wheels:
        raise SystemExit(f"release: no wheel lies in {folder}; make them with ./dev release")
    heading, text = section(changelog, version)
    rows = [f"| `{name}` | {torch} | `{digest[:16]}…` |" for name, torch, digest in wheels]
    lines = [f"# Faultline {version}", "", "Take the wheel of the torch that you have. Another torch is refused at import.", "", "| wheel | torch | SHA-256 |", "|---|---|---|", *rows, "",
             "Whole checksums: `sha256sum -c SHA256SUMS`. The distribution is `faultline-lab`; PyPI's `faultline` is another program.", "", f"## {heading}", "", text, ""]  # fmt: skip
    (folder / "NOTES.md").write_text("\n".join(lines), encoding="utf-8")
    (folder / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, _, digest in wheels), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    given = parser.parse_args()
    write(given.folder, given.version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    sys.exit(0)
