#!/usr/bin/env bash
# Run a command as root in a mount namespace of its own in which every user can read the interpreter, which may lie
# below /root, as they can where it lies below /opt or /usr.
#     tests/hostile/open_python.sh COMMAND ..
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
base=$("$python" -c 'import sys; print(sys.base_prefix)')
inside='
  if [[ "$1" == /root/* ]]; then
    kept=$(mktemp -d) && mount --bind "$1" "$kept"
    mount -t tmpfs none /root && chmod 755 /root && mkdir -p "$1" && mount --bind "$kept" "$1"
  fi
  shift
  exec "$@"
'
exec unshare --mount bash -c "$inside" open-python "$base" "$@"
