"""Tasks and rewards against references written from the definitions: the scorers (Python's `re`), the meaning of every
word problem, disjoint splits, GSM8K from JSONL and from parquet in verl's schema, and hostile parquet files."""

import collections
import json
import pathlib
import random
import re

import pytest
import torch

import faultline
from testing_ops import OPS

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUFFIX = ' Let\'s think step by step and output the final answer after "####".'


def problems(name="arithmetic", split="train", count=-1, seed=0, difficulty=2):
    return json.loads(OPS.task_problems(name, split, count, seed, difficulty))


# --- reward -----------------------------------------------------------------------------------------------------------
def reference(text, scoring):
    """verl/utils/reward_score/gsm8k.py in words: the last 300 characters; strict: the last match, commas and dollars
    removed; flexible: the last match that is not a lone dot."""
    text = text[-300:]
    if scoring == "strict":
        found = re.findall(r"#### (\-?[0-9\.\,]+)", text)
        return found[-1].replace(",", "").replace("$", "") if found else None
    found = re.findall(r"(\-?[0-9\.\,]+)", text)
    good = [number for number in found if number not in ("", ".")]
    return good[-1] if good else (found[0] if found else None)


PIECES = ["#### ", "####", "#", " ", "\n", "-", "--", "$", ".", ",", "..", "7", "42", "1,234", "3.50", "0", "#### 18", "#### -5", "#### $9", "x", "the answer is", "é", "漢字", "😀", "٣", "１", "\u2212", "\x00", "<<2+3=5>>"]


def generated_texts(count):
    draw = random.Random(5)
    for _ in range(count):
        text = "".join(draw.choices(PIECES, k=draw.randrange(12)))
        if draw.random() < 0.6:  # a mark near the border of 300 characters
            filler = draw.choice(["x", "é", "漢", "😀", "x😀é"])
            text = "".join(draw.choices(PIECES, k=5)) + "#### " + draw.choice(["7", "-1,0", "3."]) + (filler * 310)[: draw.randrange(280, 305)] + draw.choice(["", text])
        yield text


@pytest.mark.parametrize("scoring", ["strict", "flexible"])
def test_the_scorer_reads_what_the_regular_expression_reads(scoring):
    hits = collections.Counter()
    for text in generated_texts(6000):
        wanted = reference(text, scoring)
        assert OPS.extract_answer(text, scoring) == (wanted or ""), repr(text)
        assert OPS.reward(text, wanted if wanted is not None else "", scoring) == (1.0 if wanted else 0.0)
        assert OPS.reward(text, "nothing", scoring) == 0.0
        hits[wanted is not None] += 1
    assert min(hits[True], hits[False]) > 300  # both outcomes are tried


def test_an_unknown_scoring_or_task_is_refused():
    with pytest.raises(ValueError, match="did you mean 'flexible'"):
        OPS.reward("", "", "flexibel")
    with pytest.raises(ValueError, match="did you mean 'arithmetic'"):
        problems("arithmetik")
    with pytest.raises(ValueError, match="did you mean 'shifted'"):
        problems(split="shifte", count=1)


# --- arithmetic -------------------------------------------------------------------------------------------------------
NAMES = "Anna Ben Carla David Emma Felix Grace Hugo Ivy Jack Kira Leo Mia Noah Olga Paul".split()
ITEMS = "apples marbles stamps books pencils cards coins shells stickers buttons beads tickets".split()
# What each wording asks for, by its numbers in the order of the text.
MEANING = {
    "N has # I. N gives": lambda a, b, c: a + b + c,
    "A shop sells": lambda a, b, c: a + b + c,
    "N has # I and buys": lambda a, b, c: a + b - c,
    "A box holds": lambda a, b, c: a + b - c,
    "N has # I and loses": lambda a, b, c: a - b + c,
    "There are # I on a shelf": lambda a, b, c: a - b + c,
    "N has # I, sells": lambda a, b, c: a - b - c,
    "Of # I in a bag": lambda a, b, c: a - b - c,
    "N fills # bags": lambda bags, each, more: bags * each + more,
    "N buys # boxes": lambda boxes, each, given: boxes * each - given,
}
SHIFTED = {
    "Three rooms": lambda a, b, c: a + b + c,
    "N collected": lambda a, b, c: a + b + c,
    "A truck": lambda a, b, c: a + b - c,
    "In the morning": lambda a, b, c: a - b + c,
    "Each of # crates": lambda crates, each, removed: crates * each - removed,
}


def numbers(problem):
    return [int(text) for text in re.findall(r"\d+", problem["question"])]


