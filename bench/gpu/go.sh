#!/usr/bin/env bash
# First contact with an NVIDIA GPU: `bash .gpu/go.sh STEP` on the machine that has it.
# docs/guides/check-gpu.md lists the steps and what they decide.
#
# Each step ends within 10 minutes, can be repeated, and leaves at most 8 files of at most 16 MiB
# each in $OUT (default ./gpu-results):
#   summary.txt              result and duration of each part of the step
#   log.txt                  output of the parts
#   machine.txt              driver, GPUs, processors, libraries, Python
#   gpu.json, gpu.txt        results of `weir doctor --gpu` so far
#   pytorch.json             measurements of PyTorch so far
#   live.json, metrics.txt, node.txt
#                            measurements of a node, its metrics and its log
#   *.before.json            results of another device or build, set aside
# A step extends the gpu.json and pytorch.json of earlier steps: those in the results folder, those
# that the same build of weir left on this machine, or those in .gpu/results.
#
# Needs the driver, bash, coreutils, findutils and gzip; for the models Python 3.8, and for the
# comparison a Python with torch.
#
# Environment:
#   WEIR_CUDA_LIBRARY                    path of the driver, instead of a search
#   WEIR_CUDA_LIBRARY_PATH               folders with NVIDIA's other libraries, to search first
#   WEIR_GPU_ROOTS                       folders to search for Python and NVIDIA's libraries
#   WEIR_GPU_SCRATCH                     program, models and interim results (/tmp/weir-gpu)
#   WEIR_GPU_STEP_S, WEIR_GPU_PART_S     time limits of a step and of its parts, in seconds
#   WEIR_GPU_DOCTOR, WEIR_GPU_PYTORCH, WEIR_GPU_SERVE
#                                        options of `weir doctor --gpu`, pytorch_gpu.py and serve.py
set -u

kit=$(cd "$(dirname "$0")" && pwd) || exit 1
out=${OUT:-gpu-results}
scratch=${WEIR_GPU_SCRATCH:-/tmp/weir-gpu}
roots=${WEIR_GPU_ROOTS:-/opt /usr /root /home /srv}
# Below the limit of 10 minutes, with time to pack the results.
step_s=${WEIR_GPU_STEP_S:-570}
part_s=${WEIR_GPU_PART_S:-$step_s}
doctor_options=${WEIR_GPU_DOCTOR:---batch 1,32 --case-time-s 60}
pytorch_options=${WEIR_GPU_PYTORCH:-}
serve_options=${WEIR_GPU_SERVE:-}
# Time for a part to exit after its time limit.
kill_s=5
search_s=20
ask_s=20
file_bytes_max=$((16 << 20))

weir=$scratch/weir
# A folder per build of weir: a run resumes only from results of the same build.
kept=$scratch/results-$(cksum <"$kit/weir.gz" | tr ' ' -)
pythons=()
models=()
failed=0

usage() {
    cat >&2 <<'END'
usage: bash go.sh STEP

  1  does it work, and are operations right: environment, operations, transfers, launches, memory
  2  are networks right, and how fast: networks
  3  how fast beside PyTorch: eager, torch.compile, CUDA graph
  4  the rest of Weir: handing-over, functions, worker, kernel-graphs
  5  the rest of PyTorch: 24 processes and 24 streams
  6  does a node serve, and how fast: inferences and a function over HTTP, at default settings
END
    exit 2
}

# Runs the parts of a step, each with its time limit in seconds.
step() {
    case $1 in
        1)
            doctor operations 180
            doctor transfers 60
            doctor launches 90
            doctor memory 60
            ;;
        2) doctor networks 420 ;;
        3) pytorch 500 --ways eager,compiled,graph --precisions tf32,fp16 ;;
        4)
            doctor handing-over 60
            doctor functions 240
            doctor worker 120
            doctor kernel-graphs 120
            ;;
        5) pytorch 540 --ways processes,streams --functions 24 --batches 1 ;;
        6) serve 180 ;;
    esac
}

main() {
    mkdir -p "$out" "$kept" || exit 1
    out=$(cd "$out" && pwd) || exit 1
    trap pack EXIT
    trap 'exit 1' INT TERM
    : >"$out/log.txt" && : >"$out/summary.txt" || exit 1
    note "step $1, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    carry_on
    search
    machine >"$out/machine.txt" 2>&1
    # shellcheck disable=SC2016  # for the inner shell
    part unpack 20 /dev/null sh -c 'gzip -dc "$1" >"$2.new" && chmod 755 "$2.new" && mv "$2.new" "$2"' sh "$kit/weir.gz" "$weir"
    make_models
    environment
    step "$1"
    exit "$failed"
}

