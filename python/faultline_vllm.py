"""vLLM's way in: the entry point `vllm.general_plugins`, called in the main process, the engine core and every worker before
the model is loaded. It stands outside the package because vLLM logs a plug-in whose import fails and goes on without it;
what fails inside register() stops the process. Without FAULTLINE_RECIPE and FAULTLINE_TRACE it does nothing."""

import os


def register() -> None:
    if not (os.environ.get("FAULTLINE_RECIPE") or os.environ.get("FAULTLINE_TRACE")):
        return
    from vllm.platforms import current_platform

    current_platform.import_kernels()  # the plan looks for vLLM's operators as soon as the package is imported
    from faultline import vllm_plugin

    vllm_plugin.register()
