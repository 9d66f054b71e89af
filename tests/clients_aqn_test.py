"""AQN and norms in a real vLLM on a CPU, in an environment of its own (`./dev test-clients`; skipped elsewhere): noise without faults,
which norms carry it, the step from a trainer in the same process, from the weights of one elsewhere and from a call, a schedule
that nobody moves; and a rule on the input of norms, which vLLM hands over in two parts, against Hugging Face's bits. What needs
no engine is in aqn_engine_test.py. In fp32, because vLLM's kernels for bf16 need instructions that not every processor has."""

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is tested in an environment of its own: ./dev test-clients")

from clients_vllm_test import ALONE, LIMIT, entries_in, installed, result_of, rule, variables_of  # noqa: E402, F401

LAYERS, HIDDEN, PROMPT = 2, 128, list(range(5, 17))

SCRIPT = """
import json, os, sys

def ask(engine):
    import vllm
    sampling = vllm.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=1)
    [answer] = engine.generate([{"prompt_token_ids": %s}], sampling)
    return answer.outputs[0].cumulative_logprob

def train(engine, result):
    # What follow() needs of a Hugging Face or TRL trainer that samples with the engine in its own process.
    import types, faultline, torch
    from faultline import armed
    class Trainer:
        model, callbacks = torch.nn.Linear(2, 2), []
        state, args = types.SimpleNamespace(global_step=0), types.SimpleNamespace(output_dir=os.environ["OUTPUT"])
        def log(self, logs): pass
        def evaluate(self): pass
        def add_callback(self, callback): self.callbacks.append(callback)
        def remove_callback(self, callback): self.callbacks.remove(callback)
    trainer = Trainer()
    with faultline.follow(trainer, armed.armed().plan):
        for step in range(3):
            trainer.state.global_step = step
            for callback in trainer.callbacks:
                callback.on_step_begin(trainer.args, trainer.state, None)
            [distances] = engine.collective_rpc("send", args=("single",))
            result["distances"].append(distances)
            result["asked"].append(ask(engine))
        trainer.state.global_step = 3

def mend_experts():
    # vLLM 0.22.1 on Arm makes this activation in the forward, where it has no configuration, and fails with or without us.
    import torch
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    for activation in getattr(cpu_fused_moe, "_CPU_MOE_ACT_FN", {}):
        if activation.name == "SILU":
            cpu_fused_moe._CPU_MOE_ACT_FN[activation] = lambda x: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]

if __name__ == "__main__":
    import vllm
    mend_experts()
    options = json.loads(sys.argv[2])
    result = {"asked": [], "distances": []}
    actions = options.pop("actions")
    engine = vllm.LLM(sys.argv[1], skip_tokenizer_init=True, max_model_len=64, dtype="float32", max_num_seqs=2, disable_log_stats=True, enable_prefix_caching=False,
                      worker_extension_cls="clients_aqn_worker.Extension", **options)
    for action, *arguments in actions:
        if action == "ask":
            result["asked"].append(ask(engine))
        elif action == "train":
            train(engine, result)
        elif action == "send":
            result["distances"] += engine.collective_rpc("send", args=tuple(arguments))
        elif action == "watched":
            [result["watched"]] = engine.collective_rpc("watched")
        else:
            engine.collective_rpc(action, args=tuple(arguments))
    if "faultline" in sys.modules:
        result["collection"] = sys.modules["faultline"].collect(engine, on_missing="warn")
    print("result", json.dumps(result), flush=True)
""" % PROMPT


def make_model(folder, name):
    """Random weights. `biases`: products whose weights are 0 give their biases alone, so that what every norm reads is a sum of the
    same few numbers in any engine."""
    import torch
    import transformers

    sizes = dict(vocab_size=96, hidden_size=HIDDEN, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
                 max_position_embeddings=64, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, dtype="float32")
    torch.manual_seed(0)
    if name == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))
    elif name == "mixture":
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, decoder_sparse_step=1))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, attention_bias=True, mlp_bias=True))
        with torch.no_grad():
            for path, module in model.named_modules():
                if path.endswith(("o_proj", "down_proj")):
                    module.weight.zero_()
                    module.bias.normal_(0, 1)
                elif path.endswith("norm"):
                    module.weight.normal_(1, 0.1)
    model.float().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = make_model(tmp_path_factory.mktemp("model") / name, name)
        return made[name]

    return get


