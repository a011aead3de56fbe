"""The README's commands: every one exists with the options it names, and the loop by hand really runs."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}


def bash_blocks() -> list[str]:
    """The text of every ```bash block."""
    return re.findall(r"^```bash\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def command_lines() -> list[list[str]]:
    """Every command of the blocks, and those quoted in the prose, taken apart."""
    text = "\n".join(bash_blocks()).replace("\\\n", " ")
    quoted = re.findall(r"`((?:rollout|score|train|warehouse|reports) [^`]+)`", README)
    lines = [shlex.split(line, comments=True) for line in [*text.split("\n"), *quoted]]
    return [line for line in lines if line]


def test_every_command_and_option_exists() -> None:
    checked = 0
    for words in command_lines():
        if words[0] not in COMMANDS:
            assert words[0] in ("make", "source", "git"), words
            continue
        module, _, name = COMMANDS[words[0]].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        context, rest = click.Context(command, info_name=words[0]), words[1:]
        if isinstance(command, click.Group) and rest and command.get_command(context, rest[0]):
            command = command.get_command(context, rest.pop(0))
        else:
            assert words[0] not in ("warehouse", "reports"), f"{words} names no command"
            command = getattr(command, "default", command)
        known = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts}
        for word in rest:
            if word.startswith("-"):
                assert word.split("=")[0] in known, f"{words[0]} has no option {word}"
                checked += 1
    assert checked > 20


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {word for words in command_lines() if words[0] == "make" for word in words[1:] if "=" not in word}
    named |= set(re.findall(r"^make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE))
    assert named and named <= targets


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_task_it_shows_can_be_imported(tmp_path: Path) -> None:
    from warehouse.sources.named import parse_source, read_source
    line, = re.findall(r"^```json\n(.*?)\n```$", README, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "my.jsonl").write_text(line + "\n")
    task, = read_source(parse_source(str(tmp_path / "my.jsonl"), heldout=False))
    assert task.task_id == json.loads(line)["task_id"]


@pytest.mark.slow("512 completions of the demo's pool, by the real engine")
@pytest.mark.engine
def test_the_loop_by_hand_runs_and_the_questions_are_answered(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    by_hand = next(block for block in bash_blocks() if block.startswith("warehouse init runs/first"))
    questions = next(block for block in bash_blocks() if block.startswith("warehouse sql runs/first"))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = by_hand + questions + "reports build runs/first"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True,
                          cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrote policy 1" in done.stdout
    assert (tmp_path / "runs" / "first" / "report.html").stat().st_size < 2 << 20
