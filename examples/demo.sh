#!/usr/bin/env bash
# The demo: ten iterations on ARC-AGI-1 training tasks with the starter policy, on a CPU. Safe to run again.
# usage: examples/demo.sh [RUN [ITERATIONS]]      STARTER=model-noised picks the noised starter
set -euo pipefail
run=$(realpath -m --relative-to="$(dirname "$0")/.." "${1:-$(dirname "$0")/../runs/demo}")
cd "$(dirname "$0")/.."
iterations=${2:-10}
began=$SECONDS

warehouse init "$run" --model "examples/starter/${STARTER:-model}" --config examples/demo/config.toml \
  --tasks arc-agi-1:training@examples/demo/pool.txt --heldout synthetic:100:7
warehouse loop "$run" "$iterations" --eval-every "$iterations"
warehouse summary "$run"
reports build "$run"
typed=$(printf %q "$run")
cat <<END

The demo is complete ($((SECONDS - began)) s this time).
warehouse: $run; two questions to it:
  warehouse sql $typed "select iteration, reward_mean, tokens_mean, truncated_share from iteration_stats where purpose = 'train' order by 1"
  warehouse sql $typed "select task_id, first_solved, last_rate, best_rate from task_history order by last_rate"
report:    $run/report.html
END
