#!/usr/bin/env bash
# rollout -> score -> train, ITERATIONS times, until an alarm fires (exit code 3). Run it again after any kill: it
# goes on where it stopped; after an alarm, go back with `warehouse rollback`, or WATCH="--ignore SIGNAL" goes on.
# --warm: one vLLM server serves all rollouts, sleeps while `train` has the GPU, and ends with the loop.
set -euo pipefail
usage="usage: examples/loop.sh RUN ITERATIONS [--warm]"
run=${1:?$usage}
iterations=${2:?$usage}
case ${3:-} in
  "") ;;
  --warm) exec python -m rollout.server "$run" bash "$0" "$run" "$iterations" ;;
  *) echo "$usage" >&2; exit 2 ;;
esac

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
