"""What is particular to Ascend NPUs under torch_npu, vLLM-Ascend and verl. A weight that was packed into the matrix units' own layout
(FRACTAL_NZ) still shows the sizes of its matrix, but an element is no longer where its strides say: a fault on the weight would
hit others than it counts. Such weights are refused, with the setting that leaves them unpacked."""

from __future__ import annotations

import os
import sys

import torch

FRACTAL_NZ = 29  # aclFormat of the packed layout
REMEDY = "set VLLM_ASCEND_ENABLE_NZ=0 before the engine starts, as verl does, or fault the operator's output"


def packed_weights(model: torch.nn.Module) -> list[str]:
    """Names of the parameters that lie packed. Nothing is packed where torch_npu was not imported."""
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is None or not hasattr(torch_npu, "get_npu_format"):
        return []
    on_device = [(name, parameter) for name, parameter in model.named_parameters() if parameter.device.type not in ("cpu", "meta")]
    return [name for name, parameter in on_device if torch_npu.get_npu_format(parameter.detach()) == FRACTAL_NZ]


def weight_rules(recipe: dict) -> list[str]:
    """Names of the resolved recipe's rules that fault weights."""
    return [rule["name"] for rule in recipe.get("faults", []) if rule.get("where", {}).get("surface") == "weight"]


def refuse_packed_weights(model: torch.nn.Module, recipe: dict) -> None:
    """Raises ValueError where a rule wants weights and some lie packed."""
    rules = weight_rules(recipe)
    if rules and (packed := packed_weights(model)):
        more = f" and {len(packed) - 1} more" if len(packed) > 1 else ""
        raise ValueError(f"rule '{rules[0]}': the weight {packed[0]}{more} lies packed (FRACTAL_NZ), and a fault would hit other elements than it counts; {REMEDY}")


def check_engine(recipe: dict) -> None:
    """Before vLLM-Ascend loads a model: it packs the weights of linears afterwards unless it is told not to. Raises ValueError."""
    rules = weight_rules(recipe)
    setting = os.environ.get("VLLM_ASCEND_ENABLE_NZ")
    if rules and setting != "0":
        raise ValueError(f"rule '{rules[0]}' faults weights, and VLLM_ASCEND_ENABLE_NZ is {setting or 'not set'}: vLLM-Ascend packs them (FRACTAL_NZ) when they are loaded; {REMEDY}")
