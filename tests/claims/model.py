"""The numbers of docs/results/model.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/model.md"
H200, VLLM, ARM, OPERATORS = (record(name) for name in ("h200-model.json", "h200-vllm.json", "arm-model.json", "h200-model-ops.json"))
ROWS = {row["batch"]: row for row in H200["qwen2.5-1.5b"]}


def best(arm, batch):
    return max(VLLM["tokens_per_second"][arm][str(batch)])


def peer_claims():
    claims = []
    for batch, row in ROWS.items():
        assert row["plan_evidence"]["complaints"] == []
        claims.append(
            say("| {batch} | {ours:,.0f} | {step:.2f} ms | {floor:.2f} | {compiled:,.0f} | {over:.2f}x |", batch=batch, ours=row["ours_tok_s"], step=row["step_ms"], floor=row["step_over_floor"], compiled=row["hf_static_compiled_tok_s"], over=row["over_hf_compiled"])
        )
        claims.append(say("x | {eager:,.0f} | {over:.1f}x | +{plan:.0f} % |", eager=row["hf_eager_tok_s"], over=row["over_hf_eager"], plan=100 * row["plan_cost"]))
    return [
        *claims,
        say("at the measured `clone` bandwidth ({bandwidth:.1f} TB/s) plus FLOPs at the measured matmul rate ({rate:.0f} TFLOP/s)", bandwidth=H200["bandwidth_gb_s"] / 1000, rate=H200["matmul_tflop_s"]),
        say("512 prompts x 64 tokens: {seconds:.3f} s", seconds=H200["smollm2_512x64_s"]),
        say("the plan costs {plan:.0f} % at batch 256", plan=100 * ROWS[256]["plan_cost"]),
        say("is {a:.1f}, {b:.1f} and {c:.1f} times as fast as Hugging Face's compiled one at batch 1, 64 and 256", **{key: ROWS[batch]["over_hf_compiled"] for key, batch in zip("abc", ROWS)}),
    ]


def operator_claims():
    ratio = {one["name"]: one["torch_us"] / one["us"] for one in OPERATORS["operators"] if one["torch_us"]}
    few = [value for name, value in ratio.items() if name.startswith("few_rows")]
    attend = lambda words: ratio[f"attend_cached {words}"]  # noqa: E731
    greedy = [ratio[f"sample greedy B={batch}"] for batch in (1, 64, 256)]
    return [
        say("few-row products {low:.2f} to {high:.2f} times torch's speed", low=min(few), high=max(few)),
        say("`attend_cached` {a:.2f} times torch's SDPA at batch 1 with 512 keys, but {b:.2f} with 8,000, and {c:.2f}, {d:.2f} and {e:.2f} with 512 at batch 8, 64 and 256",
            a=attend("B=1 length=512 of 640"), b=attend("B=1 length=8000 of 8192"), c=attend("B=8 length=512 of 640"), d=attend("B=64 length=512 of 640"), e=attend("B=256 length=512 of 640")),
        say("greedy sampling {a:.2f}, {b:.2f} and {c:.2f} times torch's argmax at batch 1, 64 and 256", a=greedy[0], b=greedy[1], c=greedy[2]),
    ]  # fmt: skip


def vllm_claims():
    claims = []
    for row in VLLM["ours"]["rows"]:
        batch, clean, armed = row["batch"], row["ours_tok_s"], row["with_plan_tok_s"]
        claims.append(
            say("| {batch} | {clean:,.0f} | {peer:,.0f} | {ratio:.2f}x | {armed:,.0f} (+{cost:.0f} %) | {armed_peer:,.0f} | {armed_ratio:.2f}x |",
                batch=batch, clean=clean, peer=best("clean", batch), ratio=clean / best("clean", batch), armed=armed, cost=100 * row["plan_cost"], armed_peer=best("armed", batch), armed_ratio=armed / best("armed", batch))
        )  # fmt: skip
    ratios = [row["ours_tok_s"] / best("clean", row["batch"]) for row in VLLM["ours"]["rows"]]
    return [
        *claims,
        say("our plan's cost at batch 256 is +{cost:.0f} %", cost=100 * VLLM["ours"]["rows"][-1]["plan_cost"]),
        say("{a:.2f}, {b:.2f} and {c:.2f} times as fast as vLLM", **dict(zip("abc", ratios))),
    ]


def arm_claims():
    claims = [say("with {ours:.0f} of 550 tokens/s", ours=ARM["smollm2"][1]["ours_tok_s"])]
    for row in ARM["smollm2"]:
        claims.append(say("| {batch} | {ours:.1f} |", batch=row["batch"], ours=row["ours_tok_s"]))
        claims.append(say("| {hf:.1f} | {over:.1f}x (1.8x) | {vllm:.1f} | {over_vllm:.1f}x (", hf=row["hf_eager_tok_s"], over=row["over_hf_eager"], vllm=row["vllm_tok_s"], over_vllm=row["over_vllm"]))
        claims.append(say("x) | +{plan:.0f} % |", plan=100 * row["plan_cost"]))
    return claims


CLAIMS = [*peer_claims(), *operator_claims(), *vllm_claims(), *arm_claims()]
REASONS = [
    (r"below 1e-4 of|below 1e-4; equal", "bound, asserted by model_test.py"),
    (r"all seven \||six prompts x 24 tokens each|of 800 tokens|32 prompts x 64 tokens|8 x 12 in the suite", "setting of the tests"),
    (r"more than 10,000 strings", "setting of tokenizer_test.py"),
    (r"all 272 tensors of the GGUF \(134,515,008 parameters\)", "asserted by model_files_test.py"),
    (r"prompt 64, 128 new tokens|512 prompts x 64 tokens", "setting"),
    (r"at batch 1, 64 and 256|batch 1 with 512 keys, but \S+ with 8,000|with 512 at batch 8, 64 and 256|from batch 64 on|from batch 8, and with a long cache at batch 1", "setting"),
    (r"\(goal 2\.5\)|\| 2\.5x \||\| 1\.8x \||\| 25 % \||\| 15 % \||where 15 % was|where \+12 % is|of 550 tokens|\(goal 0\.15\)|\(1\.8x\)|\(1\.[24]x\)|\| 30 \| 10\.2|\| 550 \| 56", "goals"),
    (r"5 % matmul plan|5 % noise on every product", "setting"),
    (r"at batch (256|32)", "setting"),
    (r"vLLM for CPUs \(0\.22\.1\)", "version"),
    (r"2 cores|2 threads", "machine"),
]
