"""`python -m faultline.selftest --device npu:0`: which kinds of fault a device computes as the CPU does. See arithmetic.py."""

import sys

from faultline.arithmetic import main

if __name__ == "__main__":
    sys.exit(main())
