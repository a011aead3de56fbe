"""What a run's intent may do to whoever opens the run."""

import json
from pathlib import Path

import pytest

from tests.building.runs import new_run
from warehouse.store.errors import StageError
from warehouse.store.run_folder import open_warehouse


@pytest.mark.parametrize("step", [
    ["remove", "../outside", ""], ["remove", "{outside}", ""], ["remove", "link/file", ""],
    ["remove", "", ""],
    ["move", "config.toml", "../outside/taken"], ["replace", "../outside/file", "config.toml"],
    ["write", "../outside/file", "x"], ["run", "x", "y"], ["remove", "x"], "remove", ["remove", 5, ""]])
def test_opening_a_run_changes_nothing_outside_of_it(tmp_path: Path, step: object) -> None:
    run = new_run(tmp_path / "run").root
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    (run / "link").symlink_to(outside)
    step = [word.format(outside=outside) if isinstance(word, str) else word for word in step] \
        if isinstance(step, list) else step
    (run / "intent.json").write_text(json.dumps({"command": "repair", "steps": [step]}))
    with pytest.raises(StageError, match="a change that no command of ours writes"):
        open_warehouse(run)
    assert [path.name for path in outside.iterdir()] == ["file"] and (outside / "file").read_text() == "mine"
    assert (run / "warehouse.json").exists()