def wording(problem):
    text = problem["question"].removesuffix(SUFFIX)
    text = re.sub(rf"\b({'|'.join(NAMES)})\b", "N", re.sub(r"\d+", "#", text))
    return re.sub(rf"\b({'|'.join(ITEMS)})\b", "I", text)


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4])
@pytest.mark.parametrize("split", ["train", "test", "shifted"])
def test_the_answer_is_what_the_words_ask_for(split, difficulty):
    meanings = SHIFTED if split == "shifted" else MEANING
    seen = collections.Counter()
    for problem in problems(split=split, count=2000, seed=11, difficulty=difficulty):
        [start] = [start for start in meanings if wording(problem).startswith(start)]
        assert str(meanings[start](*numbers(problem))) == problem["answer"], problem
        seen[start] += 1
        first, last, mark = re.fullmatch(r"First, (.*)\. Then, (.*)\.\n#### (\d+)", problem["solution"]).groups()
        for step in (first, last):
            left, right = step.split(" = ")
            assert eval(left) == int(right), problem  # noqa: S307
        assert last.startswith(first.split(" = ")[1] + " ") and last.endswith(f"= {mark}") and mark == problem["answer"]
        assert sorted(numbers(problem)) == sorted([*map(int, re.findall(r"\d+", first)[:2]), int(re.findall(r"\d+", last)[1])])
    products = difficulty >= 3
    assert len(seen) == len(meanings) - (0 if products else (1 if split == "shifted" else 2))
    if difficulty >= 2:  # one-digit numbers hold few triples for a - b - c
        assert min(seen.values()) > 2000 / len(meanings) * 0.75


def test_no_number_triple_is_in_two_splits():
    triples = {split: {tuple(sorted(numbers(p))) for p in problems(split=split, count=100_000, seed=3)} for split in ("train", "test", "shifted")}
    assert len(triples["train"]) > 40_000 and len(triples["test"]) > 9_000 and len(triples["shifted"]) > 10_000
    for seed, difficulty in ((1, 1), (2, 3), (99, 4)):  # nor between seeds and levels
        for split, known in triples.items():
            known |= {tuple(sorted(numbers(p))) for p in problems(split=split, count=5000, seed=seed, difficulty=difficulty)}
    names = list(triples)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not triples[one] & triples[other], (one, other)


def test_numbers_and_answers_have_the_levels_ranges():
    for difficulty, (low, high) in {1: (1, 9), 2: (10, 99), 3: (10, 99), 4: (100, 999)}.items():
        for split, bounds in (("train", (low, high)), ("test", (low, high)), ("shifted", (high + 1, 2 * high + 1))):
            seen = [n for p in problems(split=split, count=2000, seed=5, difficulty=difficulty) for n in numbers(p)]
            if difficulty >= 3:
                seen = [n for n in seen if not 2 <= n <= 9]  # factors
            assert bounds[0] <= min(seen) and max(seen) <= bounds[1]
            assert min(seen) < bounds[0] + 0.1 * high + 1 and max(seen) > bounds[1] - 0.1 * high - 1
    answers = collections.Counter(p["answer"] for p in problems(split="test", count=4000, seed=8))
    assert len(answers) > 200 and answers.most_common(1)[0][1] < 0.03 * 4000  # guessing one number earns nothing


def test_problems_differ():
    texts = [p["question"] for p in problems(split="test", count=2048)]
    assert len(set(texts)) == len(texts)
    assert problems(count=5, seed=1) != problems(count=5, seed=2) != problems(count=5, seed=2, difficulty=3)


# --- gsm8k ------------------------------------------------------------------------------------------------------------
def original(split):
    text = (ROOT / "data" / "gsm8k" / f"{split}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def verl_row(index, split, row):
    """As verl's examples/data_preprocess/gsm8k.py makes it."""
    truth = re.search(r"#### (\-?[0-9\.\,]+)", row["answer"]).group(1).replace(",", "")
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": row["question"] + SUFFIX}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "answer": row["answer"], "question": row["question"]},
    }


@pytest.mark.parametrize("split, count", [("train", 7473), ("test", 1319)])
def test_gsm8k_from_jsonl_is_what_verl_makes_of_it(split, count):
    found = problems("gsm8k", split)
    rows = original(split)
    assert len(found) == len(rows) == count
    for index, (problem, row) in enumerate(zip(found, rows, strict=True)):
        wanted = verl_row(index, split, row)
        assert problem == {"question": wanted["prompt"][0]["content"], "answer": wanted["reward_model"]["ground_truth"], "solution": row["answer"], "id": f"gsm8k/{split}/{index}"}


@pytest.fixture(scope="module")
def parquet():
    pytest.importorskip("pyarrow")
    if not (pathlib.Path(faultline._library.library_path()).parent / "libfaultline_parquet.so").is_file():
        pytest.skip("built without pyarrow")
    import pyarrow.parquet

    return pyarrow.parquet


def write(parquet, file, rows, **options):
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(rows), file, **options)
    return str(file)


@pytest.mark.parametrize("options", [{}, {"row_group_size": 1000, "compression": "zstd"}, {"use_dictionary": False, "compression": "none"}, {"data_page_version": "2.0", "compression": "gzip"}], ids=str)
def test_parquet_gives_the_problems_of_jsonl(parquet, tmp_path, options):
    for split in ("train", "test"):
        rows = [verl_row(index, split, row) for index, row in enumerate(original(split))]
        file = write(parquet, tmp_path / f"{split}.parquet", rows, **options)
        assert json.loads(OPS.task_file(file)) == problems("gsm8k", split)