# Prints the result of a part, and adds it to the summary.
note() {
    echo "$*" | tee -a "$out/summary.txt"
}

# Copies the results of earlier steps.
carry_on() {
    local name from
    for name in gpu.json pytorch.json; do
        for from in "$kept" "$kit/results"; do
            if [ ! -e "$out/$name" ] && [ -e "$from/$name" ]; then
                cp "$from/$name" "$out/$name" && note "goes on with $from/$name"
            fi
        done
    done
}

# Finds the machine's Pythons and NVIDIA's libraries. Paths from the environment come first.
search() {
    local found folders folder
    # shellcheck disable=SC2086  # several folders
    found=$(timeout "$search_s" find $roots -maxdepth 12 \( -path '*/bin/python3' -o -name 'libcublasLt.so.1[23]' -o -name 'libnvrtc.so.1[23]' \) 2>/dev/null)
    mapfile -t pythons < <({ command -v python3; grep '/bin/python3$' <<<"$found"; } | awk '!seen[$0]++')
    folders=$(grep '\.so\.1[23]$' <<<"$found" | sed 's|/[^/]*$||' | sort -u | paste -sd: -)
    folders=${WEIR_CUDA_LIBRARY_PATH:+$WEIR_CUDA_LIBRARY_PATH:}$folders
    export WEIR_CUDA_LIBRARY_PATH=${folders%:}
    [ -z "${WEIR_CUDA_LIBRARY-}" ] || return 0
    found=$({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | awk '$1 == "libcuda.so.1" && /x86-64/ { print $NF; exit }')
    if [ -z "$found" ]; then
        for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib; do
            [ -e "$folder/libcuda.so.1" ] || continue
            found=$folder/libcuda.so.1
            # The driver's other libraries are in the same folder, outside the loader's search path.
            export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
            break
        done
    fi
    [ -z "$found" ] || export WEIR_CUDA_LIBRARY=$found
}

# Prints a description of the machine.
machine() {
    date -u
    uname -a
    sed -n 's/^PRETTY_NAME=//p' /etc/os-release
    echo "processors: $(nproc),$(sed -n 's/^model name[^:]*://p' /proc/cpuinfo | head -n 1)"
    grep -E '^Mem(Total|Available)' /proc/meminfo
    echo "locked memory, KiB: $(ulimit -l)"
    df -h "$scratch" /dev/shm
    echo "driver: ${WEIR_CUDA_LIBRARY:-not found}"
    echo "NVIDIA's libraries: ${WEIR_CUDA_LIBRARY_PATH:-not found}"
    echo "Python: ${pythons[*]:-not found}"
    cat /proc/driver/nvidia/version
    timeout -k "$kill_s" "$ask_s" nvidia-smi
    timeout -k "$kill_s" "$ask_s" nvidia-smi topo -m
    timeout -k "$kill_s" "$ask_s" nvidia-smi -q
}

# Time limit of a part, within the remaining time of the step: limit SECONDS
limit() {
    local left_s=$((step_s - SECONDS)) limit_s=$1
    limit_s=$((limit_s < part_s ? limit_s : part_s))
    echo $((limit_s < left_s ? limit_s : left_s))
}

# Runs a command with a time limit, within the remaining time of the step:
# part NAME SECONDS OUTPUT COMMAND...
part() {
    local name=$1 limit_s output=$3 began=$SECONDS status=0
    limit_s=$(limit "$2")
    shift 3
    if [ "$limit_s" -le 0 ]; then
        failed=1
        note "$name: LEFT OUT, the step's $step_s s are over"
        return 1
    fi
    echo "== $name" >>"$out/log.txt"
    # The braces redirect the shell's own message about a signal to the log, too.
    { timeout -k "$kill_s" "$limit_s" "$@" >>"$output" </dev/null || status=$?; } 2>>"$out/log.txt"
    [ "$status" != 1 ] || ! failed_before "$name" || status=0
    case $status in
        0) note "$name: ok, $((SECONDS - began)) s" ;;
        124 | 137) note "$name: FAILED, took longer than $limit_s s" ;;
        *) note "$name: FAILED, ended with $status after $((SECONDS - began)) s" ;;
    esac
    [ "$status" = 0 ] && return 0
    failed=1
    # Some callers see only the end of the output.
    logged "$name" | grep -v '^ok ' | tail -n 12 | cut -c 1-300
    return "$status"
}

# Prints the log of a part.
logged() {
    awk -v from="== $1" '$0 == from { lines = "" } { lines = lines $0 "\n" } END { printf "%s", lines }' "$out/log.txt"
}

# Whether the doctor exited with 1 only because checks of earlier stages failed.
failed_before() {
    logged "$1" | awk '
        / checks failed; see above$/ { some = 1; next }
        /^(FAILED|error:)/ { own = 1 }
        END { exit !some || own }'
}

