#!/usr/bin/env bash
# rollout -> score -> train, ITERATIONS times, until an alarm fires (exit code 3). Run it again after any kill: it
# goes on where it stopped; after an alarm, go back with `warehouse rollback`, or WATCH="--ignore SIGNAL" goes on.
# `warehouse warm` keeps imports and engine loaded for all iterations; with ROLLHOUSE_WARM=off each command loads anew.
# --rescue: after an alarm go back to the policy that `watch` names and on with half the learning rate; three times.
# Programs run while others are still sampled (`score --follow`).
# --ahead: while `train` works, the next iteration is sampled by the policy before (one step off-policy) and scored.
# --track NAME: `train` sends the numbers of all stages to tensorboard, wandb, trackio or mlflow.
set -euo pipefail
usage="usage: examples/loop.sh RUN ITERATIONS [--rescue] [--ahead] [--track NAME]"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  echo "$usage"
  sed -n '2,/^set/s/^# //p' "$0"
  exit
fi
[[ ${2:-} =~ ^[0-9]+$ ]] || { echo "$usage" >&2; exit 2; }
run=$1 iterations=$2
[[ -n ${ROLLHOUSE_WARM:-} ]] || exec warehouse warm bash "$0" "$@"
files=$run
if [[ $run == *://* ]]; then # its working copy, brought up to date
  files=${ROLLHOUSE_CACHE:-$HOME/.cache/rollhouse}/${run/:\/\///}
  warehouse sql "$run" --in-place "SELECT 1" >/dev/null
fi
rescues=0 to_train=() ahead="" sampling="" scoring="" summing="" since=()
shift 2
while (($#)); do
  case $1 in
    --rescue) rescues=3 to_train+=(--lr-after-rollback 0.5) ;;
    --ahead) ahead=yes ;;
    --track) to_train+=(--track "${2:?$usage}"); shift ;;
    *) echo "$usage" >&2; exit 2 ;;
  esac
  shift
done

begin() { # ITERATION [OPTIONS]: sample it, and run its programs as they are sampled
  rollout "$run" --iteration "$1" --spill-seconds 1 "${@:2}" &
  sampling=$!
  score "$run" --iteration "$1" --follow "$sampling" &
  scoring=$!
}

sample_ahead() { # ITERATION, by the policy before its own, which is being trained
  sampling=""
  [ -e "$files/train/iteration=$1/manifest.json" ] || begin "$1" --policy-version $(($1 - 1)) >"$told/$1" 2>&1
}

await() { # PROCESS; where it fails, what was told aside is told
  wait "$1" && return
  local code=$?
  stop_sampling
  cat "$told/$i" 2>/dev/null || true
  exit "$code"
}

stop_sampling() { # what was sampled and scored is kept
  local running
  running=$(jobs -pr)
  # shellcheck disable=SC2086
  [[ -z $running ]] || { kill $running 2>/dev/null; wait $running || true; }
  sampling=""
}

watch_alarms() { # of the iterations not yet watched: later ones judge a dip anew that is long over
  local said code=0 back
  # shellcheck disable=SC2086
  said=$(warehouse watch "$run" "${since[@]}" ${WATCH:-}) || code=$?
  since=(--since $((i + 1)))
  ((code)) || return 0
  wait "$summing" || true
  echo "$said"
  back=$(sed -n 's/.*go back: warehouse rollback .* --to \([0-9]*\)$/\1/p' <<<"$said")
  # A smaller step is no help where what was sampled is not what is trained.
  if ((code != 3 || rescues == 0)) || [[ -z $back || $said == *"Mend the "* ]]; then exit "$code"; fi
  rescues=$((rescues - 1))
  stop_sampling
  rm -f "$told"/*       # of what goes aside
  warehouse rollback "$run" --to "$back"
}

told=$(mktemp -d)
trap 'stop_sampling; rm -rf "$told"' EXIT
for ((i = 0; i < iterations; i++)); do
  [ -e "$files/train/iteration=$i/manifest.json" ] && continue   # trained: leave it alone
  [[ -n $sampling ]] || begin "$i"
  await "$sampling"
  own=$scoring
  sampling=""
  [[ -z $ahead ]] || ((i + 1 == iterations)) || sample_ahead $((i + 1))
  await "$own"
  [ ! -e "$told/$i" ] || cat "$told/$i"
  failed=0
  train "$run" --iteration "$i" "${to_train[@]}" || failed=$?
  { ((failed)) || exec warehouse summary "$run" --iteration "$i" --line; } &
  summing=$!
  ((failed > 1)) || watch_alarms        # no gradient at all may be a collapse, too
  wait "$summing" || true
  ((failed == 0)) || [ -e "$files/train/iteration=$i/manifest.json" ] || exit "$failed"
done
