"""The numbers of docs/results/clients.md."""

import statistics

from published_numbers import say
from published_records import record

PAGE = "docs/results/clients.md"
VLLM, ARM, X86, X86_LATER = (record(f"{name}.json") for name in ("h200-vllm", "arm-clients", "x86-clients", "x86-clients-later"))
BATCHES = ("1", "64", "256")
PROCESSORS, WALL = 0, 1


def best(arm, batch, speeds=VLLM["tokens_per_second"]):
    return max(speeds[arm][batch])


def shares(armed, clean, speeds=VLLM["tokens_per_second"]):
    return [100 * best(armed, batch, speeds) / best(clean, batch, speeds) for batch in BATCHES]


def vllm_claims():
    claims = []
    for clean, armed, words in (("clean", "armed", ("clean", "armed, every product faulted")), ("clean_eager", "armed_eager", ("clean, eager", "armed, eager"))):
        claims.append(say("| " + words[0] + " | {a:,.0f} | {b:,.0f} | {c:,.0f} |", **{key: best(clean, batch) for key, batch in zip("abc", BATCHES)}))
        claims.append(say("| " + words[1] + " | {a:,.0f} ({x:.0f} %) | {b:,.0f} ({y:.0f} %) | {c:,.0f} ({z:.0f} %) |", **{key: best(armed, batch) for key, batch in zip("abc", BATCHES)}, **dict(zip("xyz", shares(armed, clean)))))
    armed, other = VLLM["evidence"]["armed"], VLLM["another_machine"]
    steps, kernels, window = other["one_process_step_ms"], other["fault_kernels_us_a_step"], VLLM["launch_window"]
    eager, graph = window["us_a_forward"]["eager"], window["us_a_forward"]["graph"]
    assert armed["launches"]["products"] == 113 * armed["launches"]["kinds"] and set(VLLM["torch_compile"]["calls"].values()) == {36}
    a_launch = lambda one, inside="inside": (one[inside] - one["without"]) / window["launches_a_forward"]  # noqa: E731
    return [
        *claims,
        say("{a:.0f}, {b:.0f} and {c:.0f} % of its clean speed at batch 1, 64 and 256", **dict(zip("abc", shares("armed", "clean")))),
        say("{calls:,} calls = 113 products x {forwards:,} forwards", calls=armed["calls"], forwards=armed["forwards"]["body"]),
        say("**{faulted:,} of {products:,} product kernels faulted**: 113 in each of {ways} ways", faulted=armed["launches"]["faulted"], products=armed["launches"]["products"], ways=armed["launches"]["kinds"]),
        say("{a:.0f}, {b:.0f} and {c:.0f} % here, {x:.0f}, {y:.0f} and {z:.0f} % on another machine", **dict(zip("abc", shares("armed_eager", "clean_eager"))), **dict(zip("xyz", shares("armed_eager", "clean_eager", other["tokens_per_second"])))),
        say("a step of batch 1 took {clean:.2f} ms clean, {armed:.2f} armed and {early:.2f} so; the fault kernels themselves take {own:.2f} ms of it", clean=steps["clean"]["1"], armed=steps["armed"]["1"], early=steps["overlapping"]["1"], own=kernels["overlapping"]["1"] / 1000),
        say("At batch 256 the same process was slower with it: {clean:.2f} ms clean, {armed:.2f} armed, {early:.2f} so", clean=steps["clean"]["256"], armed=steps["armed"]["256"], early=steps["overlapping"]["256"]),
        say("about {graph:.1f} us a launch in graphs, {eager:.1f} in eager code and {scopes:.1f} where the operator of each launch is noted", graph=a_launch(graph), eager=a_launch(eager), scopes=a_launch(eager, "inside, with scopes")),
        say("A forward of {launches} launches takes {graph:.1f} us instead of {graph0:.1f} in a graph and {eager:.1f} to {scopes:.1f} instead of {eager0:.1f} eager: **+{least:.0f} to +{most:.0f} %",
            launches=window["launches_a_forward"], graph=graph["inside"], graph0=graph["without"], eager=eager["inside"], scopes=eager["inside, with scopes"], eager0=eager["without"], least=100 * (eager["inside"] / eager["without"] - 1), most=100 * (graph["inside"] / graph["without"] - 1)),
        say("(a graph takes {after:.1f} us before and after; an eager forward {before:.1f} and {later:.1f})", after=graph["after"], before=eager["without"], later=eager["after"]),
        say("{calls} calls = 6 products x 6 forwards", calls=VLLM["torch_compile"]["calls"]["default"]),
    ]  # fmt: skip


