"""vLLM: nothing in the script names the plan; `python -m faultline` and vLLM's plug-in do.

    pip install scikit-build-core ninja && pip install . --no-build-isolation          # in vLLM's environment
    python -m faultline --recipe examples/noise.yaml examples/vllm_generate.py [MODEL]"""
import sys

import vllm

if __name__ == "__main__":
    engine = vllm.LLM(sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M-Instruct", enforce_eager=True, max_model_len=256, dtype="bfloat16", gpu_memory_utilization=0.5)
    [answer] = engine.generate(["The capital of France is"], vllm.SamplingParams(temperature=0, max_tokens=12))
    print(answer.outputs[0].text)
    if "faultline" in sys.modules:
        print(sys.modules["faultline"].collect(engine)["rules"])
