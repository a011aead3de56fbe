#!/usr/bin/env bash
# rollout -> score -> train, ITERATIONS times, until an alarm fires (exit code 3). Run it again after any kill: it
# goes on where it stopped; after an alarm, go back with `warehouse rollback`, or WATCH="--ignore SIGNAL" goes on.
# `warehouse warm` keeps imports and engine loaded for all iterations; with ROLLHOUSE_WARM=off each command loads anew.
# --rescue: after an alarm go back to the policy that `watch` names and on with half the learning rate; three times.
# Programs run while others are still sampled (`score --follow`), and `train --follow` loads meanwhile.
# --ahead: while `train` works, the next iteration is sampled by the policy before (one step off-policy) and scored.
#   The engine leaves it .6 of the GPU's memory, unless config.toml sets gpu-memory-utilization.
# --track NAME: `train` sends the numbers of all stages to tensorboard, wandb, trackio or mlflow.
set -euo pipefail
usage="usage: examples/loop.sh RUN ITERATIONS [--rescue] [--ahead] [--track NAME]"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  echo "$usage"
  sed -n '2,/^set/s/^# //p' "$0"
  exit
fi
refuse() { echo "$usage" >&2; exit 2; }
[[ ${2:-} =~ ^[0-9]+$ ]] || refuse
words=("$@") run=$1 iterations=$2 files=$1
rescues=0 to_train=() to_sample=() ahead="" since=() watching="" summing=""
sampling=() scoring=() training=() turn=()     # processes by iteration
shift 2
while (($#)); do
  case $1 in
    --rescue) rescues=3 to_train+=(--lr-after-rollback 0.5) ;;
    --ahead) ahead=yes ;;
    --track) [[ -n ${2:-} ]] || refuse; to_train+=(--track "$2"); shift ;;
    *) refuse ;;
  esac
  shift
done
[[ $run == *://* || -e $run/warehouse.json ]] || exec warehouse summary "$run"         # which says what is wrong
[[ -n ${ROLLHOUSE_WARM:-} ]] || exec warehouse warm bash "$0" "${words[@]}"
if [[ $run == *://* ]]; then # its working copy, brought up to date
  files=${ROLLHOUSE_CACHE:-$HOME/.cache/rollhouse}/${run/:\/\///}
  warehouse sql "$run" --in-place "SELECT 1" >/dev/null
fi
[[ -z $ahead ]] || grep -qs "^[^#]*gpu.memory.utilization" "$files/config.toml" ||
  to_sample+=(--gpu-memory-utilization 0.4)

trained() { [ -e "$files/train/iteration=$1/manifest.json" ]; }

begin() { # ITERATION [OPTIONS]: sample it, and run its programs as they are sampled
  rollout "$run" --iteration "$1" --spill-seconds 1 "${to_sample[@]}" "${@:2}" &
  sampling[$1]=$!
  score "$run" --iteration "$1" --follow "${sampling[$1]}" &
  scoring[$1]=$!
}

stand_by() { # ITERATION: load what its training needs, and train once its turn, a process, has ended
  tail --pid=$$ -f /dev/null &
  turn[$1]=$!
  disown
  train "$run" --iteration "$1" "${to_train[@]}" --follow "${turn[$1]}" &
  training[$1]=$!
}

begin_ahead() { # ITERATION, by the policy before its own, which is being trained
  trained "$1" && return
  begin "$1" --policy-version $(($1 - 1)) >"$told/$1" 2>&1
  stand_by "$1"
}

await() { # PROCESS; where it fails, what was told aside is told
  wait "$1" && return
  local code=$?
  stop
  tell
  exit "$code"
}

tell() {
  [ ! -e "$told/$i" ] || cat "$told/$i"
}

stop() { # what was sampled and scored is kept; a train that stands by has nothing to say, and gets no turn
  local running n
  for n in "${!turn[@]}"; do
    kill -KILL "${training[n]:-}" && wait "${training[n]}" || true
  done 2>/dev/null
  running=$(jobs -pr)
  # shellcheck disable=SC2086
  [[ -z $running ]] || { kill $running 2>/dev/null || true; wait $running || true; }
  # Last: the process that trains ends a moment after the command, and would say that its rows are missing.
  ((${#turn[@]} == 0)) || kill -KILL "${turn[@]}" 2>/dev/null || true
  sampling=() scoring=() training=() turn=()
}

watch_alarms() { # of the iterations not yet watched: later ones judge a dip anew that is long over
  # shellcheck disable=SC2086
  warehouse watch "$run" "${since[@]}" ${WATCH:-} >"$told/alarms" &
  watching=$!
  since=(--since $((i + 1)))
}

heed_alarms() {
  [[ -n $watching ]] || return 0
  local code=0 back said
  wait "$watching" || code=$?
  watching=""
  wait "$summing" || true
  ((code)) || return 0
  said=$(<"$told/alarms")
  echo "$said"
  back=$(sed -n 's/.*go back: warehouse rollback .* --to \([0-9]*\)$/\1/p' <<<"$said")
  # A smaller step is no help where what was sampled is not what is trained.
  if ((code != 3 || rescues == 0)) || [[ -z $back || $said == *"Mend the "* ]]; then exit "$code"; fi
  rescues=$((rescues - 1))
  stop
  rm -f "$told"/*       # of what goes aside
  warehouse rollback "$run" --to "$back"
}

# Made once what removes it is set; where this is killed it goes with the folder of `warehouse warm`.
told=$(mktemp -du -p "${ROLLHOUSE_WARM%"${ROLLHOUSE_WARM##*/}"}")
trap '[[ $BASHPID != "$$" ]] || { stop; rm -rf "$told"; }' EXIT    # not where a part of this is killed as it begins
mkdir -m 700 "$told"
for ((i = 0; i < iterations; i++)); do
  trained "$i" && continue      # leave it alone
  [[ -n ${sampling[i]:-} ]] || { begin "$i"; stand_by "$i"; }
  await "${sampling[i]}"
  [[ -z $ahead ]] || ((i + 1 == iterations)) || begin_ahead $((i + 1))
  heed_alarms                   # of the iteration before
  [[ -n ${scoring[i]:-} ]] || { i=$((i - 1)); continue; }       # after a rescue: anew, or left untrained
  await "${scoring[i]}"
  tell
  kill -KILL "${turn[i]}"
  unset "turn[i]"
  failed=0
  wait "${training[i]}" || failed=$?
  { ((failed)) || exec warehouse summary "$run" --iteration "$i" --line; } &
  summing=$!
  ((failed > 1)) || watch_alarms        # no gradient at all may be a collapse, too
  # Where the next iteration is sampled already, the one after it is begun before the watch is over.
  [[ -n $ahead ]] && ((failed == 0)) && ! kill -0 "${sampling[i + 1]:-}" 2>/dev/null || heed_alarms
  ((failed == 0)) || trained "$i" || exit "$failed"
done
heed_alarms
