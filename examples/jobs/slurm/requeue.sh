#!/usr/bin/env bash
# Run a command in a SLURM job: pass SIGTERM on to it, and requeue the job if it ends with 75.
set -u
stopped=
"$@" &
child=$!
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null' TERM
wait "$child"
code=$?
if [[ $stopped ]]; then   # the signal ended the wait, not the command: wait for the command
  wait "$child"
  code=$?
  ((code == 143)) && code=75   # it was still starting and had nothing to save
fi
if ((code == 75)); then
  scontrol requeue "$SLURM_JOB_ID" && sleep "${REQUEUE_WAIT:-60}"   # SLURM ends this job and starts it again
fi
exit "$code"
