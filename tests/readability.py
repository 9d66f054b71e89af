"""How hard the prose of our documents is to read: the Flesch-Kincaid grade, 0.39 words a sentence + 11.8 syllables a word - 15.59
(Kincaid et al. 1975: roughly the school year that reads it with ease). Code, tables, headings, comments and addresses are left
out; a name in backquotes counts as one word of one syllable, a number as one word. A sentence ends at a full stop, a question or
exclamation mark, or where its paragraph or item ends; a colon or a semicolon ends none.

    python tests/readability.py                 every page and its grade, worst first
    python tests/readability.py docs/tap.md     with its longest sentences
    python tests/readability.py --json FILE     the grades as JSON
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HARDEST = 12.0  # no page may score worse
# Endings whose vowel is silent, and vowels side by side that are two syllables.
SILENT = re.compile(r"(?:(?<![lsxzcgh])es|(?<![td])ed|(?<=[aeiouy]l)es?|(?<!l)e)$")
APART = re.compile(r"i[ao]$|i[ao][^uns]|(?<![ctg])ia|ie[nt]|(?<!p)eo|ea$|ua[lt]|[^q]ue[nl]|ying|ism$|[aeiou]ing|[aeiou]y[aeiou]")
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|cf|vs|approx|Fig|et al)\.")


def pages():
    folders = [ROOT / "docs", ROOT / "docs/tutorials", ROOT / "docs/results"]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(path for folder in folders for path in sorted(folder.glob("*.md")))]


def prose(text):
    """The paragraphs and items of a page as plain text."""
    text = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(```|~~~).*?^ *\1 *$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(\||#|!\[|<).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]+`", "X", text)
    text = re.sub(r"^( *)(?:[-*+]|\d+\.) +", r"\n\1", text, flags=re.MULTILINE)
    text = ABBREVIATIONS.sub(r"\1", text.replace("**", "").replace("…", ""))
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def sentences(text):
    found = []
    for paragraph in prose(text):
        for sentence in re.split(r"(?<=[.!?])[)\"”]?\s+(?=[A-Z\d(\"“~])", paragraph):
            words = re.findall(r"[A-Za-zÀ-ÿ][A-Za-zÀ-ÿ'’]*|[-+~]?\d[\d,.:/x×^]*", sentence)
            if any(word[0].isalpha() for word in words):
                found.append((sentence, words))
    return found


def syllables(word):
    word = word.lower().strip("'’").removesuffix("'s").removesuffix("’s")
    if not word[:1].isalpha() or len(word) <= 3:
        return 1
    core = SILENT.sub("", word)
    groups = len(re.findall(r"[aeiouy]+", core)) + len(APART.findall(word))
    return max(1, groups)


def grade(text):
    found = sentences(text)
    words = [word for _, part in found for word in part]
    if not words:
        return 0.0
    return 0.39 * len(words) / len(found) + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


def table():
    return {str(path.relative_to(ROOT)): round(grade(path.read_text(encoding="utf-8")), 1) for path in pages()}


def explain(path):
    text = path.read_text(encoding="utf-8")
    found = sentences(text)
    words = [word for _, part in found for word in part]
    print(f"{path}: grade {grade(text):.1f}, {len(words)} words, {len(words) / len(found):.1f} a sentence, {sum(map(syllables, words)) / len(words):.2f} syllables a word")
    for sentence, part in sorted(found, key=lambda one: -len(one[1]))[:12]:
        print(f"{len(part):4}  {sentence[:300]}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--json"]:
        pathlib.Path(arguments[1]).write_text(json.dumps(table(), indent=2) + "\n", encoding="utf-8")
    elif arguments:
        for name in arguments:
            explain(pathlib.Path(name))
    else:
        for name, score in sorted(table().items(), key=lambda row: -row[1]):
            print(f"{score:5.1f}  {name}")