def median(run, names, column):
    return statistics.median(one[column] for name in names for one in run["values"][name])


def over(run, against, column):
    return 100 * (median(run, ["5 % on matmul"], column) / median(run, against, column) - 1)


def cost_claims():
    vllm, trl = ARM["runs"]
    both = ["clean", "clean again"]
    assert (vllm["engine"], trl["engine"]) == ("vllm", "trl")
    again = lambda run, column: 100 * (median(run, ["clean again"], column) / median(run, ["clean"], column) - 1)  # noqa: E731
    repeats = [100 * (armed[WALL] / statistics.mean(pair) - 1) for armed, *pair in zip(vllm["values"]["5 % on matmul"], *([one[WALL] for one in vllm["values"][name]] for name in both))]
    row = lambda run: dict(a=median(run, ["clean"], WALL), b=median(run, ["clean"], PROCESSORS), c=again(run, WALL), d=again(run, PROCESSORS), e=over(run, ["clean"], WALL), f=over(run, ["clean"], PROCESSORS))  # noqa: E731
    return [
        say("| {a:.2f} s wall, {b:.2f} s of processors | {c:+.1f} %, {d:+.1f} % | {e:+.1f} %, {f:+.1f} % | **{wall:+.1f} % wall**, {processors:+.1f} % of processors |", **row(vllm), wall=over(vllm, both, WALL), processors=over(vllm, both, PROCESSORS)),
        say("| {a:.2f} s, {b:.2f} s | {c:+.1f} %, {d:+.1f} % | {e:+.1f} %, {f:+.1f} % | **{wall:+.1f} % wall: missed** |", **row(trl), wall=over(trl, both, WALL)),
        say("repeat by repeat it was {a:+.1f}, {b:+.1f}, {c:+.1f} and {d:+.1f} %", **dict(zip("abcd", repeats))),
        say("{clean:.2f} s of processors clean, {again:.2f} s in the second clean arm and {armed:.2f} s with the plan: **{over:+.1f} %, missed**",
            clean=median(X86, ["clean"], PROCESSORS), again=median(X86, ["clean again"], PROCESSORS), armed=median(X86, ["5 % on matmul"], PROCESSORS), over=over(X86, both, PROCESSORS)),
        say("load {load:.1f};", load=X86["load"]),
        say("{clean:.2f} s of processors clean,", clean=median(X86_LATER, ["clean"], PROCESSORS)),
        say("{again:.2f} s in the second clean arm and {armed:.2f} s with the plan: **{over:+.1f} %, missed** by less than three points (load {load:.1f})",
            again=median(X86_LATER, ["clean again"], PROCESSORS), armed=median(X86_LATER, ["5 % on matmul"], PROCESSORS), over=over(X86_LATER, both, PROCESSORS), load=X86_LATER["load"]),
        say("vLLM on a CPU {vllm:+.1f} %, a TRL step {trl:+.1f} %", vllm=over(vllm, both, WALL), trl=over(trl, both, WALL)),
    ]  # fmt: skip


