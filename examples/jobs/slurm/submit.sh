#!/usr/bin/env bash
# Submit ITERATIONS iterations to SLURM: SHARDS rollout tasks, then one job that scores and trains, and so on.
# Run it again at any time: what is complete is skipped in seconds.
set -euo pipefail
run=${1:?usage: examples/slurm/submit.sh RUN ITERATIONS SHARDS}
iterations=${2:?usage: examples/slurm/submit.sh RUN ITERATIONS SHARDS}
shards=${3:?usage: examples/slurm/submit.sh RUN ITERATIONS SHARDS}

after=()
for ((i = 0; i < iterations; i++)); do
  rollout=$(sbatch --parsable "${after[@]}" --array="0-$((shards - 1))" \
    examples/slurm/rollout.sbatch "$run" "$i" "$shards")
  learn=$(sbatch --parsable --dependency="afterany:$rollout" examples/slurm/learn.sbatch "$run" "$i")
  after=(--dependency="afterok:$learn" --kill-on-invalid-dep=yes)
done
echo "submitted; the last job is $learn"
