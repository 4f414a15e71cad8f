#!/usr/bin/env bash
# Every proof that needs an NVIDIA GPU, in under nine minutes:
#
#     benchmarks/gpu.sh [FOLDER [PART...]]
#
# device       what it is, and the bandwidth of its copies
# parity       logits beside PyTorch's
# sanitizer    compute-sanitizer over a small model, in f32 and bf16, where it is installed
# gpt2 llama-1b llama-8b    decode and prefill in bf16 and int4, launches and the host's time per step
# conformance  every profile; a second call goes on where the first one stopped
# theirs       the same models by transformers with torch.compile
#
# Without PART everything is done, in that order; with some, only these, beside what FOLDER has. Writes
# JSON for each part into FOLDER (gpu-proofs) and all of it into summary.json. A part that fails or
# takes too long is written down as such and the others go on; the exit code is 1 then. Ends with 3,
# and nothing measured, without a device. PYTHON is the interpreter that has everything installed.
set -uo pipefail
mkdir -p "${1:-gpu-proofs}"
out=$(cd "${1:-gpu-proofs}" && pwd)
python=$(command -v "${PYTHON:-python}" || command -v python3)
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
cd "$(dirname "$0")"
models=(gpt2 llama-1b llama-8b)
known=(device parity sanitizer "${models[@]}" conformance theirs)
if [ $# -gt 1 ]; then wanted=("${@:2}"); else wanted=("${known[@]}"); rm -f "$out"/*.json; fi
for name in "${wanted[@]}"; do
    [[ " ${known[*]} " == *" $name "* ]] || { echo "no part is called $name: ${known[*]}" >&2; exit 2; }
done
began=$SECONDS
limit=530
failed=0

# part NAME SECONDS COMMAND...: the command's exit status goes into NAME.status.json.
part() {
    local name=$1 most=$2 started=$SECONDS status left
    shift 2
    left=$((limit - (SECONDS - began)))
    [ "$most" -gt "$left" ] && most=$left
    if [ "$most" -le 5 ]; then
        echo "no time was left" >"$out/$name.log"
        status=124
    else
        timeout "$most" "$@" >"$out/$name.log" 2>&1
        status=$?
    fi
    printf '{"status": %d, "seconds": %d}\n' "$status" $((SECONDS - started)) >"$out/$name.status.json"
    echo "$name: status $status, $((SECONDS - started)) s"
    [ "$status" -ne 0 ] && { failed=1; tail -n 3 "$out/$name.log"; }
    return "$status"
}

# measured NAME SECONDS PART [ARGUMENT...]: a part of measuring/gpu.py; what an earlier call found goes.
measured() {
    local name=$1 most=$2
    rm -f "$out/$name.json"
    part "$name" "$most" "$python" -m measuring.gpu "$3" "$out/$name.json" "${@:4}"
}

if [[ " ${wanted[*]} " == *" device "* || ! -e $out/device.json ]]; then
    measured device 60 device
    case $? in
        0) ;;
        3) exit 3 ;;
        *) echo "the device does not work: $out/device.log" >&2; exit 1 ;;
    esac
fi
for name in "${wanted[@]}"; do
    case $name in
        parity) measured parity 60 parity ;;
        sanitizer)
            command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer is installed"; continue; }
            for tool in memcheck racecheck; do
                part "sanitizer-$tool" 40 compute-sanitizer --tool "$tool" --error-exitcode 9 \
                    "$python" -m measuring.gpu launches "$out/sanitizer-$tool.json" random:gpt2-tiny
            done ;;
        conformance)
            most=200; [ ${#wanted[@]} -lt ${#known[@]} ] && most=$limit
            resume=(); [ -e "$out/conformance.json" ] && resume=(--resume)
            part conformance "$most" "$python" -m ptir_testsuite run --backend cupy \
                --jobs "$(nproc)" --json "$out/conformance.json" "${resume[@]}" ;;
        theirs)
            for model in "${models[@]}"; do
                measured "theirs-$model" 150 theirs "random:$model"
            done ;;
        gpt2 | llama-*)
            measured "ours-$name-bf16" 60 model "random:$name" dtype=bf16 cache_dtype=bf16
            measured "ours-$name-int4" 60 model "random:$name" dtype=bf16 cache_dtype=bf16 quant=int4 ;;
    esac
done
"$python" -m measuring.summary "$out" || failed=1
exit "$failed"
