#!/usr/bin/env bash
# verl's main_ppo on a GPU machine without a network, from the parts of tests/pack_gpu_clients.py to one archive of records: installs what
# is missing, makes the model that all begin with, runs the arms of tests/verl_arms.py (none without `--`) and, where asked for, two steps of a 7B
# shape (lora), our own trainer on the same problems (ours). A second call goes on where the first ended. PARTS: all parts, install.sh and SHA256SUMS
# in one folder; DATA: train.parquet and test.parquet.
#
#   bash verl_on_gpu.sh PARTS DATA WORK OUT SECONDS [lora] [ours] [-- ARGUMENTS OF verl_arms.py run]
#
# The folder above this file's has python/ and tests/; it or build/ or $LIBRARY has libfaultline.so and faultline.
set -uo pipefail
began=$SECONDS
parts=$(realpath "$1") data=$(realpath "$2") work=$3 out=$4 limit=$5
shift 5
lora="" ours="" arms=""
[ "${1:-}" = lora ] && lora=1 && shift
[ "${1:-}" = ours ] && ours=1 && shift
[ "${1:-}" = -- ] && arms=1 && shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
library=${LIBRARY:-$root}
[ -f "$library/libfaultline.so" ] || library=$root/build
PYTHON=${PYTHON:-python3}
runs=${RUNS:-arms} # another folder for a rehearsal
mkdir -p "$work/$runs" "$work/ours" "$out"
say() { printf '==> %4d s: %s\n' $((SECONDS - began)) "$*"; }
fail() { say "$*"; exit 1; }

warm() { "$PYTHON" -c 'import importlib, sys
for name in sys.argv[1:]:
    try: importlib.import_module(name)
    except Exception as error: print(name, error)' "$@" >/dev/null 2>&1 & } # files come into memory while something else is waited for
warm torch transformers datasets
[ -f "$work/installed" ] || { bash "$parts/install.sh" "$parts" "$work" && touch "$work/installed" || fail "the parts could not be installed"; }
say "installed"
# Where packages lie that must go before the parts' (an engine for CPUs, in a rehearsal)
export PYTHONPATH="${BEFORE_PARTS:+$BEFORE_PARTS:}$work/site:$root/python:$root/tests" FAULTLINE_LIBRARY="$library/libfaultline.so" OMP_WAIT_POLICY=PASSIVE PYTHONUNBUFFERED=1
libraries=$("$PYTHON" -c 'import glob, os, torch; lib = os.path.dirname(torch.__file__); print(":".join([lib + "/lib", *glob.glob(os.path.dirname(lib) + "/nvidia/*/lib")]))')
warm ray verl.trainer.main_ppo verl.workers.engine_workers transfer_queue
warm vllm vllm.v1.worker.gpu_model_runner verl.workers.rollout.vllm_rollout.vllm_async_server
program=$work/faultline # the program as a command of its own, with torch's libraries
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s:%s exec %s "$@"\n' "$library" "$libraries" "$library/faultline" >"$program" && chmod +x "$program"

device=${DEVICE:-cuda}
if [ -z "${MODEL:-}" ]; then
  [ -f "$work/model" ] || { "$PYTHON" "$root/tests/verl_beside_ours.py" start "$work/start" --program "$program" --gguf "$work/model.gguf" --device "$device" >"$work/model.new" && mv "$work/model.new" "$work/model" || fail "no model"; }
  MODEL=$(cat "$work/model")
fi
say "model $MODEL"
collect() {
  cp "$work/start/start.json" "$work/$runs/start.json" 2>/dev/null
  (cd "$work" && tar cz $(ls -d "$runs"/*.json "$runs"/*/*.json "$runs"/*/*.jsonl "$runs"/*/evidence "$runs"/*/log.txt ours/*.json ours.log 2>/dev/null)) >"$work/records.tar.gz" && cp "$work/records.tar.gz" "$out/"
}
trap 'collect; say "collected"' EXIT
trap 'exit 1' TERM INT
if [ -n "$lora" ] && [ ! -f "$work/ours/lora-7b.json" ]; then # alone: what it takes of the device is measured
  "$PYTHON" "$root/tests/verl_beside_ours.py" lora "$work/ours" --program "$program" --gguf "$work/model.gguf" --device "$device" ${LORA:-} 2>&1
  say "lora"
fi
if [ -n "$ours" ]; then
  "$PYTHON" "$root/tests/verl_beside_ours.py" ours "$work/ours" --program "$program" --model "$MODEL" --data "$data" --device "$device" ${OURS:-} >"$work/ours.log" 2>&1 & # while the arms start, the GPU has nothing to do
fi
[ -n "$arms" ] && "$PYTHON" "$root/tests/verl_arms.py" run "$work/$runs" --model "$MODEL" --data "$data" --device "$device" --limit $((limit - SECONDS + began)) --archive "$out/arms.tar.gz" "$@"
say "arms"
[ -n "$arms" ] || wait
[ -n "$ours" ] && cat "$work/ours.log"
for folder in "$work/$runs"/*/; do
  [ -f "$folder/record.json" ] && "$PYTHON" -c 'import json, sys; r = json.load(open(sys.argv[1])); s = [round(x.get("timing_s/step", 0), 1) for x in r["steps"]]; print(r["arm"], r["seed"], r["exit"], "steps", len(s), "seconds", s, [(p["role"], p["ended"], {n: (q["sites"], q["calls"], q["exact"]) for n, q in p["phases"].items()}, len(p["complaints"])) for p in r["processes"]])' "$folder/record.json"
done
