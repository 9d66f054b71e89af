"""The numbers of docs/results/screen.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/screen.md"
BOUND, DRILL, COPIES = (record(f"h200-screen-{name}.json") for name in ("bound", "drill", "copies"))
HEALTHY = record("cpu-screen-healthy.json")
SCREEN, RUNS = BOUND["answer"], COPIES["runs"]
KINDS = {
    "product": "products, all types", "product bf16": "products bf16", "product fp16": "products fp16", "product fp8_e4m3": "products fp8", "product tf32": "products TF32", "product fp32": "products fp32",
    "attention": "attention", "norm": "norms and softmax", "reduction": "sums, element by element", "gather": "rows of a table",
    "copy device 256 MiB": "copies on the device", "copy host to device and back 256 MiB": "copies to the host and back",
}  # fmt: skip


def upper_limit(count):
    """Of a rate of which nothing was seen in so many: 95 %, one-sided."""
    return 100 * (1 - 0.05 ** (1 / count))


def row_of(what):
    return next(row for row in DRILL["rows"] if row["what"] == what)


def screen_claims():
    bound, groups, weather, measured = SCREEN["bound"], SCREEN["groups"], SCREEN["weather"], BOUND["measured"]
    batched = next(row for row in SCREEN["checks"] if row["products"] > row["launches"])
    assert sum(row["products"] != row["launches"] for row in SCREEN["checks"] if row["group"] == "product") == 1
    assert SCREEN["verdict"] == "healthy" and SCREEN["failures"] == [] and SCREEN["canaries"]["missed"] == [] and not any(group["wrong"] for group in groups.values())
    assert weather["after"]["throttled_by"] == ["power cap"] and not any(weather[when][f"ecc_{kind}"] for when in weather for kind in ("corrected", "uncorrected"))
    return [
        say("{products:,} products, none wrong: at most one wrong product in {most:,} (95 %); goal 1,000,000: met", products=bound["products"]["tested"], most=bound["products"]["at_most_one_in"]),
        say("{seconds:.0f} s of work and {preparation:.0f} s of preparation", seconds=measured["seconds"], preparation=SCREEN["preparation_seconds"]),
        say("{tested:,} launches of all kinds: at most one wrong in {most:,}", tested=bound["launches"]["tested"], most=bound["launches"]["at_most_one_in"]),
        say("{seen:,} of {planted:,} canaries were seen", seen=SCREEN["canaries"]["seen"], planted=SCREEN["canaries"]["planted"]),
        say("{share:.0f} % of the products come from one check that multiplies {each} small matrices a launch", share=100 * batched["products"] / bound["products"]["tested"], each=batched["products"] // batched["launches"]),
        say("there were {launches:,} launches of products, at most one wrong in {most:,}", launches=groups["product"]["launches"], most=groups["product"]["at_most_one_in"]),
        say("{tested:.1f} GB of memory were under test", tested=SCREEN["memory"]["tested_bytes"] / 1e9),
        say("at {degrees} °C and {watts:.0f} W, held back by its power limit of {limit:.0f} W", degrees=weather["after"]["temperature_c"], watts=weather["after"]["power_w"], limit=weather["after"]["power_limit_w"]),
        *(say("| " + name + " | {launches:,} | {most:,} |", launches=group["launches"], most=group["at_most_one_in"]) for name, group in groups.items()),
    ]  # fmt: skip


def drill_claims():
    rows = DRILL["rows"]
    for key in ("planted", "found", "placed", "rated", "rate_right"):
        assert DRILL[key] == sum(row[key] for row in rows)
    misplaced = [row for row in rows if row["placed"] != row["planted"]]
    held, lost, flipped = (row_of(what) for what in ("one bit of memory under test, held", "a copy that loses 64 bytes", "a copy that flips a bit"))
    assert len(misplaced) == 3 and all(row in misplaced for row in (held, lost, flipped)) and not any(row["source"] == "tap" for row in misplaced)
    assert all("memory" in line and "found at another place" in line for line in DRILL["misses"]) and len(DRILL["misses"]) == 4
    assert HEALTHY["healthy"] == sum(run["healthy"] for run in HEALTHY["runs"]) and HEALTHY["accused"] == sum(run["accused"] for run in HEALTHY["runs"])
    gone = lambda row: row["planted"] - row["placed"]  # noqa: E731
    taps = [row for row in rows if row["source"] == "tap"]
    return [
        say("{found} of {planted} planted faults were found", found=DRILL["found"], planted=DRILL["planted"]),
        say("{placed} of them ({share:.1f} %, goal 99: missed)", placed=DRILL["placed"], share=100 * DRILL["placed"] / DRILL["planted"]),
        say("{right} of {rated} had the right rate", right=DRILL["rate_right"], rated=DRILL["rated"]),
        say("{accused} of {healthy} short healthy screens on the H200 and {accused_cpu} of {healthy_cpu} on a CPU accused", accused=DRILL["accused"], healthy=DRILL["healthy"], accused_cpu=HEALTHY["accused"], healthy_cpu=HEALTHY["healthy"]),
        say("found is at least {least:.1f} % (95 %)", least=100 * 0.05 ** (1 / DRILL["planted"])),
        say("H200: {launches:,} launches, upper 95 % limit {limit:.2f} % of screens", launches=DRILL["healthy_launches"], limit=upper_limit(DRILL["healthy"])),
        say("CPU: {launches:,} launches, upper 95 % limit {limit:.2f} % of screens", launches=HEALTHY["healthy_launches"], limit=upper_limit(HEALTHY["healthy"])),
        say("{held} of {all} bits held in memory", held=gone(held), all=held["planted"]),
        say("{lost} of {all} copies that lost bytes, {flipped} of {all2} that flipped a bit", lost=gone(lost), all=lost["planted"], flipped=gone(flipped), all2=flipped["planted"]),
        say("The taps' {placed} faults", placed=sum(row["placed"] for row in taps)),
        say("in {processes} processes at once", processes=DRILL["processes"]),
        *(
            say(
                "| {source} | " + ("`{what}`" if row["source"] == "tap" else "{what}") + " | {planted} | {found} | {placed} | {right} of {rated} |",
                source=row["source"], what=row["what"], planted=row["planted"], found=row["found"], placed=row["placed"], right=row["rate_right"], rated=row["rated"],
            )
            for row in rows
        ),
    ]  # fmt: skip


def speed_claims():
    rates, claims = SCREEN["rates"], []
    assert set(KINDS) == set(rates)
    for name, words in KINDS.items():
        rate = rates[name]
        unit, scale = ("TFLOP/s", 1e12) if rate["unit"] == "operations/s" else ("GB/s", 1e9)
        claims.append(say("| " + words + " | {screening:,.1f} " + unit + " | {plain:,.1f} " + unit + " | {share:.1f} % |", screening=rate["screening"] / scale, plain=rate["plain"] / scale, share=100 * rate["share"]))
    share = lambda name: 100 * rates[name]["share"]  # noqa: E731
    claims.append(say("products reach {products:.1f} % of their unjudged speed and copies on the device {device:.1f} % (goal 85: both missed); copies to the host and back reach {host:.1f} % (met)",
                      products=share("product"), device=share("copy device 256 MiB"), host=share("copy host to device and back 256 MiB")))  # fmt: skip
    return claims


def copy_claims():
    on, to, clean = RUNS["on the device"], RUNS["to the device"], RUNS["clean"]
    (failure,) = on["failures"]
    assert (on["spoilt"], on["wrong"], failure["suspect"], failure["stage"]) == (1, 1, "transfer", "copy 5") and failure["check"] == "copy device 256 MiB"
    assert on["verdict"] == "faulty" and clean["verdict"] == to["verdict"] == "healthy" and to["wrong"] == clean["wrong"] == 0
    return [
        say("on the device it spoilt {spoilt} copy; {wrong} of {launches} launches was wrong", spoilt=on["spoilt"], wrong=on["wrong"], launches=on["checks"]["copy device 256 MiB"][1]),
        say("with {elements} wrong elements", elements=failure["wrong_elements"]),
        say("to the device it spoilt {spoilt}", spoilt=to["spoilt"]),
        say("then spoils every {every}st; there were {launches} launches", every=to["one_in"], launches=to["checks"]["copy host to device and back 256 MiB"][1]),
        say("a run without the interposer's fault was healthy ({launches} launches of copies, {wrong} wrong)", launches=clean["launches"], wrong=clean["wrong"]),
    ]


CLAIMS = [*screen_claims(), *drill_claims(), *speed_claims(), *copy_claims()]
REASONS = [
    ("a real screen of 5 minutes", "setting"),
    ("16 cores", "setting"),
    ("leaves the first 100 copies alone", "setting"),
    ("240 trials", "setting"),
    ("lose 64 bytes", "setting"),
]
