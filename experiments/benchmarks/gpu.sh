#!/usr/bin/env bash
# All checks and tables that need a GPU, the checks first. Each result is written as soon as it exists, and every part has a
# time limit, so that a run that is cut off still leaves results.
#
#   experiments/benchmarks/gpu.sh [--quick] FOLDER [PART ...]
#
# The parts are tests, inference, shared_pass, mixed, step, large, same_rows and serve (default: all, in this order). PYTHON is
# an interpreter with the packages of pyproject.toml, pytest, pytest-xdist and peft (default: python3). --quick measures a tiny
# model on the CPU, as a rehearsal.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
quick=()
if [[ ${1:-} == --quick ]]; then
  quick=(--quick)
  shift
fi
out=${1:?usage: experiments/benchmarks/gpu.sh [--quick] FOLDER [PART ...]}
shift
parts=("$@")
if ((${#parts[@]} == 0)); then
  parts=(tests inference shared_pass mixed step large same_rows serve)
fi
mkdir -p "${out}"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore PYTHONPATH="${PWD}${PYTHONPATH:+:${PYTHONPATH}}"

# Part, seconds after which it is stopped, command.
limited() {
  local part=$1 limit=$2 began=${SECONDS} status=0
  shift 2
  timeout --signal=INT --kill-after=5 "${limit}" "$@" >"${out}/${part}.log" 2>&1 || status=$?
  echo "${part}: exit status ${status} after $((SECONDS - began)) s" | tee -a "${out}/parts.txt"
  tail -n 2 "${out}/${part}.log"
}

table() {
  local name=$1 limit=$2
  shift 2
  local options=(--device cuda --shape "${shape:-bert-base}")
  if ((${#quick[@]})); then
    options=()
  fi
  limited "${name}" "${limit}" "${python}" -m experiments.benchmarks "${1}" "${quick[@]}" "${options[@]}" --name "${name#*-}" \
    --out "${out}" --peers peft --peft-python "${python}" "${@:2}"
}

for part in "${parts[@]}"; do
  case ${part} in
    tests)
      limited tests 90 "${python}" -m pytest -v --tb=short -p no:cacheprovider -p no:benchmark -n "$(nproc)" -m "slow or not slow" \
        tests/engine/test_gpu.py tests/engine/test_cuda_graphs.py tests/banks/test_golden.py tests/store/test_golden_stores.py
      ;;
    inference) table inference-cuda-base 90 inference --batch 32x128 --count 10 ;;
    shared_pass)
      device=cuda
      if ((${#quick[@]})); then device=cpu; fi
      limited shared_pass 110 "${python}" -m experiments.benchmarks.shared_pass "${quick[@]}" --device "${device}" \
        --out "${out}/shared_pass.json"
      ;;
    mixed)
      tasks=(--tasks 32,256,1000)
      if ((${#quick[@]})); then tasks=(); fi
      table mixed-cuda-base 110 mixed --batch 64x128 --count 3 --repetitions 5 "${tasks[@]}"
      ;;
    step) table step-cuda-base 190 step --batch 32x128 --count 5 --repetitions 5 ;;
    large) shape=bert-large table inference-cuda-large 60 inference --batch 32x128 --count 5 --repetitions 5 ;;
    same_rows) table same_rows-cuda-base 90 same_rows --batch 32x128 --repetitions 5 ;;
    serve) table serve-cuda-base 120 serve --repetitions 5 ;;
    *)
      echo "gpu.sh: there is no part ${part}" >&2
      exit 2
      ;;
  esac
done