def run(tmp_path, model, path, recipe, *actions, steps=1, launcher=(), alone=True, **options):
    script, recipe_file = tmp_path / "script.py", tmp_path / "recipe.json"
    script.write_text(SCRIPT)
    if alone:
        options = {**{name: value for name, value in ALONE.items() if name != "environment"}, **options}
    variables = {**variables_of(path), **(ALONE["environment"] if alone else {}), "FAULTLINE_TOTAL_STEPS": str(steps), "OUTPUT": str(tmp_path / "output")}
    if recipe is not None:
        recipe_file.write_text(json.dumps(recipe))
        variables |= {"FAULTLINE_RECIPE": str(recipe_file), "FAULTLINE_EVIDENCE": str(tmp_path / "evidence")}
    options = {"enforce_eager": True, "actions": [action if isinstance(action, tuple) else (action,) for action in actions], **options}
    return subprocess.run([sys.executable, *launcher, script, model, json.dumps(options)], env=variables, capture_output=True, text=True, timeout=LIMIT)


def notes_of(result):
    [process] = result["collection"]["processes"]
    return process["notes"]["aqn"]


def codes_of(result):
    return [one["code"] for one in result["collection"]["complaints"]]


LINEAR = {"seed": 7, "aqn": {"schedule": "linear", "sigma_start": 0.2, "sigma_end": 0.04}}
QUERY_KEY_NORMS = 4 * LAYERS + 1


def test_noise_without_faults_follows_the_weights_that_come_from_elsewhere(tmp_path, models, installed):
    """A dense model with norms of queries and keys: all of them. Weights come one by one, at once, and by vLLM's own reload."""
    done = run(tmp_path, models("qwen3"), installed, LINEAR, ("send", "single"), "ask", ("send", "single"), "ask", ("send", "whole"), "ask", "reload_weights", "ask", steps=5)
    result = result_of(done)
    assert codes_of(result) == [] and result["collection"]["rules"] == {} and len(set(result["asked"])) == 4
    # Nobody has sampled from the weights that the first ones replace: they belong to step 0.
    for step, distances in enumerate(result["distances"]):
        sigma = 0.2 - 0.04 * step
        assert len(distances) == QUERY_KEY_NORMS and all(0.6 * sigma < distance < 1.4 * sigma for distance in distances.values()), (step, distances)
    notes = notes_of(result)
    assert notes["asked"] == notes["norms"] == QUERY_KEY_NORMS and notes["step_from"] == "weight_updates" and notes["step"] == 3 and notes["steps"] == 4
    assert notes["sigmas"]["first"] == notes["sigmas"]["highest"] == 0.2 and notes["sigmas"]["last"] == pytest.approx(0.08)


def test_the_step_of_a_trainer_in_the_same_process_moves_noise_and_faults(tmp_path, models, installed):
    both = {**rule({"operator": "matmul"}, {"kind": "relative_gaussian", "strength": 0.1}, schedule={"kind": "linear", "sigma_start": 0.1, "sigma_end": 0.3}), **LINEAR}
    result = result_of(run(tmp_path, models("qwen3"), installed, both, "train", "overwrite_norm", steps=3), code=3)
    [process] = result["collection"]["processes"]
    notes = process["notes"]["aqn"]
    assert notes["step_from"] == "trainer" and notes["step"] == 2 and notes["steps"] == 3 and process["report"]["step"] == 2
    assert {round(row["strength"], 6) for row in process["report"]["rows"]} == {0.3}
    for step, distances in enumerate(result["distances"]):
        assert all(0.6 * (0.2 - 0.08 * step) < distance < 1.4 * (0.2 - 0.08 * step) for distance in distances.values()), (step, distances)
    # Then a norm was written past load_weights, and the whole process ends with status 3.
    assert codes_of(result) == ["noise_overwritten"] and notes["norms"] == QUERY_KEY_NORMS - 1


def test_of_a_mixture_only_the_norms_that_the_router_reads_carry_noise(tmp_path, models, installed):
    result = result_of(run(tmp_path, models("mixture"), installed, LINEAR, ("send", "whole"), ("faultline_begin_step", 1), "ask", steps=5))
    [distances] = result["distances"]
    assert {name for name, distance in distances.items() if distance > 0} == {f"model.layers.{layer}.post_attention_layernorm.weight" for layer in range(LAYERS)}
    assert notes_of(result)["asked"] == LAYERS and notes_of(result)["step_from"] == "call" and codes_of(result) == []


def test_a_schedule_that_nobody_moves_ends_the_documented_command_with_3(tmp_path, models, installed):
    """The command that was accepted once: 116 steps of global_decay, sigma 0 throughout."""
    decay = {"aqn": {"schedule": "global_decay", "sigma_end": 0.01}}
    done = run(tmp_path, models("qwen3"), installed, decay, "ask", "ask", steps=116, launcher=("-m", "faultline"), alone=False)
    result = result_of(done, code=3)
    assert codes_of(result) == ["noise_silent", "still"] and notes_of(result)["step_from"] == "nobody" and "sigma was 0" in done.stderr
    [left] = [entry for entry in entries_in(tmp_path / "evidence") if entry["work"]]
    assert left["notes"]["aqn"]["sigmas"] == {"first": 0.0, "last": 0.0, "highest": 0.0}


