#!/usr/bin/env bash
# Print the DAG of a loop. Submit it in this folder: condor_submit_dag -include_env 'TRAIN,WATCH,EVAL_*' loop.dag
set -euo pipefail
usage="usage: examples/jobs/htcondor/make_dag.sh RUN ITERATIONS ROLLOUTS [SCORES] > loop.dag"
if (($# < 3)); then echo "$usage" >&2; exit 2; fi
run=$1 logs=$PWD
[[ $run == *://* ]] || run=$(realpath "$run") logs=$run
iterations=$2 rollouts=$3 scores=${4:-$3}

node() {   # STAGE ITERATION SHARDS GPUS
  echo "JOB $1$2 examples/jobs/htcondor/stage.sub"
  echo "VARS $1$2 stage=\"$1\" run=\"$run\" logs=\"$logs\" iteration=\"$2\" shards=\"$3\" gpus=\"$4\""
}

for ((i = 0; i < iterations; i++)); do
  node rollout "$i" "$rollouts" 1
  node score "$i" "$scores" 0
  node learn "$i" 1 1
  echo "PARENT rollout$i CHILD score$i"
  echo "PARENT score$i CHILD learn$i"
  if ((i > 0)); then echo "PARENT learn$((i - 1)) CHILD rollout$i"; fi
done
if ((${EVAL_EVERY:-0})); then
  node eval "$iterations" 1 1
  echo "PARENT learn$((iterations - 1)) CHILD eval$iterations"
fi
