"""Compiles the fault kernels as HIP for AMD GPUs, every warning an error; nothing is run. The CUDA sources are compiled as they
are, with CUDA's words from src/numeric/cuda/hip_shim. Debian's hipcc 5.2 (apt install hipcc) is what this has been tried with.

    python tests/compile_hip.py                  every kernel, for wavefronts of 64 lanes (gfx90a, gfx906) and of 32 (gfx1030)
    python tests/compile_hip.py digest           some
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
ARCHITECTURES = ["gfx90a", "gfx906", "gfx1030"]
SHIM = ROOT / "src/numeric/cuda/hip_shim"
# What cmake/hip.cmake compiles with, too. clang warns of more than nvcc: loops that it could not unroll, sums of two enumerations.
OPTIONS = (SHIM / "options").read_text(encoding="utf-8").split()


def refuses_another_torch():
    """`./dev build rocm` where torch is no ROCm build: a sentence before anything is compiled."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DFAULTLINE_HIP=ON", f"-DFAULTLINE_PYTHON={sys.executable}"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return done.returncode != 0 and "is no ROCm build" in " ".join(done.stderr.split())


def main():
    wanted = sys.argv[1:]
    sources = [path for path in sorted((ROOT / "src/numeric/cuda").glob("*.cu")) if not wanted or path.stem in wanted]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            command = ["hipcc", "-x", "hip", *(f"--offload-arch={one}" for one in ARCHITECTURES), *OPTIONS, "-include", SHIM / "cuda_runtime.h", f"-I{SHIM}", f"-I{ROOT / 'src'}", "-c", source, "-o", f"{folder}/kernel.o"]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
            failed += done.returncode != 0
            print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {source.relative_to(ROOT)} for {', '.join(ARCHITECTURES)}", flush=True)
            if done.returncode != 0:
                print(done.stderr)
    if importlib.util.find_spec("torch") and not (pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib/libtorch_hip.so").exists():
        refused = refuses_another_torch()
        failed += not refused
        print(f"{'ok  ' if refused else 'FAIL'} the build for ROCm refuses a torch that is no ROCm build")
    print(f"{len(sources)} sources, {failed} failed")
    return 1 if failed or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
