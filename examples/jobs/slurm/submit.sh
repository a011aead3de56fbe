#!/usr/bin/env bash
# Submit ITERATIONS iterations to SLURM: an array of ROLLOUTS tasks, one of SCORES tasks, then a job that samples and
# scores what they left and trains. Run it again at any time: what is complete is skipped in seconds.
# In the environment: what each needs, ROLLOUT_NEEDS="--gres=gpu:1 --partition=spot" SCORE_NEEDS=.. LEARN_NEEDS=..;
# EVAL_EVERY=5 evaluates every fifth policy, with what a rollout needs.
set -euo pipefail
usage="usage: examples/jobs/slurm/submit.sh RUN ITERATIONS ROLLOUTS [SCORES]"
run=${1:?$usage} iterations=${2:?$usage} rollouts=${3:?$usage} scores=${4:-$3}
read -ra rollout_needs <<<"${ROLLOUT_NEEDS---gres=gpu:1}"
read -ra score_needs <<<"${SCORE_NEEDS---cpus-per-task=8}"
read -ra learn_needs <<<"${LEARN_NEEDS---gres=gpu:1}"
EVAL_EVERY=${EVAL_EVERY:-0}
submit() { sbatch --parsable "$@"; }
stage=examples/jobs/slurm/stage.sbatch

after=()
for ((i = 0; i < iterations; i++)); do
  rollout=$(submit "${after[@]}" --job-name=rollout "${rollout_needs[@]}" --array="0-$((rollouts - 1))" \
    "$stage" rollout "$run" "$i" "$rollouts")
  score=$(submit --dependency="afterany:$rollout" --job-name=score "${score_needs[@]}" \
    --array="0-$((scores - 1))" "$stage" score "$run" "$i" "$scores")
  learn=$(submit --dependency="afterany:$score" --job-name=learn "${learn_needs[@]}" "$stage" learn "$run" "$i")
  last=$learn
  if ((EVAL_EVERY && (i + 1) % EVAL_EVERY == 0)); then
    last=$(submit --dependency="afterok:$learn" --kill-on-invalid-dep=yes --job-name=eval "${rollout_needs[@]}" \
      "$stage" eval "$run" "$((i + 1))")
  fi
  after=(--dependency="afterok:$learn" --kill-on-invalid-dep=yes)
done
echo "submitted; the last job is $last"
