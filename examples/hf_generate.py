"""Hugging Face: a generation without and with the plan.

    PYTHONPATH=python python examples/hf_generate.py [MODEL]"""  # a name or a folder; offline: build/faultline convert-model default FOLDER
import pathlib
import sys

import transformers

import faultline

folder = sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M-Instruct"
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
question = tokenizer("The capital of France is", return_tensors="pt")
print("clean: ", tokenizer.decode(model.generate(**question, max_new_tokens=12, do_sample=False)[0]))
with faultline.plan(pathlib.Path(__file__).with_name("noise.yaml"), model=model) as plan:
    print("faulty:", tokenizer.decode(model.generate(**question, max_new_tokens=12, do_sample=False)[0]))
print(*plan.report["log"], f"{len(plan.report['rows'])} sites, {plan.report['rules'][0]['calls']:.0f} calls", sep="\n")