def window_claims():
    rows = {(row["code"], row["scopes"], row["calls_watched"]): row for row in record("h200-launches.json")["rows"]}
    graph, driver, eager = (rows[key] for key in (("graph", False, "runtime and driver"), ("graph", True, "driver"), ("eager", True, "runtime and driver")))
    return [
        say("a graph took {inside:.1f} us instead of {without:.1f}: **{share:+.0f} %, {launch:.2f} us a launch, still missed**", inside=graph["us_inside"], without=graph["us_without"], share=100 * (graph["us_inside"] / graph["us_without"] - 1), launch=(graph["us_inside"] - graph["us_without"]) / graph["launches"]),
        say("({before:.0f} to {after:.0f} us in one run)", before=eager["us_without"], after=eager["us_after"]),
        say("gave the same, {inside:.1f} us ([record](h200-launches.json))", inside=driver["us_inside"]),
    ]  # fmt: skip


def sceptic_claims():
    suites = record("h200-suites.json")
    engines = {(one["engine"], one["recipe"]): one for one in suites["engines"]}
    noise = lambda name: engines[name, "5 % on every product"]  # noqa: E731
    proven = {"plain": "dense, compiled with graphs", "fp8": "fp8 weights", "fp8_kv": "fp8 cache", "ngram": "n-gram speculation", "prefix": "cached prefixes, prefill in chunks", "sleep": "asleep and woken between requests",
              "prompt_logprobs": "log-probabilities of the prompt", "gemma": "Gemma 2"}
    for name in ("moe", "moe_eager", "moe_fp8", "lora"):
        assert noise(name)["exit"] != 0 and noise(name)["complaints"] == ["unfaulted_kernels"]
    assert all(noise(name)["calls"] == 16 * noise(name)["forwards"]["body"] + noise(name)["forwards"]["head"] for name in proven)
    assert all(outcome == "passed" for tests in suites["tests"].values() for outcome in tests.values())
    count = {name: len(tests) for name, tests in suites["tests"].items()}
    return [
        *[say("| " + words + " | {exit} | {calls:.0f} | {body}, {head} | {faulted} of {all} |", exit=noise(name)["exit"], calls=noise(name)["calls"], **noise(name)["forwards"], faulted=noise(name)["kernels_faulted"], all=noise(name)["kernels"]) for name, words in proven.items()],
        say("| `aqn:` whose step nobody moves | {exit} |", exit=engines["plain", "aqn global_decay, nobody moves the step"]["exit"]),
        say("`liars_cuda_test.py` {a} passed, `vllm_cuda_test.py` {b}, `launches_cuda_test.py` {c}, `tap_cuda_test.py` {d}, `aqn_cuda_test.py` {e}, all of them; `numeric_test` (portable arithmetic and CUDA) {f}, `tap_test` {g} and `model_test` (graphs) {h} passed",
            **{key: count[f"{name}_cuda_test"] for key, name in zip("abcde", ("liars", "vllm", "launches", "tap", "aqn"))}, f=suites["cpp"]["numeric_test"], g=suites["cpp"]["tap_test"], h=suites["cpp"]["model_test"]),
    ]  # fmt: skip


