#!/usr/bin/env bash
# The demo: ten iterations on ARC-AGI-1 training tasks with the starter policy, on a CPU.
set -euo pipefail
cd "$(dirname "$0")/.."
run=${1:-runs/demo}
iterations=${2:-10}

warehouse init "$run" --model examples/starter/model --config examples/demo/config.toml \
  --tasks arc-agi-1:training@examples/demo/pool.txt --heldout synthetic:100:7
for i in 0 "$iterations"; do
  if [ "$i" != 0 ]; then bash examples/loop.sh "$run" "$iterations"; fi
  rollout "$run" --eval --iteration "$i"
  score "$run" --iteration "$i" --purpose eval
done
reports build "$run"
warehouse summary "$run"
cat <<END

warehouse: $run
  warehouse sql $run "select * from collapse"
  warehouse sql $run "select task_id, first_solved, last_rate from task_history order by first_solved"
report:    $run/report.html
END
