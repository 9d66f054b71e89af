"""TRL: two GRPO steps in which rollout and training compute under the plan. The ledger is in the trainer's log.

    PYTHONPATH=python python examples/trl_grpo.py [MODEL]"""  # a name or a folder; offline: build/faultline convert-model default FOLDER
import pathlib
import sys

import datasets
import trl

import faultline

prompts = datasets.Dataset.from_dict({"prompt": ["Count to five:", "Name a colour:"] * 4})
settings = trl.GRPOConfig(output_dir="runs/trl", per_device_train_batch_size=4, num_generations=2, max_completion_length=8, max_steps=2, logging_steps=1,
                          report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False)
trainer = trl.GRPOTrainer(model=sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M-Instruct", args=settings, train_dataset=prompts,
                          reward_funcs=lambda completions, **_: [float(len(text)) for text in completions])
with faultline.plan(pathlib.Path(__file__).with_name("noise.yaml"), model=trainer.model, total_steps=2) as plan, faultline.follow(trainer, plan):
    trainer.train()
print(*plan.report["log"], plan.report["forwards"], sep="\n")
