#!/usr/bin/env bash
# Print the DAG of a loop. usage: examples/htcondor/make_dag.sh RUN ITERATIONS SHARDS > loop.dag
set -euo pipefail
run=$(realpath "${1:?usage: examples/htcondor/make_dag.sh RUN ITERATIONS SHARDS}")
iterations=${2:?usage: examples/htcondor/make_dag.sh RUN ITERATIONS SHARDS}
shards=${3:?usage: examples/htcondor/make_dag.sh RUN ITERATIONS SHARDS}

for ((i = 0; i < iterations; i++)); do
  echo "JOB rollout$i examples/htcondor/rollout.sub"
  echo "VARS rollout$i run=\"$run\" iteration=\"$i\" shards=\"$shards\""
  echo "JOB learn$i examples/htcondor/learn.sub"
  echo "VARS learn$i run=\"$run\" iteration=\"$i\""
  echo "PARENT rollout$i CHILD learn$i"
  if ((i > 0)); then echo "PARENT learn$((i - 1)) CHILD rollout$i"; fi
done
