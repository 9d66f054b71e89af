"""The numbers of docs/results/race.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/race.md"
THREADS, GPU, HOSTS, ARM, H200 = (record(name) for name in ("race-selftest.json", "h200-race-selftest.json", "hosts-race.json", "arm-race.json", "h200-race.json"))
PLACES = ("comm_input", "comm_output", "compute_input", "compute_output", "reduce", "h2d")


def counted(source, kinds, place):
    """-> attributed/detected/planted of each of these kinds, which must be alike; `-` where none was planted."""
    cells = set()
    for kind in kinds:
        rows = [row for row in THREADS["rows"] if (row["source"], row["kind"], row["place"]) == (source, kind, place)]
        cells.add("/".join(str(sum(row[key] for row in rows)) for key in ("attributed", "detected", "planted")))
    assert len(cells) == 1
    return cells.pop().replace("0/0/0", "-")


def selftest_claims():
    lines = [("hook", "hook", ["bitflip", "zero", "stale", "swap", "partial", "nan"]), ("hook", "hook", ["delay"]), ("another thread", "thread", ["bitflip", "zero", "swap", "partial"])]
    claims = [say(" | ".join(f"{{{place}}}" for place in PLACES) + " |", **{place: counted(source, kinds, place) for place in PLACES}) for _, source, kinds in lines]
    delays = sum(row["planted"] for row in THREADS["rows"] if row["kind"] == "delay")
    found = {key: sum(row[key] for row in THREADS["rows"]) for key in ("attributed", "detected", "planted")}
    assert found["attributed"] == found["detected"] == found["planted"] == THREADS["planted"] and len({row["setting"] for row in THREADS["rows"]}) == 5
    assert sum(row["attributed"] for row in GPU["rows"]) == sum(row["detected"] for row in GPU["rows"]) == GPU["planted"] and GPU["clean_alarms"] == 0
    return [
        *claims,
        say("{planted:,} planted ({corruptions:,} corruptions and {delays} delays), {outside} of them by a thread", planted=THREADS["planted"], corruptions=THREADS["planted"] - delays, delays=delays, outside=THREADS["planted_outside"]),
        say("{alarms} alarms in {clean:,} clean iterations x {ranks} ranks.", alarms=THREADS["clean_alarms"], clean=THREADS["clean_iterations"], ranks=THREADS["ranks"]),
        say("All {threads:,} planted faults among threads on a CPU, all {hosts} between four network namespaces and all {gpu} on one GPU were found and laid on the right rank", threads=THREADS["planted"], hosts=HOSTS["attributed_with_host"], gpu=GPU["planted"]),
        say("{clean:,}, {hosts:,} and {gpu} clean iterations", clean=THREADS["clean_iterations"], hosts=HOSTS["clean_iterations"], gpu=GPU["clean_iterations"]),
        say("{right} of {planted} planted corruptions were laid on", right=HOSTS["attributed_with_host"], planted=HOSTS["planted"]),
        say("{alarms} alarms in {clean:,} clean iterations x {ranks} ranks ([record](hosts", alarms=HOSTS["alarms"], clean=HOSTS["clean_iterations"], ranks=HOSTS["clean_ranks"]),
        say("{planted} planted in {ranks} ranks on one GPU, {planted2} detected, {planted3} attributed; {alarms} alarms in {clean} clean iterations x {ranks2} ranks; {seconds:.1f} s",
            planted=GPU["planted"], planted2=GPU["planted"], planted3=GPU["planted"], ranks=GPU["ranks"], ranks2=GPU["ranks"], alarms=GPU["clean_alarms"], clean=GPU["clean_iterations"], seconds=GPU["seconds"]),
    ]  # fmt: skip


def per_cent(one, key):
    return 100 * one[key]


def overhead(one):
    drift = one["drift"]
    return dict(medians=per_cent(one, "of_medians"), mean=per_cent(one, "relative"), low=per_cent(one, "low"), high=per_cent(one, "high"), drift=per_cent(drift, "relative"), drift_low=per_cent(drift, "low"), drift_high=per_cent(drift, "high"))


def cost_claims():
    line = "{medians:+.1f} % | {mean:+.1f} % ({low:+.1f} to {high:+.1f}) | {drift:+.1f} % ({drift_low:+.1f} to {drift_high:+.1f}) |"
    seconds, iteration, memory = ARM["cpu_seconds_of_that_iteration"], ARM["iteration_4_ranks_24_layers_1M"], ARM["memory"]
    compute, alone = (overhead(one) for one in H200["overhead"])
    waits, gpu_memory = H200["host_waits_in_20_iterations"], H200["memory"]
    assert waits["layers_4"] == waits["layers_24"] and {one["pairs"] for one in ARM["overhead"]} == {20}
    keys = ("medians", "mean", "low", "high")
    return [
        *(say(line, **overhead(one)) for one in ARM["overhead"]),
        say("{relative:+.1f} % | {with_digests:.3f} s against {without:.3f} s |", relative=per_cent(seconds, "relative"), with_digests=seconds["with"], without=seconds["without"]),
        say("an iteration takes {median:.2f} s ({low:.2f} to {high:.2f} in eight; goal 3 s)", median=iteration["median"], low=iteration["min"], high=iteration["max"]),
        say("with {shard:,}-element shards at most {second:,} KiB in the second quarter and {last:,} in the last", shard=memory["shard"], second=memory["second_quarter_max_kib"], last=memory["last_quarter_max_kib"]),
        say("The host waits {waits} times in 20 iterations", waits=waits["layers_4"]),
        say("{pairs} pairs: **{medians:+.1f} %** with transformer compute (mean {mean:+.1f} %, {low:.1f} to {high:+.1f}; drift {drift:.1f} %, {drift_low:.1f} to {drift_high:+.1f}; goal +2 %)", pairs=H200["overhead"][0]["pairs"], **compute),
        say("{medians:+.1f} % with communication alone (mean {mean:+.1f} %, {low:+.1f} to {high:+.1f})", **{key: alone[key] for key in keys}),
        say("1M-element shards takes {ms:.0f} ms", ms=1000 * H200["iteration_4_ranks_24_layers_1M"]["median"]),
        say("Memory over {iterations} iterations with {shard:,}-element shards: {second:,} KiB at most in the second quarter and {last:,} in the last", iterations=gpu_memory["iterations"], shard=gpu_memory["shard"], second=gpu_memory["second_quarter_max_kib"], last=gpu_memory["last_quarter_max_kib"]),
    ]  # fmt: skip


def torch_claims():
    one = record("torch-race.json")
    assert one["events"] == one["attributed"]
    return [
        say("{attributed} of {planted} corruptions by the backend were laid on the right rank", attributed=one["attributed"], planted=one["planted"]),
        say("{alarms} alarms in {iterations:,} clean iterations x {ranks} ranks ([record](torch-race.json))", alarms=one["alarms"], iterations=one["clean_iterations"], ranks=one["clean_ranks"]),
    ]


CLAIMS = [*selftest_claims(), *cost_claims(), *torch_claims()]
REASONS = [
    (r"five settings .*? 4 ranks, 4 layers", "setting; the record has them"),
    (r"2 cores|8 x|AVX-512", "machine"),
    (r"The seed is 0;", "setting"),
    (r"\(load average 4 to 8\)", "seen while it ran"),
    (r"/ without - 1,", "a formula"),
    (r"4 threads|8 layers|24 layers|1M-element|mean of 20 pairs|in 20 iterations, with 4 layers and with 24|4 ranks", "setting"),
    (r"\| \+10 % \||goal \+2 %\)", "goal"),
    (r"over 500 iterations", "setting"),
]
