#!/usr/bin/env bash
# Submit what is not trained of ITERATIONS iterations to SLURM: for each an array of ROLLOUTS tasks, one of SCORES tasks,
# then a job that samples and scores what they left and trains. The last line cancels what was queued.
# In the environment: what each needs, ROLLOUT_NEEDS="--gres=gpu:1 --partition=spot" SCORE_NEEDS=.. LEARN_NEEDS=..;
# EVAL_EVERY=5 evaluates policy 0 and every fifth, with what a rollout needs.
set -euo pipefail
usage="usage: examples/jobs/slurm/submit.sh RUN ITERATIONS ROLLOUTS [SCORES]"
if (($# < 3)); then echo "$usage" >&2; exit 2; fi
run=$1 iterations=$2 rollouts=$3 scores=${4:-$3}
read -ra rollout_needs <<<"${ROLLOUT_NEEDS---gres=gpu:1}"
read -ra score_needs <<<"${SCORE_NEEDS---cpus-per-task=8}"
read -ra learn_needs <<<"${LEARN_NEEDS---gres=gpu:1}"
EVAL_EVERY=${EVAL_EVERY:-0}
newest=$(warehouse log "$run" --json --last 1)
[[ $newest =~ \"policy\":\ ([0-9]+) ]]
first=${BASH_REMATCH[1]}

queued=()
submit() {   # STAGE OPTION..: its job id is in `id`
  id=$(sbatch --parsable --job-name="$(basename "$run")-$1" "${@:2}")
  queued+=("$id")
}
stage=examples/jobs/slurm/stage.sbatch
evaluate() {   # POLICY, if it is one to evaluate
  if ((EVAL_EVERY && $1 % EVAL_EVERY == 0)); then
    submit eval "${after[@]}" "${rollout_needs[@]}" "$stage" eval "$run" "$1"
  fi
}
tell() {   # also if sbatch refuses one of them
  if ((${#queued[@]})); then printf '%s\n' "to cancel all of them:" "scancel ${queued[*]}"; fi
}
trap tell EXIT

after=()
evaluate "$first"
for ((i = first; i < iterations; i++)); do
  submit rollout "${after[@]}" "${rollout_needs[@]}" --array="0-$((rollouts - 1))" \
    "$stage" rollout "$run" "$i" "$rollouts"
  submit score --dependency="afterany:$id" "${score_needs[@]}" --array="0-$((scores - 1))" \
    "$stage" score "$run" "$i" "$scores"
  submit learn --dependency="afterany:$id" "${learn_needs[@]}" "$stage" learn "$run" "$i"
  after=(--dependency="afterok:$id" --kill-on-invalid-dep=yes)
  evaluate "$((i + 1))"
done
echo "policy $first is the newest: submitted iterations $first to $((iterations - 1))"
