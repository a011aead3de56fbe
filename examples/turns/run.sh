#!/usr/bin/env bash
# Second turns on MBPP: what 32 completions of a task are worth as 32 first turns, and as 16 + 16 that answer wrong
# ones; with ITERATIONS also before and after training on both turns (TURNS=1: on as many first turns instead).
# SPLITS="train mbpp" measures on the training tasks too, FEEDBACK=tests with one kind of feedback alone.
# Safe to run again; needs what docs/mbpp.md needs.
# usage: MODEL=Qwen/Qwen2.5-Coder-1.5B-Instruct [TURNS=1] examples/turns/run.sh RUN [ITERATIONS]
set -euo pipefail
[[ -n ${ROLLHOUSE_WARM:-} ]] || exec warehouse warm bash "$0" "$@"   # imports stay loaded, and the engine sleeps
here=$(dirname "$0")
run=${1:?usage: examples/turns/run.sh RUN [ITERATIONS]}
iterations=${2:-0}
turns=${TURNS:-2}
read -ra splits <<<"${SPLITS:-mbpp}"

measure() {  # ITERATION FEEDBACK: the wrong ones of the first 16 are answered, the two best of each task by eight each
  local purpose=eval-$2
  rollout "$run" --eval --label "$2" --iteration "$1" "${splits[@]/#/--split=}" --group-size 32
  score "$run" --iteration "$1" --purpose "$purpose"
  rollout "$run" --eval --label "$2" --iteration "$1" --turn 2 --feedback "$2" --group-size 8 --parents-per-task 2 \
    --from "FROM wrong_completions($1, of_purpose := '$purpose') WHERE sample_index < 16"
  score "$run" --iteration "$1" --purpose "$purpose-turn2"
  PYTHONPATH=$here/../.. python -m examples.turns.budget "$run" 32 --iteration "$1" --purpose "$purpose" --format markdown
}

warehouse init "$run" --model "${MODEL:?name the base model: MODEL=folder or hub id}" \
  --config "$here/../mbpp/config.toml" --tasks "${POOL:-mbpp:11-410}" --heldout "mbpp=${HELDOUT:-mbpp:411-510}"
for feedback in ${FEEDBACK:-tests error}; do   # the failing test is shown, or only what went wrong
  measure 0 "$feedback"
done
for ((i = 0; i < iterations; i++)); do
  ((i < $(warehouse sql "$run" "SELECT max(policy_version) FROM policies" --format csv | tail -n 1))) && continue
  rollout "$run" --iteration "$i" --group-size $((16 / turns))
  score "$run" --iteration "$i"
  if ((turns > 1)); then
    rollout "$run" --iteration "$i" --turn 2 --group-size 8
    score "$run" --iteration "$i" --purpose train-turn2
  fi
  train "$run" --iteration "$i"
done
((iterations == 0)) || measure "$iterations" tests
