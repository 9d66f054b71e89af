"""Writes unicode_classes.inc: for each range of code points the classes Hugging Face's tokenizers put them in.

Asked of the tokenizers library itself (0.23.3), code point by code point, because its parts are of different Unicode
versions: the patterns' \\p{L}, \\p{N} and \\s are Oniguruma's (Unicode 16), Digits is Rust's char::is_numeric (17), \\w around a
single-word token is the regex crate's, and NFC knows the combining marks of Unicode 9. Equal ids need the same answers.
"""

import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, DIGIT, WORD, MARK = (1 << bit for bit in range(6))  # unicode_classes.h has the same


def questions():
    """-> {bit: is this character in the class?}"""
    removed = lambda pattern: pre_tokenizers.Split(Regex(pattern), "removed")
    letter, number, space = removed(r"\p{L}"), removed(r"\p{N}"), removed(r"\s")
    digits, nfd = pre_tokenizers.Digits(individual_digits=True), normalizers.NFD().normalize_str
    single = Tokenizer(models.BPE())
    single.add_tokens([AddedToken("QQ", single_word=True, normalized=False)])

    def is_mark(c):  # combining classes 232 and 202: whatever the class of c, it changes places with one of them
        apart = nfd(c)
        return nfd("a\u0315" + c) != "a\u0315" + apart or (apart == c and nfd("a" + c + "\u0327") != "a" + c + "\u0327")

    return {
        LETTER: lambda c: not letter.pre_tokenize_str(c),
        NUMBER: lambda c: not number.pre_tokenize_str(c),
        SPACE: lambda c: not space.pre_tokenize_str(c),
        DIGIT: lambda c: len(digits.pre_tokenize_str("a" + c)) == 2,
        WORD: lambda c: not single.encode(c + "QQ").ids,
        MARK: is_mark,
    }


def main():
    asked = questions().items()
    ranges = []
    for code in range(0x110000):
        bits = 0 if 0xD800 <= code < 0xE000 else sum(bit for bit, holds in asked if holds(chr(code)))
        if bits and ranges and ranges[-1][1:] == [code - 1, bits]:
            ranges[-1][1] = code
        elif bits:
            ranges.append([code, code, bits])
    rows = [f"{{0x{first:x}, 0x{last:x}, {bits}}}," for first, last, bits in ranges]
    lines = [" ".join(rows[i : i + 5]) for i in range(0, len(rows), 5)]
    head = "// Written by unicode_classes.py: {first, last, classes}.\n"
    pathlib.Path(__file__).with_suffix(".inc").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