def verl_claims():
    verl = record("h200-verl.json")["earlier"]
    clean, noisy = verl["arms"]["clean"], verl["arms"]["e5"]
    vllm, actor = noisy["processes"]["vllm"], noisy["processes"]["worker"]
    kinds, forwards = vllm["by_kind"]["rollout"], actor["by_kind"]
    learnt = forwards["ref"]["whole"]  # as many micro-batches as the updates had
    assert kinds["body"] == kinds["head"] and vllm["complaints"] == actor["complaints"] == [] and not vllm["ended"] and not actor["ended"] and (clean["exit"], noisy["exit"]) == (0, "timeout")
    assert vllm["calls"]["rollout"] == vllm["sites"]["rollout"] * kinds["body"] and actor["calls"]["actor_forward"] == actor["sites"]["actor_forward"] * forwards["actor_forward"]["whole"]
    assert actor["calls"]["actor_backward"] == actor["sites"]["actor_backward"] * 2 * learnt and "ref" not in actor["calls"]
    steps = len(noisy["reward"])
    middle = lambda arm, name: statistics.median(arm["seconds"][name][1:steps])  # noqa: E731
    last = {name.removeprefix("faultline/"): value for name, value in noisy["last_metrics"].items()}
    return [
        say("| {calls:,.0f} | {sites} sites x {forwards:,} forwards, replays", calls=vllm["calls"]["rollout"], sites=vllm["sites"]["rollout"], forwards=kinds["body"]),
        say("| {calls:,.0f} | {sites} sites x {forwards} forwards |", calls=actor["calls"]["actor_forward"], sites=actor["sites"]["actor_forward"], forwards=forwards["actor_forward"]["whole"]),
        say("| {calls:,.0f} | {sites} sites x {products}: two products for each of {learnt} forwards", calls=actor["calls"]["actor_backward"], sites=actor["sites"]["actor_backward"], products=2 * learnt, learnt=learnt),
        say("reference, {forwards} forwards | {calls} |", forwards=learnt, calls=actor["calls"].get("ref", 0)),
        say("realised strength {strength:.4f}; {ways} ways", strength=last["npu_noise/relative_error"], ways=vllm["canary_ways"]),
        say("{a:.3f} clean, {b:.3f} with the noise; validation after step 10: {c:.3f} and {d:.3f}", a=statistics.mean(clean["reward"][:steps]), b=statistics.mean(noisy["reward"]), c=clean["validation"][0], d=noisy["validation"][0]),
        say("{k1:.1f} (k1) and {k3:.1f} (k3), median importance ratio {ratio:.2f}, effective sample share {share:.2f}", k1=last["mismatch/kl_k1"], k3=last["mismatch/kl_k3"], ratio=last["mismatch/ratio_p50"], share=last["mismatch/effective_sample_share"]),
        say("a step took {a:.1f} s instead of {b:.1f}", a=middle(noisy, "step"), b=middle(clean, "step")),
        say("**{over:+.1f} %**, at the same time", over=100 * (middle(noisy, "step") / middle(clean, "step") - 1)),
        say("the update took {a:.1f} s ({b:.1f} clean), old", a=middle(noisy, "update_actor"), b=middle(clean, "update_actor")),
        say("log-probabilities {a:.1f} ({b:.1f})", a=middle(noisy, "old_log_prob"), b=middle(clean, "old_log_prob")),
    ]  # fmt: skip


