"""verl's way in: `VERL_USE_EXTERNAL_MODULES=faultline_verl`, or the entry point `verl.plugins`. verl imports this module in its
workers and goes on where the import fails, so a plan that cannot be armed ends the process here, with a sentence and
status 64. Without FAULTLINE_RECIPE nothing happens. What follows is faultline.verl_plugin."""

import os
import sys

EXIT_USAGE = 64


def arm() -> None:
    if not os.environ.get("FAULTLINE_RECIPE"):
        return
    try:
        from faultline import verl_plugin

        verl_plugin.arm()
    except (ImportError, ValueError) as error:
        print(f"faultline: the plan could not be armed, and verl would have gone on without it: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_USAGE)


arm()
