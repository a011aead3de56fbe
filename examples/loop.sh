#!/usr/bin/env bash
# rollout -> score -> train, ITERATIONS times, until an alarm fires (exit code 3). Run it again after any kill: it
# goes on where it stopped; after an alarm, go back with `warehouse rollback`, or WATCH="--ignore SIGNAL" goes on.
set -euo pipefail
run=${1:?usage: examples/loop.sh RUN ITERATIONS}
iterations=${2:?usage: examples/loop.sh RUN ITERATIONS}

watch_alarms() {
  local said code=0
  # shellcheck disable=SC2086
  said=$(warehouse watch "$run" ${WATCH:-}) || code=$?
  ((code == 0)) || { echo "$said"; exit "$code"; }
}

for ((i = 0; i < iterations; i++)); do
  [ -e "$run/train/iteration=$i/manifest.json" ] && continue   # trained: leave it alone
  rollout "$run" --iteration "$i"
  score "$run" --iteration "$i"
  train "$run" --iteration "$i"
  warehouse summary "$run" --iteration "$i" --line
  watch_alarms
done
