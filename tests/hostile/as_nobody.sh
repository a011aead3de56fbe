#!/usr/bin/env bash
# Run the sandbox tests as an unprivileged user, from root: the interpreter may lie below /root, which others
# cannot enter, so this happens in a mount namespace of its own in which they can.
#     tests/hostile/as_nobody.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
home=$(mktemp -d)
chown 65534:65534 "$home"
base=$("$python" -c 'import sys; print(sys.base_prefix)')
inside='
  if [[ "$1" == /root/* ]]; then
    kept=$(mktemp -d) && mount --bind "$1" "$kept"
    mount -t tmpfs none /root && chmod 755 /root && mkdir -p "$1" && mount --bind "$kept" "$1"
  fi
  base=$1 home=$2; shift 2
  exec setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$home" TMPDIR="$home" PYTHONDONTWRITEBYTECODE=1 "$@"
'
exec unshare --mount bash -c "$inside" as-nobody "$base" "$home" "$python" -m pytest -p no:cacheprovider "${@:-tests/score/sandbox/test_hostile.py}"
