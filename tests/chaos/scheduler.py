"""Small stand-ins for batch systems: they start, preempt and requeue jobs as SLURM and HTCondor do."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SBATCH = """#!{python}
import json, sys
from pathlib import Path
queue = Path({queue!r})
jobs = json.loads(queue.read_text()) if queue.exists() else []
options = [word for word in sys.argv[1:] if word.startswith("--")]
words = [word for word in sys.argv[1:] if not word.startswith("--")]
assert Path(words[0]).exists(), words
jobs.append({{"id": str(100 + len(jobs)), "options": options, "words": words}})
queue.write_text(json.dumps(jobs))
print(jobs[-1]["id"])
"""
SCONTROL = """#!{python}
import sys
from pathlib import Path
if sys.argv[1:3] == ["show", "job"]:
    print("JobState=RUNNING")
else:
    assert sys.argv[1] == "requeue", sys.argv
    Path({requeued!r}, sys.argv[2]).touch()
"""


def commands(folder: Path, queue: Path | None = None) -> dict[str, str]:
    """Environment in which the project's commands have a scripted engine; with `queue`, SLURM's exist too."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("rollout", "score", "train", "warehouse"):
        started = f"exec {sys.executable} -m tests.chaos.commands --list {name}"
        _program(folder / name, f'#!/bin/sh\n{started} "$@"\n')
    if queue:
        _program(folder / "sbatch", SBATCH.format(python=sys.executable, queue=str(queue)))
        _program(folder / "scontrol", SCONTROL.format(python=sys.executable, requeued=str(folder)))
    # The scripted engine says logprobs of its own, and so these signals fire rightly.
    own_logprobs = "--ignore wrong_weights --ignore mismatch --ignore weight_mean --ignore step_kl"
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "WATCH": own_logprobs, "ROLLHOUSE_WARM": "off"}


def run_until(words: list[str], environment: dict[str, str], *, preempt_after: float | None,
              number: signal.Signals = signal.SIGTERM, group: bool = False) -> tuple[int, str]:
    """Run a job; send it `number` after a while, if told to. Exit code and output."""
    process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=preempt_after)
    except subprocess.TimeoutExpired:
        (os.killpg if group else os.kill)(process.pid, number)
        output, _ = process.communicate()
    return process.returncode, output


def start_until_done(words: list[str], environment: dict[str, str], kills: list[float]) -> list[int]:
    """Start a job again and again, its whole machine vanishing after as many seconds each; its exit codes."""
    codes = []
    for preempt_after in (*kills, None):
        code, output = run_until(words, environment, preempt_after=preempt_after,
                                 number=signal.SIGKILL, group=True)
        codes.append(code)
        if code not in (-signal.SIGKILL, 75):
            assert code == 0, output
            break
    return codes


def submit_file(path: Path, values: dict[str, str]) -> dict[str, str]:
    """Commands of an HTCondor submit file with the macros filled in; 'queue' is how many."""
    found: dict[str, Any] = {"queue": "1"}
    for line in path.read_text().splitlines():
        if line.startswith("queue"):
            found["queue"] = line.removeprefix("queue").strip() or "1"
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key.strip()] = value.strip()
    return {key: re.sub(r"\$\((\w+)\)", lambda macro: values.get(macro[1], macro[0]), value)
            for key, value in found.items()}


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
