"""Pages of the documentation site that are made and not written, as a hook of MkDocs (mkdocs.yml): the front page from README.md, the
command line from the program's own help, the keys of a recipe from `faultline schema`, the C++ header as it is. Anchors are made as
GitHub makes them, so that a link works in both."""

import html
import json
import os
import pathlib
import re
import subprocess

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")) / "faultline"


def anchor(heading, separator="-"):
    """As GitHub makes it, and tests/docs_test.py."""
    return re.sub(r"[^\w\- ]", "", html.unescape(re.sub(r"<[^>]*>", "", heading)).lower()).replace(" ", separator)


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def told(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"})
    return done.stdout.rstrip()


def of_root(name):
    """A page of the repository's root, with its links as they are below docs/."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/([^)]*)\)", lambda link: f"]({link[1] or '.'})", text)
    for page, there in {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md", "docs/": ""}.items():
        text = text.replace(f"]({page})", f"]({there})")
    # What lies outside docs/ is no part of the site.
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)]*)\)", lambda link: link[0] if is_page(link[2]) else f"{link[1]} (`{link[2]}`)", text)


def is_page(target):
    target = target.split("#")[0]
    return target in ("", "contributing.md", "changelog.md", "index.md") or (ROOT / "docs" / target).is_file()


def commands():
    listed = told("--help").split("Subcommands:")[1].split("Examples:")[0]
    return re.findall(r"^  ([a-z][a-z-]*) ", listed, re.MULTILINE)


def block(text, language="text"):
    return f"```{language}\n{text}\n```\n"


def command_line():
    parts = ["# Command line", "Every command, as its own help says it.\n", "## faultline", block(told("--help"))]
    for name in commands():
        parts += [f"## faultline {name}", block(told(name, "--help"))]
        if name == "triage":
            for part in ("run", "bisect", "bundle"):
                parts += [f"### faultline {name} {part}", block(told(name, part, "--help"))]
    return "\n".join(parts)


def kind_of(schema):
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(kind_of(one) for one in schema[several]))
    kind = schema.get("type", "any")
    text = " or ".join(kind) if isinstance(kind, list) else kind
    if text == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    ends = [schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", schema.get("exclusiveMaximum"))]
    return text + ("" if ends == [None, None] else f", {'…' if ends[0] is None else ends[0]} to {'…' if ends[1] is None else ends[1]}")


def variants(schema):
    """A schema, or those of which it may be one."""
    return [one for several in ("anyOf", "oneOf") for one in schema.get(several, [])] or [schema]


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def rows(schema, path=""):
    """One row for each key, those of maps and lists below them. Of a key that several variants have the first is told."""
    for one in variants(schema):
        for key, value in one.get("properties", {}).items():
            here = f"{path}{key}"
            default = f"`{json.dumps(value['default'])}`" if "default" in value else ("required" if key in one.get("required", []) else "")
            yield here, f"| `{here}` | {cell(kind_of(value))} | {cell(default)} | {cell(value.get('description', ''))} |"
            for below, ending in ((value, "."), (value.get("items", {}), "[].")):
                yield from rows(below, here + ending)


def recipe_keys():
    schema = json.loads(told("schema"))
    parts = ["# Recipe keys", "Made from `faultline schema`, which editors read, too. What the sections mean: [recipes](../recipes.md).\n"]
    for name, section in schema["properties"].items():
        parts += [f"## {name}", section.get("description", "") + "\n"]
        found = {}
        for key, row in rows({"properties": {name: section}, "required": schema.get("required", [])}):
            found.setdefault(key, row)
        parts += ["| key | value | default | |", "|---|---|---|---|", *found.values(), ""]
    return "\n".join(parts)


def header():
    text = (ROOT / "include/faultline/faultline.h").read_text(encoding="utf-8")
    return "# C++ header\n\n`#include <faultline/faultline.h>`; how it is used: [cpp](../cpp.md).\n\n" + block(text.rstrip(), "cpp")


def on_page_markdown(markdown, page, **_):
    """A folder is no page: what links to one names it."""
    here = ROOT / "docs" / pathlib.Path(page.file.src_uri).parent
    is_folder = lambda target: (here / target).is_dir()  # noqa: E731
    return re.sub(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#]+)\)", lambda link: f"{link[1]} (`{link[2]}`)" if is_folder(link[2]) else link[0], markdown)


def on_pre_build(config):
    """The script that the theme loads from elsewhere, for its search where a page was opened as a file, is ours."""
    config.extra["polyfills"] = ["site.js"]


def on_files(files, config):
    made = {
        "index.md": lambda: of_root("README.md"),
        "contributing.md": lambda: of_root("CONTRIBUTING.md"),
        "changelog.md": lambda: of_root("CHANGELOG.md"),
        "reference/cli.md": command_line,
        "reference/recipe.md": recipe_keys,
        "reference/header.md": header,
    }
    for path, make in made.items():
        files.append(File.generated(config, path, content=make()))
    return files
