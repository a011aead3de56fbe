#!/usr/bin/env bash
# rollout -> score -> train, ITERATIONS times. Run it again after any kill: it goes on where it stopped.
set -euo pipefail
run=${1:?usage: examples/loop.sh RUN ITERATIONS}
iterations=${2:?usage: examples/loop.sh RUN ITERATIONS}

for ((i = 0; i < iterations; i++)); do
  [ -e "$run/train/iteration=$i/manifest.json" ] && continue   # trained: leave it alone
  rollout "$run" --iteration "$i"
  score "$run" --iteration "$i"
  train "$run" --iteration "$i"
  warehouse summary "$run" --iteration "$i" --line
done
