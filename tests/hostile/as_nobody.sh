#!/usr/bin/env bash
# Run the sandbox tests as an unprivileged user, from root.
#     tests/hostile/as_nobody.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHON=${PYTHON:-.venv/bin/python}
home=$(mktemp -d)
chown 65534:65534 "$home"
exec tests/hostile/open_python.sh setpriv --reuid 65534 --regid 65534 --clear-groups \
  env HOME="$home" TMPDIR="$home" PYTHONDONTWRITEBYTECODE=1 \
  "$PYTHON" -m pytest -p no:cacheprovider "${@:-tests/score/sandbox/test_hostile.py}"
