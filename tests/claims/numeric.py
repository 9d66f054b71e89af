"""The numbers of docs/results/numeric.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/numeric.md"


def rows(name):
    return {row["name"].strip(): row for row in record(name)["rows"]}


GPU, CPU = rows("h200-numeric.json"), rows("cpu-numeric.json")
GAUSSIAN = "relative_gaussian, full ledger"
BLOCKS = [f"quantize {name}, full ledger" for name in ("mxfp4", "nvfp4", "mxfp8_e4m3", "mxfp6_e3m2", "mxint8", "fp8_e4m3_1x128", "nf4")]


def table_claims(table):
    """A goal that is empty leaves two blanks, of which plain() keeps one."""
    return [say("| {name} | {ms:.4f} | {ratio:.3f} | {against} |" + (" {goal} |" if row["goal"] else ""), name=name, **{key: row[key] for key in ("ms", "ratio", "against") + (("goal",) if row["goal"] else ())}) for name, row in table.items()]


def sentence_claims():
    blocks = [GPU[name]["ratio"] for name in BLOCKS]
    others = [row["ratio"] for name, row in GPU.items() if name.endswith("full ledger") and name not in (GAUSSIAN, *BLOCKS) and "expression" not in name]
    taps = {name.rsplit(", ", 1)[-1]: 1000 * row["ms"] for name, row in GPU.items() if name.startswith("tap of")}
    expression = next(1000 * row["ms"] for name, row in GPU.items() if name.startswith("PyTorch expression"))
    portable, on_gpu = record("cpu-portable.json"), record("h200-portable.json")
    later = record("h200-portable-2.json")
    assert (on_gpu["device"], on_gpu["elements"]) == (later["device"], later["elements"]) == ("cuda", portable["elements"])
    before, times = record("h200-portable-time.json"), record("h200-portable-time-2.json")  # the library of the second had no kernels for the GPU: its rows called native are portable, too
    rows = lambda words, some: [row for row in some["rows"] if words in row["name"]]  # noqa: E731
    ends = lambda words, some=times, column="ratio": {"low": min(row[column] for row in rows(words, some)), "high": max(row[column] for row in rows(words, some))}  # noqa: E731
    unlogged, logged = "portable, no ledger", "portable, full ledger"
    pair = lambda some, column="ratio": {**ends(unlogged, some, column), **{name + "_logged": value for name, value in ends(logged, some, column).items()}}  # noqa: E731
    digest = record("digest.json")
    assert digest["missed"] == sum(one["missed"] for one in digest["patterns"]) and digest["corruptions"] == sum(one["corruptions"] for one in digest["patterns"])
    assert portable["elements_differing"] == sum(one["differing"] for one in portable["cases"]) and portable["ledgers_differing"] == sum(not one["ledger_equal"] for one in portable["cases"])
    blind = [one for one in digest["patterns"] if one["missed_by_sum"] == one["corruptions"]]
    return [
        say("costs {ratio:.2f} times a copy on an H200 with the full ledger, common block formats {low:.1f} to {high:.1f}, everything else {others:.1f} to {most:.1f}", ratio=GPU[GAUSSIAN]["ratio"], low=min(blocks), high=max(blocks), others=min(others), most=max(others)),
        say("The digest missed {missed} of {all:,} corruptions", missed=digest["missed"], all=digest["corruptions"]),
        say("{missed} misses in {all:,} corruptions of nine patterns, each on buffers of four sizes; the plain sum of the elements missed all of {blind} patterns ({corruptions:,} corruptions)",
            missed=digest["missed"], all=digest["corruptions"], blind=len(blind), corruptions=sum(one["corruptions"] for one in blind)),
        say("costs {armed:.1f} us armed with the full ledger (goal 3 us; {disarmed:.1f} us disarmed, goal 1.5; the PyTorch expression {expression:.0f} us)", armed=taps["armed: us each"], disarmed=taps["disarmed: us each"], expression=expression),
        say("`nf4` costs {nf4:.1f} times a copy (goal 1.6) and `nvfp4_16x16` {square:.1f} (goal 2.0)", nf4=GPU["quantize nf4, full ledger"]["ratio"], square=GPU["quantize nvfp4_16x16, full ledger"]["ratio"]),
        say("`fp8_e4m3` by tensor takes {fp8:.1f} times a copy", fp8=GPU["quantize fp8_e4m3, full ledger"]["ratio"]),
        say("`int4` {int4:.1f} (", int4=GPU["quantize int4, full ledger"]["ratio"]),
        say("there are {cases} cases", cases=len(later["cases"])),
        say("{differing} elements of {elements:,} differ from the CPU's in any of them. In {ledgers} cases the ledgers differed", differing=later["elements_differing"], elements=later["elements"], ledgers=later["ledgers_differing"]),
        say("{ratio:.1f} times as fast as the expression (goal 15)", ratio=CPU["the PyTorch expression over full ledger"]["ratio"]),
        say("takes {low:.0f} to {high:.0f} times as long as `y + randn_like(y) * s` without a ledger, and {low_logged:.0f} to {high_logged:.0f} times with the full ledger (goal 2; {elements:,} elements,", **pair(times), elements=times["elements"]),
        say("It took {low:.0f} to {high:.0f} and {low_logged:.0f} to {high_logged:.0f} times", **pair(before)),
        say("{low} to {high} operators a call without a ledger, {low_logged} to {high_logged} with it", **pair(times, "operators")),
        say("Our own kernels take {low:.1f} to {high:.1f} times there", **ends("native", before)),
        say("the {cases} cases of then on the GPU against the CPU's kernels: {differing} elements and {ledgers} ledgers differ", cases=len(on_gpu["cases"]), differing=on_gpu["elements_differing"], ledgers=on_gpu["ledgers_differing"]),
        say("{cases} cases of {elements:,} elements, {differing} elements and {ledgers} ledgers differ", cases=len(portable["cases"]), elements=portable["elements"], differing=portable["elements_differing"], ledgers=portable["ledgers_differing"]),
    ]  # fmt: skip


def replay_claims():
    made = record("h200-replay.json")
    moved = made["logits"]
    return [
        *(say("| {operator} | {calls} | {measured:.2e} | {replayed:.2e} |", operator=one["operator"], calls=one["calls"], measured=one["noise_to_signal"], replayed=one["replayed"]) for one in made["operators"]),
        say("The CPU moves the logits by {second:.4f} (relative), eight replays with other seeds by {low:.4f} to {high:.4f}", second=moved["second"], low=min(moved["replayed"]), high=max(moved["replayed"])),
    ]


CLAIMS = [*replay_claims(), *table_claims(GPU), *table_claims(CPU), *sentence_claims()]
REASONS = [
    (r"268,435,456 bf16 elements|16,777,216 bf16 elements, 2 threads", "setting"),
    (r"The aim of 1\.25", "goal"),
    (r"a tap of 256x1536", "setting"),
    (r"a hash of 61 bits", "digest.h"),
    (r"\(7\.0 before\)|\(10\.7 before, commit", "an earlier record, in git at 0f6021f"),
    (r"found 63 of 64 operations|found 64 of 64 operations", "printed there; the record holds its bits"),
]
