"""The numbers of docs/results/numeric.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/numeric.md"


def rows(name):
    return {row["name"].strip(): row for row in record(name)["rows"]}


GPU, CPU = rows("h200-numeric.json"), rows("cpu-numeric.json")
GAUSSIAN = "relative_gaussian, full ledger"
BLOCKS = [f"quantize {name}, full ledger" for name in ("mxfp4", "nvfp4", "mxfp8_e4m3")]


def table_claims(table):
    """A goal that is empty leaves two blanks, of which plain() keeps one."""
    return [say("| {name} | {ms:.4f} | {ratio:.3f} | {against} |" + (" {goal} |" if row["goal"] else ""), name=name, **{key: row[key] for key in ("ms", "ratio", "against") + (("goal",) if row["goal"] else ())}) for name, row in table.items()]


def sentence_claims():
    blocks = [GPU[name]["ratio"] for name in BLOCKS]
    others = [row["ratio"] for name, row in GPU.items() if name.endswith("full ledger") and name not in (GAUSSIAN, *BLOCKS) and "expression" not in name]
    taps = {name.rsplit(", ", 1)[-1]: 1000 * row["ms"] for name, row in GPU.items() if name.startswith("tap of")}
    expression = next(1000 * row["ms"] for name, row in GPU.items() if name.startswith("PyTorch expression"))
    portable, on_gpu = record("cpu-portable.json"), record("h200-portable.json")
    assert (on_gpu["device"], on_gpu["elements"]) == ("cuda", portable["elements"])
    times = record("h200-portable-time.json")
    ratios = lambda words: [row["ratio"] for row in times["rows"] if words in row["name"]]  # noqa: E731
    unlogged, logged, own = ratios("portable, no ledger"), ratios("portable, full ledger"), ratios("native")
    digest = record("digest.json")
    assert digest["missed"] == sum(one["missed"] for one in digest["patterns"]) and digest["corruptions"] == sum(one["corruptions"] for one in digest["patterns"])
    assert portable["elements_differing"] == sum(one["differing"] for one in portable["cases"]) and portable["ledgers_differing"] == sum(not one["ledger_equal"] for one in portable["cases"])
    blind = [one for one in digest["patterns"] if one["missed_by_sum"] == one["corruptions"]]
    return [
        say("costs {ratio:.2f} times a copy on an H200 with the full ledger, block formats {low:.1f} to {high:.1f}, everything else {others:.1f} to {most:.1f}", ratio=GPU[GAUSSIAN]["ratio"], low=min(blocks), high=max(blocks), others=min(others), most=max(others)),
        say("The digest missed {missed} of {all:,} corruptions", missed=digest["missed"], all=digest["corruptions"]),
        say("{missed} misses in {all:,} corruptions of nine patterns, each on buffers of four sizes; the plain sum of the elements missed all of {blind} patterns ({corruptions:,} corruptions)",
            missed=digest["missed"], all=digest["corruptions"], blind=len(blind), corruptions=sum(one["corruptions"] for one in blind)),
        say("costs {armed:.1f} us armed with the full ledger (goal 3 us; {disarmed:.1f} us disarmed; the PyTorch expression {expression:.0f} us)", armed=taps["armed: us each"], disarmed=taps["disarmed: us each"], expression=expression),
        say("{ratio:.1f} times as fast as the expression (goal 15)", ratio=CPU["the PyTorch expression over full ledger"]["ratio"]),
        say("takes {low:.0f} to {high:.0f} times as long as `y + randn_like(y) * s` without a ledger, and {least:.0f} to {most:.0f} times with the full ledger (goal 2; {elements:,} elements,", low=min(unlogged), high=max(unlogged), least=min(logged), most=max(logged), elements=times["elements"]),
        say("Our own kernels take {low:.1f} to {high:.1f} times there", low=min(own), high=max(own)),
        say("the same {cases} cases on the GPU against the CPU's kernels: {differing} elements and {ledgers} ledgers differ", cases=len(on_gpu["cases"]), differing=on_gpu["elements_differing"], ledgers=on_gpu["ledgers_differing"]),
        say("{cases} cases of {elements:,} elements, {differing} elements and {ledgers} ledgers differ", cases=len(portable["cases"]), elements=portable["elements"], differing=portable["elements_differing"], ledgers=portable["ledgers_differing"]),
    ]  # fmt: skip


CLAIMS = [*table_claims(GPU), *table_claims(CPU), *sentence_claims()]
REASONS = [
    (r"268,435,456 bf16 elements|16,777,216 bf16 elements, 2 threads", "setting"),
    (r"The aim of 1\.25", "goal"),
    (r"a tap of 256x1536", "setting"),
    (r"a hash of 61 bits", "digest.h"),
    (r"found 63 of 64 operations", "printed there; the record holds its bits"),
]
