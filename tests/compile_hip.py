"""Compiles the fault kernels as HIP for AMD GPUs, every warning an error; nothing is run. The CUDA sources are compiled as they
are, with CUDA's words from src/numeric/cuda/hip_shim. Debian's hipcc 5.2 (apt install hipcc) is what this has been tried with.

    python tests/compile_hip.py                  every kernel, for wavefronts of 64 lanes (gfx90a, gfx906) and of 32 (gfx1030)
    python tests/compile_hip.py digest           some
"""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
ARCHITECTURES = ["gfx90a", "gfx906", "gfx1030"]
SHIM = ROOT / "src/numeric/cuda/hip_shim"
# clang warns of more than nvcc: loops that it could not unroll, sums of two enumerations.
FLAGS = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-pass-failed", "-Wno-deprecated-enum-enum-conversion", "-ffp-contract=off"]


def main():
    wanted = sys.argv[1:]
    sources = [path for path in sorted((ROOT / "src/numeric/cuda").glob("*.cu")) if not wanted or path.stem in wanted]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            command = ["hipcc", "-x", "hip", *(f"--offload-arch={one}" for one in ARCHITECTURES), *FLAGS, "-include", SHIM / "cuda_runtime.h", f"-I{SHIM}", f"-I{ROOT / 'src'}", "-c", source, "-o", f"{folder}/kernel.o"]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
            failed += done.returncode != 0
            print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {source.relative_to(ROOT)} for {', '.join(ARCHITECTURES)}", flush=True)
            if done.returncode != 0:
                print(done.stderr)
    print(f"{len(sources) - failed} passed, {failed} failed")
    return 1 if failed or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
