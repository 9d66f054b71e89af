"""vLLM, verl and Ray in parts that can be carried to a GPU machine without a network: Python 3.12 with torch 2.11.0+cu130, triton,
transformers, pyarrow, pandas, peft, numpy and pytest there, a Hopper GPU. verl wants older transformers than some machines have; it runs
with 5.17, so packages are taken by name and nobody's requirements are asked.

    python tests/pack_gpu_clients.py FOLDER [--model FILE]     needs uv, xz, strip and PyPI; FOLDER/carry1, carry2, …

On the other machine, once all parts are in one folder: bash carry1/install.sh FOLDER_OF_PARTS DESTINATION, and from then on
PYTHONPATH=DESTINATION/site. Parts are of one stream each (packages; the model's file), so a part that is missing or torn is seen by its sum."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

PART_MIB = 44
PYTHON = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34")
ENGINES = "vllm==0.22.1 verl==0.9.1 TransferQueue==0.1.11 ray==2.60.0 tensordict==0.10.0"
# What they import for a model of text, from vLLM's plug-ins to verl's rewards.
COMPANY = """
    aiohappyeyeballs==2.6.2 aiohttp==3.14.1 aiosignal==1.4.0 annotated-doc==0.0.4 annotated-types==0.7.0 anthropic==2.10.0 antlr4-python3-runtime==4.9.3
    apache-tvm-ffi==0.1.9 astor==0.8.1 blake3==1.0.8 cachetools==7.1.4 cbor2==6.1.2 cloudpickle==3.1.2 codetiming==1.4.0
    compressed-tensors==0.15.0.1 depyf==0.20.0 dill==0.4.1 diskcache==5.6.3 distro==1.9.0 docstring-parser==0.18.0 einops==0.8.2 fastapi==0.136.3 frozenlist==1.8.0
    gguf==0.19.0 humming-kernels==0.1.2 httpx-sse==0.4.3 hydra-core==1.3.2 ijson==3.5.0 interegular==0.3.3 jiter==0.15.0 jmespath==1.1.0 lark==1.2.2 llguidance==1.7.6
    lm-format-enforcer==0.11.3 loguru==0.7.3 mcp==2.3.0 mistral-common==1.11.3 model-hosting-container-standards==0.1.16 msgpack==1.2.4 msgspec==0.21.1 multidict==6.7.1 omegaconf==2.3.0 openai==2.41.1
    openai-harmony==0.0.8 opentelemetry-api==1.42.1 opentelemetry-sdk==1.42.1 opentelemetry-semantic-conventions==0.63b1 orjson==3.13.0
    outlines-core==0.2.14 partial-json-parser==0.2.1.1.post7 prometheus-client==0.25.0 prometheus-fastapi-instrumentator==8.0.0
    propcache==0.5.2 py-cpuinfo==9.0.0 pybase64==1.4.3 pybind11==3.1.0 pycountry==26.2.16 pydantic==2.13.4 pydantic-core==2.46.4
    pydantic-extra-types==2.11.1 pydantic-settings==2.16.3 pyelftools==0.33 pyjwt==2.15.1 pylatexenc==2.10 python-dotenv==1.2.4 python-json-logger==4.1.0 python-multipart==0.0.32 pyvers==0.2.3 pyzmq==27.1.0
    setproctitle==1.3.7 sse-starlette==3.7.0 starlette==1.3.0 supervisor==4.3.0 torchdata==0.11.0 typing-inspection==0.4.2 uvicorn==0.49.0 uvloop==0.22.1 watchfiles==1.2.0
    xgrammar==0.2.2 yarl==1.24.2""".split()
# What the other machine may have: its own copies win, these are last on the path.
FALLBACK = """
    accelerate==1.15.0 anyio==4.13.0 attrs==26.1.0 certifi charset-normalizer==3.4.7 click==8.4.1 datasets==5.2.0 filelock fsspec h11==0.16.0 httpcore==1.0.9
    httpx==0.28.1 idna==3.18 importlib-metadata jsonschema==4.26.0 jsonschema-specifications==2025.9.1 multiprocess ninja==1.13.0 nvidia-ml-py==13.610.43
    packaging==26.2 peft pillow==12.2.0 protobuf==6.33.6 psutil==7.2.2 pyyaml==6.0.3 referencing==0.37.0 regex==2026.5.9 requests==2.34.2 rpds-py==2026.5.1 sentencepiece
    six==1.17.0 sniffio==1.3.1 tabulate==0.10.0 tiktoken tqdm==4.68.2 urllib3==2.7.0 xxhash zipp""".split()
# A Hopper GPU needs FlashAttention 3 alone; the rest serves other Pythons, web pages, Java, C++ programs and libraries of Ray that nobody imports.
DROP = re.compile(
    r"^vllm/(vllm-rs$|vllm_flash_attn/_vllm_fa2_C|third_party/deep_gemm/(include/|.*cpython-(310|311|313|314))|entrypoints/serve/instrumentator/static/)"
    r"|^ray/(jars/|cpp/|rllib/|serve/|core/src/ray/thirdparty|dashboard/client/|data/_internal/datasource/lerobot)"
    r"|^(bin|tests|scripts|recipe|tutorial|verl/models/mcore)/|(^|/)__pycache__/|\.(pyi|a|jpg|map)$|^(?!anyio)[^/]*/(.*/)?tests?/"
)
HEADERS_OF = ("vllm/", "humming")  # compiled against on the way; nobody else's are
START = '''"""Read by every Python that has this folder on its path: what the machine has comes first, and FlashInfer is not in here."""
import os, sys
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_fallback"))
'''
INSTALL = """#!/usr/bin/env bash
# On the GPU machine: install.sh FOLDER_OF_PARTS DESTINATION; then PYTHONPATH=DESTINATION/site
set -euo pipefail
mkdir -p "$2"
(cd "$1" && sha256sum -c --quiet SHA256SUMS)
cat "$1"/packages.part.* | xz -dc -T0 | tar x -C "$2"
if ls "$1"/model.part.* >/dev/null 2>&1; then cat "$1"/model.part.* >"$2/model.gguf"; fi
"""


def install(uv, target, packages):
    subprocess.run([uv, "pip", "install", "-q", "--no-deps", "--link-mode", "copy", "--target", target, *PYTHON, "--python", sys.executable, *packages], check=True)


def trim(site):
    for path in [path for path in site.rglob("*") if path.is_file() or path.is_symlink()]:
        name = str(path.relative_to(site)).removeprefix("_fallback/")
        is_header = name.endswith((".h", ".hpp")) and not name.startswith(HEADERS_OF)
        is_large_data = ("pycountry/locales/" in name) or ("mistral_common/data/" in name and path.stat().st_size > 200_000)
        if DROP.search(name) or is_header or is_large_data:
            path.unlink()
    binaries = [*site.glob("xgrammar/**/*.so"), *site.glob("ray/**/*.so"), site / "ray/core/src/ray/gcs/gcs_server", site / "ray/core/src/ray/raylet/raylet"]
    for binary in binaries:
        subprocess.run(["strip", "--strip-unneeded", binary], check=True)
    for folder in sorted((path for path in site.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def parts(out, model):
    """Each part in a carry folder of its own; sums and the script in the first."""
    made = out / "made"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    subprocess.run(f"tar c -C '{out}' site | xz -T2 -4 | split -b {PART_MIB}M -d - '{made}/packages.part.'", shell=True, check=True, executable="/bin/bash")
    if model:
        subprocess.run(["split", "-b", f"{PART_MIB}M", "-d", model, made / "model.part."], check=True)
    sums = subprocess.run("sha256sum *.part.*", shell=True, check=True, cwd=made, capture_output=True, text=True).stdout
    for number, part in enumerate(sorted(made.iterdir()), start=1):
        folder = out / f"carry{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        part.rename(folder / part.name)
    (out / "carry1/SHA256SUMS").write_text(sums)
    (out / "carry1/install.sh").write_text(INSTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, help="a file to carry beside the packages, such as a GGUF model")
    parser.add_argument("--uv", default="uv")
    wish = parser.parse_args()
    site = wish.folder.resolve() / "site"
    shutil.rmtree(site, ignore_errors=True)
    install(wish.uv, site / "_fallback", FALLBACK)
    install(wish.uv, site, [*ENGINES.split(), *COMPANY])
    trim(site)
    (site / "sitecustomize.py").write_text(START)
    parts(wish.folder.resolve(), wish.model)


if __name__ == "__main__":
    main()