# Makes the models from their skeletons.
make_models() {
    local python skeleton
    for python in ${pythons[@]+"${pythons[@]}"}; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || continue
        part models 30 "$out/log.txt" "$python" "$kit/models.py" fill "$kit"/models/*.onnx --out "$scratch/models" || return
        for skeleton in "$kit"/models/*.onnx; do models+=(--model "$scratch/models/${skeleton##*/}"); done
        return
    done
    failed=1
    note "models: LEFT OUT, there is no Python 3.8 in $roots; install one, or copy the models of \`cargo xtask models\` here"
}

# Checks the device. Sets results of another device, or with other options, aside.
environment() {
    local name failed_before=$failed
    doctor environment 30 && return
    [ -e "$out/gpu.json" ] && logged environment | grep -q 'remove it, or give another file' || return
    failed=$failed_before
    for name in gpu pytorch; do
        [ ! -e "$out/$name.json" ] || mv "$out/$name.json" "$out/$name.before.json"
    done
    doctor environment 30
}

# Runs a stage of `weir doctor --gpu`: doctor STAGE SECONDS
doctor() {
    if [ -z "${models[*]-}" ] && [[ $1 == networks || $1 == functions ]]; then
        failed=1
        note "$1: LEFT OUT, there are no models"
        return 1
    fi
    local table=$scratch/table status=0 limit_s stage_s
    : >"$table"
    limit_s=$(limit "$2")
    # The doctor's own limit is shorter, so that it records the case of a hang before it is killed.
    stage_s=$((limit_s > 9 ? limit_s * 9 / 10 : 1))
    # shellcheck disable=SC2086  # several options
    part "$1" "$2" "$table" "$weir" doctor --gpu $doctor_options ${models[@]+"${models[@]}"} \
        --stage "$1" --stage-time-s "$stage_s" "$out/gpu.json" || status=$?
    [ ! -s "$table" ] || cp "$table" "$out/gpu.txt"
    return "$status"
}

# Runs a node, and sends it requests: serve SECONDS
serve() {
    local paths=() model python
    for model in ${models[@]+"${models[@]}"}; do [ "$model" = --model ] || paths+=("$model"); done
    for python in ${pythons[@]+"${pythons[@]}"}; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || continue
        rm -f "$scratch/libonnxruntime.so"
        part onnxruntime 20 "$scratch/libonnxruntime.so" gzip -dc "$kit/libonnxruntime.so.gz" || return
        # shellcheck disable=SC2086  # several options
        WEIR_ONNXRUNTIME=$scratch/libonnxruntime.so part serve "$1" "$out/log.txt" "$python" "$kit/serve.py" \
            --weir "$weir" --function "$kit/infer.wasm" $serve_options "$out/live.json" "${paths[@]}"
        return
    done
    failed=1
    note "serve: LEFT OUT, there is no Python 3.8 in $roots"
}

# Runs the PyTorch benchmark: pytorch SECONDS OPTION...
pytorch() {
    local limit_s python
    limit_s=$(limit "$1")
    shift
    for python in ${pythons[@]+"${pythons[@]}"}; do
        "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null || continue
        # The script's own limit is shorter, so that it reports skipped rows before it is killed.
        limit_s=$((limit_s > 60 ? limit_s - 20 : limit_s))
        # shellcheck disable=SC2086  # several options
        part pytorch "$((limit_s + 10))" "$out/log.txt" "$python" "$kit/pytorch_gpu.py" "$@" $pytorch_options \
            --limit-s "$limit_s" --beside "$out/gpu.json" "$out/pytorch.json"
        return
    done
    note "pytorch: skipped, no Python in $roots has torch"
}

# Removes partial files from the results, truncates large ones, and keeps a copy for the next step.
# shellcheck disable=SC2317  # a trap
pack() {
    local file
    rm -rf "$out"/.tmp* "$out"/*.partial
    for file in "$out"/*.txt; do
        if [ "$(stat -c %s "$file")" -gt "$file_bytes_max" ]; then
            tail -c "$file_bytes_max" "$file" >"$scratch/end" && mv "$scratch/end" "$file"
        fi
    done
    for file in "$out/gpu.json" "$out/pytorch.json"; do
        [ ! -e "$file" ] || cp "$file" "$kept/"
    done
    # The measured performance goals.
    grep -hE '(met|missed)' "$out/gpu.txt" "$out/log.txt" 2>/dev/null | tr -s ' ' | cut -c 1-200 | tail -n 60
    ls -l "$out"
}

case ${1-} in
    [1-6]) main "$1" ;;
    *) usage ;;
esac