# --- the input of norms -----------------------------------------------------------------------------------------------
ZONE = rule({"module": "rmsnorm", "surface": "input"}, {"kind": "deadzone", "threshold": 0.2})


@pytest.fixture(scope="module")
def hugging_face(models):
    """What Hugging Face's norms read, clean and under the rule, and what they give: bits by module."""
    import torch
    import transformers

    import faultline
    from clients_aqn_worker import bits

    model = transformers.LlamaForCausalLM.from_pretrained(models("biases"), dtype=torch.float32).eval()
    norms = {path: module for path, module in model.named_modules() if path.rsplit(".", 1)[-1].endswith("norm")}
    came, read, gave = {}, {}, {}
    with faultline.plan(ZONE, model=model) as plan, torch.no_grad():
        for path, module in norms.items():
            module.register_forward_pre_hook(lambda _, arguments, path=path: came.setdefault(path, bits(arguments[0][0])) and None, prepend=True)
            module.register_forward_pre_hook(lambda _, arguments, path=path: read.setdefault(path, bits(arguments[0][0])) and None)
            module.register_forward_hook(lambda _, __, output, path=path: gave.setdefault(path, bits(output[0])) and None)
        with faultline.phase("rollout"):
            model(torch.tensor([PROMPT]))
    return {"came": came, "read": read, "gave": gave, "ledger": {row["place"]: row["ledger"] for row in plan.report["rows"]}}


def tensor(bits):
    import torch

    return torch.tensor(bits, dtype=torch.int32).view(torch.float32)


def test_a_rule_on_the_input_of_norms_acts_on_the_sum_as_in_hugging_face(tmp_path, models, installed, hugging_face):
    """Equal to the bit, at each of the 5 norms: what the rule got (the addition of the same two numbers, rounded once, in both
    engines), what the norm computed with, which is what the rule made of it, and what goes on as residual (the clean sum). The norm
    itself is vLLM's own kernel, which may add its squares in another order: a few steps of fp32."""
    import torch

    result = result_of(run(tmp_path, models("biases"), installed, ZONE, "watch_norms", "ask", "watched"))
    assert codes_of(result) == [] and set(result["watched"]) == set(hugging_face["came"]) and len(result["watched"]) == 2 * LAYERS + 1
    for path, seen in result["watched"].items():
        parts = [tensor(part) for part in seen["parts"]]
        is_first = path == "model.layers.0.input_layernorm"
        assert len(parts) == (1 if is_first else 2)
        total = parts[0] if is_first else parts[0] + parts[1]
        assert torch.equal(total, tensor(hugging_face["came"][path])), path
        assert seen["read"] == [hugging_face["read"][path]] and seen["read"][0] != hugging_face["came"][path], path
        assert is_first or seen["gave"][1] == hugging_face["came"][path], path
        gave, expected = tensor(seen["gave"][0]), tensor(hugging_face["gave"][path])
        assert ((gave - expected).abs() <= expected.abs() * 2**-18).all(), path


def test_compiled_code_gives_the_same_sums_to_the_rule(tmp_path, models, installed, hugging_face):
    """Its norms are generated code; the ledger counts what the rule met and zeroed in the prompt and in one token after it."""
    eager = result_of(run(tmp_path, models("biases"), installed, ZONE, "ask"))
    compiled = result_of(run(tmp_path, models("biases"), installed, ZONE, "ask", enforce_eager=False))
    ledgers = [{row["place"]: row["ledger"] for row in result["collection"]["processes"][0]["report"]["rows"]} for result in (eager, compiled)]
    assert ledgers[0] == ledgers[1] and set(ledgers[0]) == set(hugging_face["ledger"])
    for path, ledger in ledgers[0].items():
        assert ledger["calls"] == 2 and ledger["zeroed"] > hugging_face["ledger"][path]["zeroed"] > 0 and ledger["elements"] == (len(PROMPT) + 1) * HIDDEN


def test_compiled_code_that_vllm_kept_of_a_clean_run_does_not_serve_the_plan_nor_the_other_way_round(tmp_path, models, installed, monkeypatch):  # noqa: F811
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    zone = rule({"module": "layer_output", "layer": 1}, {"kind": "deadzone", "threshold": 0.3})
    results = []
    for place, recipe in (("clean", None), ("faulty", zone), ("again", None)):
        (tmp_path / place).mkdir()
        results.append(result_of(run(tmp_path / place, models("qwen3"), installed, recipe, "ask", enforce_eager=False)))
    clean, faulty, again = results
    assert clean["asked"] == again["asked"] != faulty["asked"]
    assert faulty["collection"]["complaints"] == [] and faulty["collection"]["rules"]["noise"]["calls"] > 0
