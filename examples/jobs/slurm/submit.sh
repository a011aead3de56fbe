#!/usr/bin/env bash
# Submit what is not trained of ITERATIONS iterations to SLURM: for each an array of ROLLOUTS tasks, one of SCORES tasks,
# then a job that samples and scores what they left and trains. The last line cancels what was queued.
# In the environment, the same each time that a run is submitted: what each needs, ROLLOUT_NEEDS="--gres=gpu:1
# --partition=spot" SCORE_NEEDS=.. LEARN_NEEDS=.., by default a GPU, 8 cores, a GPU; EVAL_EVERY, WATCH and TRAIN as
# work.sh has them. With EVAL_EVERY a last job evaluates the last policy.
set -euo pipefail
usage="usage: examples/jobs/slurm/submit.sh RUN ITERATIONS ROLLOUTS [SCORES]"
if [[ ${1-} == --help ]]; then echo "$usage"; sed -n '2,/^set/s/^# //p' "$0"; exit; fi
if (($# < 3)); then echo "$usage" >&2; exit 2; fi
for number in "${@:2}"; do
  [[ $number =~ ^[1-9][0-9]{0,5}$ ]] || { echo "$number is no number from 1 on; $usage" >&2; exit 2; }
done
[[ -f examples/jobs/work.sh ]] || { echo "run this in the checkout of Rollhouse" >&2; exit 2; }
run=$1 name=$(basename "$1") iterations=$2 rollouts=$3 scores=${4:-$3}
read -ra rollout_needs <<<"${ROLLOUT_NEEDS---gres=gpu:1}"
read -ra score_needs <<<"${SCORE_NEEDS---cpus-per-task=8}"
read -ra learn_needs <<<"${LEARN_NEEDS---gres=gpu:1}"
newest=$(warehouse log "$run" --json --last 1)
[[ $newest =~ \"policy\":\ ([0-9]+) ]]
first=${BASH_REMATCH[1]}

if queue=$(squeue --noheader --me --name="$name-learn" --format=%i 2>/dev/null) && [[ $queue ]]; then
  echo "jobs named $name are queued already; if they are of this run, they do the same work. To cancel their training: scancel" $queue
fi
queued=() learned=
submit() {   # STAGE JOB OPTION..: after the iteration before, and after JOB however it ended; its job id is in `id`
  local dependency=${learned:+afterok:$learned}${learned:+${2:+,}}${2:+afterany:$2}
  id=$(sbatch --parsable --job-name="$name-$1" ${dependency:+--dependency="$dependency" --kill-on-invalid-dep=yes} \
    "${@:3}") || { echo "sbatch refused a $1 job: what it needs is in ROLLOUT_NEEDS, SCORE_NEEDS and LEARN_NEEDS; if the queue is full, submit fewer iterations" >&2; exit 1; }
  queued+=("$id")
}
stage=examples/jobs/slurm/stage.sbatch
tell() {   # also if sbatch refuses one of them
  if ((${#queued[@]})); then
    printf '%s\n' "with EVAL_EVERY=${EVAL_EVERY:-} WATCH=${WATCH:-} TRAIN=${TRAIN:-}; to cancel all of them:" "scancel ${queued[*]}"
  fi
}
trap tell EXIT

for ((i = first; i < iterations; i++)); do
  submit rollout "" "${rollout_needs[@]}" --array="0-$((rollouts - 1))" "$stage" rollout "$run" "$i" "$rollouts"
  submit score "$id" "${score_needs[@]}" --array="0-$((scores - 1))" "$stage" score "$run" "$i" "$scores"
  submit learn "$id" "${learn_needs[@]}" "$stage" learn "$run" "$i"
  learned=$id
done
if ((${EVAL_EVERY:-0} && first <= iterations)); then
  submit eval "" "${rollout_needs[@]}" "$stage" eval "$run" "$iterations"
fi
if ((first < iterations)); then
  echo "policy $first is the newest: submitted iterations $first to $((iterations - 1))"
else
  echo "policy $first is the newest: $iterations iterations are over; to train one more, name $((first + 1))${id:+; the evaluation of policy $iterations is submitted}"
fi
