"""The numbers of docs/results/diagnosis.md above its tables (those are written by the program from the same records; diagnose_test.py)."""

from published_numbers import say
from published_records import diagnoses

PAGE = "docs/results/diagnosis.md"
POOLS = [one["outcome"] for one in diagnoses() if one["cell"].split()[0] not in ("healthy", "curve", "intermittent")]
HEALTHY = [one["outcome"] for one in diagnoses() if one["cell"].startswith("healthy")]
RARE = [one["outcome"] for one in diagnoses() if one["cell"].startswith("intermittent")]


def acted(method, trials=POOLS):
    """Trials whose fault changed something while the method looked."""
    return [one for one in trials if one[method].get("changed", 1) > 0]


def wrong(method, what):
    return [one for one in acted(method) if not one[method].get(what + "_right")]


def pool_claims():
    missed = wrong("self", "layer")
    places, kinds = ([one for one in wrong("self", what)] for what in ("place", "kind"))
    whole = [one for one in kinds if one["extent"] == 1.0]
    changed = [one["self"]["changed"] for one in missed]
    spikes = [one for one in acted("classic") if one["planted_kind"] == "spike"]
    alone = [one for one in acted("classic") if one["classic"].get("layer_right") for other in ("self", "shadow") if one[other].get("changed", 1) > 0 and not one[other].get("layer_right")]
    assert {one["dtype"] for one in POOLS} == {"bf16"} and {one["rows"] for one in POOLS} == {1} and alone == []
    assert all(not one["self"]["found"] and one["site"] in ("q_proj", "v_proj") and one["extent"] == 0.01 for one in missed) and len(whole) == 1
    assert not wrong("shadow", "layer") and not wrong("shadow", "place")
    return [
        say("`self` named the broken layer in {right:,} of {all:,} trials and accused {accused} of {healthy:,} healthy runs", right=len(acted("self")) - len(missed), all=len(acted("self")), accused=sum(one["self"]["found"] for one in HEALTHY), healthy=len(HEALTHY)),
        say("`shadow`, which computes every call again in fp64 on the CPU, named layer and operator in all of {all:,} trials", all=len(acted("shadow"))),
        say("accused none of {healthy:,} runs (upper 95 % limit {limit:.1f} %)", healthy=len(HEALTHY), limit=100 * (1 - 0.05 ** (1 / len(HEALTHY)))),
        say("`self` missed the layer in {layer} trials, layer and operator in {place}, the kind in {kind}; `shadow` only the kind, in {shadow}", layer=len(missed), place=len(places), kind=len(kinds), shadow=len(wrong("shadow", "kind"))),
        say("changed {low} to {high} numbers", low=min(changed), high=max(changed)),
        say("in {right} of {all} trials the layer was named, by `self` and by `shadow`", right=min(sum(one[method]["layer_right"] for one in RARE) for method in ("self", "shadow")), all=len(RARE)),
        say("names the layer in {share:.0f} %", share=100 * (1 - len(wrong("classic", "layer")) / len(acted("classic")))),
        say("accuses one on every healthy machine ({accused:,} of {runs:,})", accused=sum(one["classic"]["found"] for one in HEALTHY), runs=len(HEALTHY)),
        say("only spikes, which are large, it finds in {share:.0f} %", share=100 * sum(one["classic"].get("layer_right", False) for one in spikes) / len(spikes)),
    ]  # fmt: skip


def campaign_claims():
    trials = sorted(diagnoses(), key=lambda one: one["started"])
    cut = max(range(len(trials) - 1), key=lambda i: trials[i + 1]["started"] - trials[i]["started"]) + 1
    spans = [max(one["finished"] for one in part) - min(one["started"] for one in part) for part in (trials[:cut], trials[cut:])]
    done = sum(1 for one in diagnoses() for method in ("self", "shadow", "classic") if method in one["outcome"] and one["outcome"][method].get("changed", 1) > 0)
    spikes = [one["cell"] for one in diagnoses() if one["cell"].startswith("spike | ")]
    assert len(set(map(spikes.count, spikes))) == 1
    gains = [one["outcome"]["strength"] for one in diagnoses() if one["cell"] == "curve gain"]
    return [
        say("{trials:,} trials with {diagnoses:,} diagnoses", trials=len(trials), diagnoses=done),
        say("{first:,} of them took {seconds:.0f} s from the first's start to the last's end, {rate:.0f} a second, with 15 workers", first=cut, seconds=spans[0], rate=cut / spans[0]),
        say("The other {rest} took {seconds:.0f} s", rest=len(trials) - cut, seconds=spans[1]),
        say("pools of spikes have {trials} trials", trials=spikes.count(spikes[0])),
        say("the curve of gains begins at {least:.1f} %", least=100 * min(gains)),
    ]  # fmt: skip


def edges_claims():
    trials = [one["outcome"] for one in diagnoses("diagnosis-edges.jsonl.gz")]
    healthy = [one for one in trials if one.get("planted_kind", "none") == "none"]
    planted = [one for one in trials if one not in healthy]
    looked = {method: acted(method, [one for one in planted if method in one]) for method in ("self", "shadow")}
    exponents = {method: [one for one in found if one["planted_kind"] == "exponent"] for method, found in looked.items()}
    assert all(one[method]["layer_right"] and one[method]["other_layers"] == 0 for method, found in looked.items() for one in found)
    assert not any(one[method]["found"] for one in healthy for method in looked)
    rows = [say("| {method} | guilty layer first, exponent flips | 0.99 | 1 | exponent | {trials} | yes |", method=method, trials=len(exponents[method])) for method in looked]
    return [
        *rows,
        *[say("| {method} | guilty layer first, all | 0.99 | 1 | all | {trials} | yes |", method=method, trials=len(found)) for method, found in looked.items()],
        *[say("| {method} | diagnoses that accuse healthy layers | 0 | 0 | all | {trials} | yes |", method=method, trials=len(found)) for method, found in looked.items()],
        say("{planted} planted faults, {diagnoses} diagnoses; {idle} trials left out because their fault changed nothing", planted=len(looked["self"]), diagnoses=sum(map(len, looked.values())) + 2 * len(healthy), idle=len(planted) - len(looked["self"])),
        say("None of the {healthy} healthy machines was accused (upper 95 % limit {limit:.1f} %)", healthy=len(healthy), limit=100 * (1 - 0.05 ** (1 / len(healthy)))),
    ]  # fmt: skip


CLAIMS = [*pool_claims(), *campaign_claims(), *edges_claims()]
REASONS = [
    (r"random Llama of 4 layers \(hidden size 32|AVX-512|frozen in commit \d+|hexadecimal digits, \d+|flip of bit 14 in a bf16", "setting"),
    (r"first, (exponent flips|all) \| 0\.99 \| 1 \||healthy layers \| 0 \| 0 \|", "the bar, and what edges_claims asserts of every trial"),
    (r"stopped after 6 minutes\) got through 7 exponent flips and a healthy machine: 7 right", "seen by hand; its records were not kept"),
    (r"all 30 layers", "the model's shape"),
    (r"fp32, with 1, 2 and 5 rows", "setting; the tables have them"),
    (r"fault on 1 % of the channels|on all, 10 % or 1 % of the channels", "setting"),
    (r"one call of ten, 64 passes", "setting"),
    (r"in pools of 300 trials and more|fewer than 300;", "setting: the campaign asks for it"),
    (r"with 3 added", "a formula"),
    (r"10,000 diagnoses in 20 minutes", "goal"),
    (r"with 15 workers|with 8 workers", "setting"),
    (r"since one of 0\.1 % changes", "arithmetic: half a unit in the last place of bf16"),
]
