#!/usr/bin/env bash
# One iteration, for a batch job: finish the rollout, score, train. SIGTERM goes on to the command that runs;
# exit code 75 means "put the job back into the queue".
set -euo pipefail
run=${1:?usage: examples/iteration.sh RUN ITERATION}
iteration=${2:?usage: examples/iteration.sh RUN ITERATION}

stage() {
  local child code=0 stopped=
  "$@" &
  child=$!
  trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM
  wait "$child" || code=$?
  if [[ $stopped ]]; then   # the signal ended the wait, not the command: wait for the command
    code=0
    wait "$child" || code=$?
    ((code == 143)) && exit 75   # it was still starting and had nothing to save
  fi
  ((code == 0)) || exit "$code"
}

stage rollout "$run" --iteration "$iteration"
stage score "$run" --iteration "$iteration"
stage train "$run" --iteration "$iteration"
stage warehouse summary "$run" --iteration "$iteration" --line
