#!/usr/bin/env bash
# What every job engine starts. SIGTERM goes on to the command that runs; exit code 75 means "start this again".
# Each may be killed at any instant and started again on any machine that sees RUN. An iteration that is trained, or that
# a rollback left out, is passed over, whatever config.toml says by now.
#   work.sh rollout RUN ITERATION K/N     sample share K of N of the parts
#   work.sh score   RUN ITERATION K/N     score share K of N of a rollout that has begun; the rest is left to `learn`
#   work.sh learn   RUN ITERATION         sample and score what all shares left, train, say how it went
#   work.sh worker  RUN ITERATIONS K/N    sample and score this share of every iteration as it comes due
#   work.sh eval    RUN POLICY            sample and score the held-out tasks with a policy
#   work.sh loop    RUN ITERATIONS        `warehouse loop` on all GPUs of this machine; an alarm ends it with 3
#   work.sh arms    RUN ARMS.TOML         `warehouse arms`
#   work.sh trainer RUN ITERATIONS        `learn` each iteration once its rollout is complete, evaluate the last policy
# In the environment: TRAIN="accelerate launch --multi_gpu --num_processes 8 --no_python train" trains on eight GPUs;
# EVAL_EVERY=5 samples and scores the held-out tasks with policies 0, 5, 10 .., too, before `learn` trains, with [eval]
# of config.toml;
# WATCH=yes, or WATCH="--ignore errors", ends `learn` and `eval` with 3 when an alarm holds in what they made.
set -euo pipefail
usage="usage: work.sh rollout|score|learn|eval|loop|arms|worker|trainer RUN ITERATION [K/N]"
if [[ ${1-} == --help ]]; then sed -n '2,/^set/s/^# //p' "$0"; exit; fi
if (($# < 3)); then echo "$usage" >&2; exit 2; fi
[[ $1 == arms || $3 =~ ^[0-9]{1,6}$ ]] || { echo "$3 is no number; $usage" >&2; exit 2; }
role=$1 run=$2 number=$3 share=${4:-0/1}
eval "train=(${TRAIN:-train})"   # with the quotes of a path that has a blank

child= stopped= again=
tell() { if [[ $child ]]; then kill -TERM "$child" 2>/dev/null || true; child=; fi; }
trap 'stopped=yes; tell' TERM

stage() {
  local started code=0 ended=0
  [[ -z $stopped ]] || exit 75   # the signal came between two commands
  "$@" &
  started=$! child=$started
  [[ -z $stopped ]] || tell      # it came before it was known whom to tell
  wait "$started" || code=$?
  if [[ $stopped ]]; then   # the signal ended the wait, not the command: wait for the command
    wait "$started" 2>/dev/null || ended=$?
    ((ended == 127)) || code=$ended   # 127: the wait was over before the signal came
    ((code == 0)) || exit 75          # whatever it says: torchrun says 1; what failed by itself fails again
  fi
  child=
  # Killed: once more. A launcher says 1 of that, too; what failed by itself fails again.
  if [[ -z $again ]] && { ((code > 128)) || [[ $code == 1 && ${TRAIN:-} && $1 == "${train[0]}" ]]; }; then
    ((code > 128)) && echo "$(date -Is) $1 was killed: it starts once more" ||
      echo "$1 ended with 1, as also if a training under it is killed: it starts once more"
    code=0 again=yes
    stage "$@" || code=$?
    again=
  elif ((code > 128)); then
    echo "$(date -Is) $1 was killed again: this job ends"
  fi
  return "$code"
}

is_evaluated() { ((${EVAL_EVERY:-0} && $1 % EVAL_EVERY == 0)); }

sample() {   # ITERATION [--shard K/N]: first of an evaluation, if one is due; `score` then judges both
  if is_evaluated "$1"; then stage rollout "$run" --eval --iteration "$@"; fi
  stage rollout "$run" --iteration "$@"
}

score_share() {
  local code=0
  stage score "$run" --iteration "$1" --shard "$share" || code=$?
  ((code == 0 || code == 75)) || exit "$code"   # 75: the rollout is not complete
}

learn() {
  sample "$1"
  stage score "$run" --iteration "$1"
  if is_evaluated "$1"; then tell_of "$1" --purpose eval; fi
  stage "${train[@]}" "$run" --iteration "$1"
  tell_of "$1"
  watch "$1"
}

evaluate() {   # POLICY
  stage rollout "$run" --eval --iteration "$1"
  stage score "$run" --iteration "$1" --purpose eval
  tell_of "$1" --purpose eval
  watch "$1"
}

tell_of() {   # ITERATION [--purpose eval]: for the job's log, a line
  stage warehouse summary "$run" --line --iteration "$@"
}

watch() {   # FIRST: the iteration that is judged
  local options=()
  [[ ${WATCH:-yes} == yes ]] || read -ra options <<<"$WATCH"
  if [[ ${WATCH:-} ]]; then stage warehouse watch "$run" --since "$1" "${options[@]}"; fi
}

ask() {   # for the log, latest entry first, and the newest policy
  logged=$(warehouse log "$run" --json) newest=0
  if [[ $logged =~ \"policy\":\ ([0-9]+) ]]; then newest=${BASH_REMATCH[1]}; fi
}

watch_again() {   # ITERATION: a job may have been stopped between its training and its alarms
  local since=${logged%%'"stage": "train", "iteration": '"$1",*}    # what followed; all if it was never trained
  if [[ $role == learn || $role == trainer ]] && ((newest == $1 + 1)) && [[ $since != *'"kind": "rolled back"'* ]]; then
    watch "$1"
  fi
}

is_over() {   # ITERATION
  ((newest > $1)) && echo "iteration $1 is trained, or a rollback left it out: nothing to do"
}

has() {   # ENTRY ITERATION: whether the log has such an entry of its rollout
  grep -qE "\"$1\", \"stage\": \"rollout\", \"iteration\": $2, \"purpose\": \"train\"" <<<"$logged"
}

case $role in
  rollout | score | learn) ask; if is_over "$number"; then watch_again "$number"; exit 0; fi ;;&
  rollout) sample "$number" --shard "$share" ;;
  score)
    if has begun "$number"; then score_share "$number"; else echo "no rollout of iteration $number yet: left to \`learn\`"; fi ;;
  learn) learn "$number" ;;
  eval) evaluate "$number" ;;
  loop | arms) stage warehouse "$role" "$run" "$number" ;;
  worker)
    for ((i = 0; i < number; i++)); do
      ask
      until ((newest >= i)); do stage sleep "${POLL_SECONDS:-20}"; ask; done
      if is_over "$i"; then continue; fi
      sample "$i" --shard "$share"
      score_share "$i"
    done ;;
  trainer)
    for ((i = 0; i < number; i++)); do
      ask
      until ((newest > i)) || has completed "$i"; do stage sleep "${POLL_SECONDS:-20}"; ask; done
      if is_over "$i"; then watch_again "$i"; else learn "$i"; fi
    done
    if ((${EVAL_EVERY:-0})); then evaluate "$number"; fi ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
