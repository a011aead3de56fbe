"""Purposes, labels and scorers become folders: whatever is given, nothing is written outside of the run."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from tests.building.runs import small_run
from warehouse.cli import cli
from warehouse.store import names
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse


@given(st.text())
@example("../../evil")
@example("train/../../../../evil")
@example("train/")
@example("x" * 300)
@example("\udc80")
@example("a\0b")
@example("")
def test_a_name_is_one_folder_inside_the_run_or_a_sentence(name: str) -> None:
    run = Warehouse(Path("/nowhere/run"), {})
    for keys in ({"purpose": name, "scorer": "s"}, {"purpose": "train", "scorer": name}):
        try:
            folder = run.folder("samples", iteration=0, **keys)
        except StageError as error:
            assert str(error).isprintable() and len(str(error)) < 999
        else:
            assert folder.resolve().is_relative_to(run.root / "samples/iteration=0")
            assert len(folder.relative_to(run.root).parts) == 4 and len(folder.name.encode()) < 255


@pytest.mark.parametrize("command", ["discard {run} --iteration 0 --purpose {name}",
                                     "import {file} --iteration 0 --purpose {name}"])
@pytest.mark.parametrize("name", ["train/", "train/../../../../evil", "x" * 300])
def test_a_purpose_that_is_a_path_is_refused(tmp_path: Path, command: str, name: str) -> None:
    warehouse = small_run(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}")
    words = command.format(run=warehouse.root, file=f"{warehouse.root} {tmp_path / 'rows.jsonl'}", name=name)
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 1 and "The purpose" in done.output and "is not possible" in done.output


def test_the_purpose_of_a_wave_names_its_base_and_its_turn() -> None:
    for base in ("train", "eval", "eval-turn", "eval-a.b-turns"):
        for turn in (1, 2, 3, 10, 21):
            purpose = names.turn_purpose(base, turn)
            assert (names.base_purpose(purpose), names.turn_of(purpose)) == (base, turn)
    assert names.turn_purpose("eval", 2) == "eval-turn2" and names.is_training("train-turn2")
    assert not names.is_training("eval-turn2") and names.turn_of("eval-turn1") == 1