def test_verl_records_as_jsonl_give_them_too(tmp_path):
    rows = [verl_row(index, "test", row) for index, row in enumerate(original("test"))]
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert json.loads(OPS.task_file(str(file))) == problems("gsm8k", "test")


def refused(file, *words):
    with pytest.raises(ValueError) as caught:
        OPS.task_file(str(file))
    assert all(word in str(caught.value) for word in (str(file), *words)), caught.value


GOOD = verl_row(0, "test", {"question": "How many?", "answer": "1+1 = 2\n#### 2"})


@pytest.mark.parametrize(
    "change, words",
    [
        ({"prompt": ...}, ["row 1", "prompt"]),
        ({"reward_model": ...}, ["row 1", "reward_model"]),
        ({"data_source": ...}, ["row 1", "data_source"]),
        ({"data_source": 7}, ["row 1", "data_source", "found 7"]),
        ({"prompt": "How many?"}, ["row 1", "prompt", "list of one message"]),
        ({"prompt": []}, ["row 1", "prompt"]),
        ({"prompt": None}, ["row 1", "prompt", "null"]),
        ({"reward_model": {"style": "rule", "ground_truth": 2}}, ["row 1", "reward_model.ground_truth", "found 2"]),
        ({"reward_model": {"style": "rule", "ground_truth": b"2"}}, ["row 1", "reward_model.ground_truth", "binary"]),
        ({"reward_model": {"style": "rule"}}, ["row 1", "reward_model.ground_truth", "missing"]),
        ({"extra_info": {"answer": "1+1"}}, ["row 1", "extra_info.answer"]),
    ],
    ids=str,
)
def test_a_parquet_file_without_what_it_needs_is_refused_by_row_and_column(parquet, tmp_path, change, words):
    row = {key: value for key, value in {**GOOD, **change}.items() if value is not ...}
    refused(write(parquet, tmp_path / "x.parquet", [row]), *words)


def test_optional_columns_may_be_absent(parquet, tmp_path):
    rows = [{key: GOOD[key] for key in ("data_source", "prompt", "reward_model")}]
    [problem] = json.loads(OPS.task_file(write(parquet, tmp_path / "x.parquet", rows)))
    assert problem["solution"] == "" and problem["answer"] == "2"


def test_broken_text_in_a_parquet_file_names_its_column(parquet, tmp_path):
    file = pathlib.Path(write(parquet, tmp_path / "x.parquet", [GOOD], compression="none", use_dictionary=False, write_statistics=False, store_schema=False))
    data = file.read_bytes()
    assert data.count(b"How many? Let's") == 1
    file.write_bytes(data.replace(b"How many? Let's", b"How \xff\xfeny? Let's"))
    refused(file, "column 'prompt', row group 0", "UTF8")


def test_damaged_parquet_files_are_refused_or_read_but_never_crash(parquet, tmp_path):
    """Bits flipped and ends cut off, in a small file of several row groups; whatever is read must still be Problems."""
    rows = [verl_row(index, "test", row) for index, row in enumerate(original("test")[:12])]
    good = pathlib.Path(write(parquet, tmp_path / "good.parquet", rows, row_group_size=5, compression="snappy")).read_bytes()
    draw = random.Random(9)
    file, outcomes = tmp_path / "bad.parquet", collections.Counter()
    cases = [good[: draw.randrange(len(good))] for _ in range(40)]
    for _ in range(400):
        data = bytearray(good)
        for _ in range(draw.choice([1, 1, 4])):
            place = draw.randrange(len(good)) if draw.random() < 0.5 else len(good) - 1 - draw.randrange(min(3000, len(good)))
            data[place] ^= 1 << draw.randrange(8)
        cases.append(bytes(data))
    for data in cases:
        file.write_bytes(data)
        try:
            read = json.loads(OPS.task_file(str(file)))
            assert all(problem["question"] and problem["answer"] for problem in read)
            outcomes["read"] += 1
        except ValueError as error:
            assert str(file) in str(error)
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100, outcomes


def test_impossible_row_counts_are_refused_before_anything_is_read(parquet, tmp_path):
    """The count in the footer is a zig-zag varint: 70 rows are 0x8c 0x01, made 2^34 by hand."""
    file = pathlib.Path(write(parquet, tmp_path / "x.parquet", [GOOD] * 70, compression="none"))
    data = file.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - footer
    large = b"\x80\x80\x80\x80\x80\x01"
    metadata = data[start:-8].replace(b"\x8c\x01", large)
    file.write_bytes(data[:start] + metadata + len(metadata).to_bytes(4, "little") + b"PAR1")
    refused(file)


def test_files_that_are_no_parquet_are_refused(parquet, tmp_path):
    for name, data in {"text": b"hello", "magic": b"PAR1", "twice": b"PAR1" * 4, "zeros": bytes(5000), "length": b"PAR1" + b"\xff" * 8 + b"PAR1"}.items():
        file = tmp_path / f"{name}.parquet"
        file.write_bytes(data)
        refused(file, "parquet")
    refused(tmp_path / "train.csv", "wanted a .jsonl or .parquet")
