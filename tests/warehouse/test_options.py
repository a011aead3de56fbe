"""RUN/config.toml: keys are the long options, flags win, mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from warehouse.options import run_argument, shows_errors
from warehouse.stages.stop import StageStopped
from warehouse.store.errors import StageError


@click.command("rollout")
@run_argument
@click.option("--group-size", type=int, default=16)
@click.option("--augment", "augmentation", default="none")
@click.option("--split", "splits", multiple=True)
@click.option("--shuffle-pairs", is_flag=True)
@click.option("--fail", type=click.Choice(["no", "stage", "stop"]), default="no")
@shows_errors
def command(run: Path, fail: str, **values: Any) -> None:
    """A command with an option of every kind."""
    if fail == "stage":
        raise StageError("This is wrong. Do that.")
    if fail == "stop":
        raise StageStopped("Stopped. Run it again.")
    click.echo(values)


def call(folder: Path, config: str, *words: str) -> Result:
    (folder / "config.toml").write_text(config)
    return CliRunner().invoke(command, [str(folder), *words])


def test_keys_are_the_long_options_and_flags_win(tmp_path: Path) -> None:
    config = ('[rollout]\ngroup-size = 4\naugment = "all"\nsplit = ["a", "b"]\nshuffle-pairs = true\n'
              "[train]\nx = 1\n")
    told = {"group_size": 4, "augmentation": "all", "splits": ("a", "b"), "shuffle_pairs": True}
    assert call(tmp_path, config).output == f"{told}\n"
    assert call(tmp_path, config, "--group-size", "8").output == f"{told | {'group_size': 8}}\n"
    assert "'splits': ('a',)" in call(tmp_path, '[rollout]\nsplit = "a"\n').output


@pytest.mark.parametrize(("config", "sentence"), [
    ("[rollout]\ngroupsize = 4\n", "[rollout] has no option 'groupsize'. Known: augment, fail, group-size,"),
    ("[rollouts]\n", "has a table [rollouts]. The tables are named after the commands"),
    ("[rollout\n", "is not valid TOML"),
    ("[rollout]\ngroup-size = 'many'\n", "'many' is not a valid integer"),
])
def test_mistakes_in_the_file_are_one_sentence(tmp_path: Path, config: str, sentence: str) -> None:
    result = call(tmp_path, config)
    assert result.exit_code in (1, 2) and sentence in result.output and "Traceback" not in result.output


def test_a_stage_error_exits_with_1_and_a_stop_with_75(tmp_path: Path) -> None:
    failed, stopped = call(tmp_path, "", "--fail", "stage"), call(tmp_path, "", "--fail", "stop")
    assert (failed.exit_code, failed.output) == (1, "Error: This is wrong. Do that.\n")
    assert (stopped.exit_code, stopped.output) == (75, "Stopped. Run it again.\n")