def arms_claims():
    verl = record("h200-verl.json")
    steps = lambda arm: len(arm["columns"].get("reward", []))  # noqa: E731
    [clean], cut = [arm for arm in verl["arms"] if (arm["arm"], arm["seed"]) == ("clean", 100)], verl["cut_short"]
    assert all(counts["exact"] for arm in [*verl["arms"], *cut] for process in arm["processes"] for counts in process["phases"].values())
    assert not any(process["complaints"] for arm in [*verl["arms"], *cut] for process in arm["processes"])
    assert {verdict["script_error"] for arm in cut for verdict in arm["verdict"]} == {"RayTaskError"}
    faulted = {arm["arm"]: arm for arm in verl["arms"] if arm["arm"] != "clean"}
    assert {arm["exit"] for arm in verl["arms"]} == {0} and {steps(arm) for arm in verl["arms"]} == {20} and not any(verdict["complaints"] for arm in faulted.values() for verdict in arm["verdict"])
    [served] = [process["phases"]["rollout"] for process in faulted["all_ops"]["processes"] if process["role"] == "vllm"]
    assert not any("norm" in name or "silu" in name for name in served["operators"])
    reward = lambda arm: statistics.mean(arm["columns"]["reward"])  # noqa: E731
    kl = [statistics.mean(faulted[name]["columns"]["kl_k3"]) for name in ("noisy", "aqn_global", "aqn_epoch", "all_ops")], [statistics.mean(faulted[name]["columns"]["kl_k3"]) for name in ("model_a", "model_b")]
    cpu = verl["cpu"]
    counted = [counts for arm in cpu for process in arm["processes"] for counts in process["phases"].values()]
    [operators] = [process["phases"]["actor_forward"]["operators"] for arm in cpu if arm["arm"] == "all_ops" for process in arm["processes"] if process["role"] == "worker"]  # of modules
    assert all(counts["exact"] for counts in counted) and {arm["exit"] for arm in cpu} == {0} and not any(verdict["complaints"] for arm in cpu for verdict in arm["verdict"]) and operators["aten::_softmax"] > 0
    return [
        say("came to their own judgement after {steps} steps: status {exit}, {calls:,.0f} calls as they must be", steps=steps(cpu[0]), exit=cpu[0]["exit"], calls=sum(counts["calls"] for counts in counted)),
        say("**All seven arms ran {steps} steps and ended with status 0**", steps=steps(clean)),
        say("The six faulted arms counted {calls:,.0f} calls", calls=sum(counts["calls"] for arm in faulted.values() for process in arm["processes"] for counts in process["phases"].values())),
        say("it fell from {clean:.3f} to {noisy:.3f} (mean of {steps} steps)", clean=reward(clean), noisy=reward(faulted["noisy"]), steps=steps(clean)),
        say("({g:.3f} global, {e:.3f} by epoch)", g=reward(faulted["aqn_global"]), e=reward(faulted["aqn_epoch"])),
        say("it was {a:.3f} with AQN on the layer and\n  {b:.3f} with AQN everywhere", a=reward(faulted["model_a"]), b=reward(faulted["model_b"])),
        say("is {low:.1f} to {high:.1f} under noise (mean of the steps), and {small:.3f} to {large:.3f} under the dead zone", low=min(kl[0]), high=max(kl[0]), small=min(kl[1]), large=max(kl[1])),
        say("after {least} to {most} steps, status {exit}", least=min(map(steps, cut)), most=max(map(steps, cut)), exit=cut[0]["exit"]),
    ]


CLAIMS = [*arms_claims(), *vllm_claims(), *cost_claims(), *window_claims(), *sceptic_claims(), *verl_claims()]
REASONS = [
    (r"16 prompts x 8 answers a step, at most 48 new tokens, lr 1e-5|after 25 steps of SFT|AQN down to 0\.005|behind layer 15|a random model of 2 layers", "setting"),
    (r"32 prompts x 8 answers|with 5 % noise on every product\. Values|told 20 steps|in step 20|after step 1[09]|steps 2 to 19|sigma of 0\.0005|noise of 1e-5|own 1 and not 64|status 0", "setting"),
    (r"\| client \| what a test shows .*? ## vLLM on", "asserted by the test that the row names"),
    (r"prompt 64, 128 less 8 new tokens|5 % (relative )?noise on every|two rounds of three|at batch 1, 64 and 256|batch 1 \| batch 64 \| batch 256|a step of batch 1|At batch 256", "setting"),
    (r"113 products x|: 113 in each|6 products x 6 forwards", "the model's shape; vllm_claims asserts it"),
    (r"\(86 graphs", "of the 87 ways one is a batch without a graph"),
    (r"\| goal \| \d\d % \| \d\d % \| \d\d % \||where \+5 % was the goal|\(goal \+15 %\)|\| \+15 % \|", "goals"),
    (r"4 sequences x 24 tokens|4 completions of 24 tokens|\(4 times vLLM, 3 times TRL\)|medians of 5 rounds|2 processes an arm, 3 rounds, 2 threads", "setting"),
    (r"AVX-512", "name"),
    (r"calls at 17 sites", "four products in each of 4 layers, and the head"),
    (r"Gemma 2", "name"),
]
