#!/usr/bin/env bash
# The loop by hand: warehouse warm bash examples/loop.sh RUN ITERATIONS. Type it again after any end; an alarm ends it
# with exit code 3. `warehouse loop RUN ITERATIONS` does this, faster, and goes back after an alarm (--rescue).
set -euo pipefail
for ((i = 0; i < ${2:?usage: examples/loop.sh RUN ITERATIONS}; i++)); do
  rollout "$1" --iteration "$i"
  score "$1" --iteration "$i"
  train "$1" --iteration "$i"
  warehouse summary "$1" --iteration "$i" --line
  warehouse watch "$1" --since "$i"
done
