#!/usr/bin/env bash
# Train the starter policy by a recipe and go on whatever the alarms say: what docs/studies.md is made from.
# usage: examples/collapse/run.sh RUN RECIPE ITERATIONS [SEED [OPTION OF train ..]]   RECIPE names a .toml beside this
# MODEL and TASKS name others than the starter's.
set -euo pipefail
[[ -n ${ROLLHOUSE_WARM:-} ]] || exec warehouse warm bash "$0" "$@"   # imports and engine stay loaded
usage="usage: examples/collapse/run.sh RUN RECIPE ITERATIONS [SEED [OPTION OF train ..]]"
run=$(realpath -m "${1:?$usage}") recipe=${2:?$usage} iterations=${3:?$usage} seed=${4:-0}
cd "$(dirname "$0")/../.."
[ -e "$run/warehouse.json" ] || warehouse init "$run" --model "${MODEL:-examples/starter/model}" \
  --config "examples/collapse/$recipe.toml" --tasks "${TASKS:-arc-agi-1:training@examples/demo/pool.txt}"
for ((i = 0; i < iterations; i++)); do
  ((i < $(warehouse sql "$run" "SELECT max(policy_version) FROM policies" --format csv | tail -n 1))) && continue
  rollout "$run" --iteration "$i" --seed "$seed"
  score "$run" --iteration "$i"
  train "$run" --iteration "$i" --seed "$seed" "${@:5}" || break        # nothing is left to learn from
  warehouse summary "$run" --iteration "$i" --line
done
warehouse watch "$run" || true
