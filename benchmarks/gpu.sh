#!/usr/bin/env bash
# Every proof that needs an NVIDIA GPU, in under nine minutes: conformance of every profile, parity
# with PyTorch, decode and prefill beside transformers with torch.compile, launches and the host's
# time per step, compute-sanitizer. Writes one JSON file for each part into a folder (gpu-proofs, or
# the first argument) and all of them into summary.json. A part that fails or takes too long is
# written down as such, and the others go on. Ends with 3, and nothing measured, without a device.
set -uo pipefail
cd "$(dirname "$0")"
out=$(mkdir -p "${1:-../gpu-proofs}" && cd "${1:-../gpu-proofs}" && pwd)
rm -f "$out"/*.json
python=${PYTHON:-python}
began=$SECONDS
limit=530

# part NAME SECONDS COMMAND...: the command's exit status goes into NAME.status.json.
part() {
    local name=$1 most=$2 started=$SECONDS status left
    shift 2
    left=$((limit - (SECONDS - began)))
    [ "$most" -gt "$left" ] && most=$left
    if [ "$most" -le 5 ]; then
        status=124
    else
        timeout "$most" "$@" >"$out/$name.log" 2>&1
        status=$?
    fi
    printf '{"status": %d, "seconds": %d}\n' "$status" $((SECONDS - started)) >"$out/$name.status.json"
    echo "$name: status $status, $((SECONDS - started)) s"
    [ "$status" -ne 0 ] && tail -n 3 "$out/$name.log"
    return "$status"
}

part device 60 "$python" -m measuring.gpu device "$out/device.json"
case $? in
    0) ;;
    3) exit 3 ;;
    *) echo "the device does not work: $out/device.log" >&2; exit 1 ;;
esac

part parity 60 "$python" -m measuring.gpu parity "$out/parity.json"
for model in gpt2 llama-1b llama-8b; do
    part "theirs-$model" 60 "$python" -m measuring.gpu theirs "$out/theirs-$model.json" "random:$model"
    part "ours-$model-bf16" 60 "$python" -m measuring.gpu model "$out/ours-$model-bf16.json" \
        "random:$model" dtype=bf16 cache_dtype=bf16
    part "ours-$model-int4" 60 "$python" -m measuring.gpu model "$out/ours-$model-int4.json" \
        "random:$model" dtype=bf16 cache_dtype=bf16 quant=int4
done
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        part "sanitizer-$tool" 40 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$python" -m measuring.gpu launches "$out/sanitizer-$tool.json" random:gpt2-tiny
    done
fi
# Last, with all the time that is left: thousands of small programs.
part conformance $((limit - (SECONDS - began))) ptir-conformance run --backend cupy \
    --jobs "$(nproc)" --json "$out/conformance.json"

"$python" - "$out" <<'PYTHON'
import json
import statistics
import sys
from pathlib import Path

out = Path(sys.argv[1])
found = {p.stem: json.loads(p.read_text()) for p in sorted(out.glob("*.json")) if p.stem != "conformance"}
copy = found["device"]["copy_bytes_per_second"]
table = {}
for name, row in found.items():
    if not name.startswith("ours-") or name.endswith(".status"):
        continue
    decode = statistics.median(row["decode_tokens_per_second"])
    other = found.get("theirs-" + name.removeprefix("ours-").rpartition("-")[0])
    table[name] = {
        "share_of_copy_bandwidth": decode * (row["weight_bytes_per_step"] or 0) / copy,
        "decode_over_theirs": other and decode / statistics.median(other["decode_tokens_per_second"]),
        "prefill_over_theirs": other
        and statistics.median(row["prefill_tokens_per_second"])
        / statistics.median(other["prefill_tokens_per_second"]),
        "host_microseconds_per_step": 1e6 * row["host_seconds_per_step"],
        "launches_per_step": row["launches_per_step"],
    }
(out / "summary.json").write_text(json.dumps({"table": table, "parts": found}, indent=1) + "\n")
print(json.dumps(table, indent=1))
PYTHON
