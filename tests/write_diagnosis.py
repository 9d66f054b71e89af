"""Writes the tables of docs/results/diagnosis.md anew from the records beside it. What stands above the marker is prose and stays.

    python tests/write_diagnosis.py --build build [--records trials.jsonl.gz]
"""
import argparse
import gzip
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARKER = "<!-- written by tests/write_diagnosis.py from diagnosis.jsonl.gz -->"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--records", type=pathlib.Path, help="of another campaign: they take the place of the old ones")
    arguments = parser.parse_args()
    page, kept = ROOT / "docs/results/diagnosis.md", ROOT / "docs/results/diagnosis.jsonl.gz"
    if arguments.records:
        shutil.copy(arguments.records, kept)
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as records:
        records.write(gzip.decompress(kept.read_bytes()))
        records.flush()
        done = subprocess.run([arguments.build / "faultline", "diagnose", "--summarise", records.name, "--markdown"], capture_output=True, text=True, check=True)
    prose, marker, _ = page.read_text().partition(MARKER)
    if not marker:
        raise SystemExit(f"{page}: the line '{MARKER}' is missing; tables are written below it")
    page.write_text(prose + MARKER + "\n\n" + done.stdout.strip() + "\n")


if __name__ == "__main__":
    main()
