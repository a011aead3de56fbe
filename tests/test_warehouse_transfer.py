"""Rows out of a run and into another: JSON lines, TRL's files, datasets folders; pruning old tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from click.testing import CliRunner, Result

from tests.synthetic_run import build_run, new_run
from warehouse.check import check_run
from warehouse.cli import cli
from warehouse.database import connect, rows_of
from warehouse.parts import read_part
from warehouse.store import Warehouse, open_warehouse


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(
        tmp_path_factory.mktemp("runs") / "run", iterations=2, evals=(1,), num_tasks=4, group_size=4
    )


def warehouse(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def lines_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return [json.loads(line) for line in content.decode().splitlines()]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.zst"])
def test_what_is_exported_comes_back_the_same(built: Warehouse, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    result = warehouse("export", built.root, file, "--to", "jsonl", "--iteration", 1, "--purpose", "train")
    assert (result.exit_code, result.stdout) == (0, f"{file}\n")
    lines = lines_of(file)
    assert len(lines) == 16 and lines[0]["reward"] is not None and lines[0]["advantage"] is not None
    other = new_run(tmp_path / "other", num_tasks=4)
    imported = warehouse("import", other.root, file, "--iteration", 1)
    assert imported.exit_code == 0, imported.output
    assert imported.stdout == f"16 completions; next: score {other.root} --iteration 1\n"
    query = ("SELECT task_id, completion, completion_ids, behaviour_logprobs, finish_reason, policy_version, "
             "temperature, prompts.prompt_ids FROM completions JOIN prompts USING (iteration, purpose, "
             "group_id) "
             "WHERE completions.iteration = 1 AND purpose = 'train' ORDER BY task_id, sample_index")
    query = query.replace("SELECT task_id", "SELECT completions.task_id").replace(
        "ORDER BY task_id", "ORDER BY completions.task_id").replace("AND purpose", "AND completions.purpose")
    assert rows_of(connect(other), query) == rows_of(connect(built), query)
    assert check_run(other).problems == []


def test_trl_files_have_its_columns(built: Warehouse, tmp_path: Path) -> None:
    result = warehouse("export", built.root, tmp_path / "trl", "--to", "trl")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "trl").iterdir()) == [
        "completions_00000.parquet", "completions_00001.parquet", "eval"]
    frame = pl.read_parquet(tmp_path / "trl" / "completions_00001.parquet")
    assert frame.columns == ["step", "prompt", "completion", "arc-v1", "advantage"]
    assert frame["step"].unique().to_list() == [1] and len(frame) == 16


def test_a_datasets_folder_has_a_split_per_purpose(built: Warehouse, tmp_path: Path) -> None:
    assert warehouse("export", built.root, tmp_path / "hf", "--to", "hf").exit_code == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert card.startswith("---\nconfigs:") and "split: eval\n    path: data/eval-*.parquet" in card
    assert len(pl.read_parquet(tmp_path / "hf" / "data" / "train-00000-of-00001.parquet")) == 32
    assert len(pl.read_parquet(tmp_path / "hf" / "data" / "eval-00000-of-00001.parquet")) == 16


def test_nothing_to_export_is_said(built: Warehouse, tmp_path: Path) -> None:
    result = warehouse("export", built.root, tmp_path / "x.jsonl", "--to", "jsonl", "--iteration", 9)
    assert result.exit_code == 1 and "No complete rollout fits" in result.stderr
    assert not (tmp_path / "x.jsonl").exists()


GOOD = {
    "task_id": "task-000",
    "prompt_ids": [1, 2],
    "completion_ids": [3, 4],
    "behaviour_logprobs": [-0.5, 0.0],
    "completion": "x",
    "finish_reason": "stop",
    "policy_version": 0,
}


@pytest.mark.parametrize(("change", "words"), [
    (lambda row: row.pop("completion_ids"), "Line 2: 'completion_ids' is missing or not of type list"),
    (lambda row: row.update(task_id="nope"), "Line 2: task 'nope' is not in this run"),
    (lambda row: row["behaviour_logprobs"].pop(), "Line 2: 2 completion_ids but 1 behaviour_logprobs"),
    (lambda row: row.update(behaviour_logprobs=[-1.0, 0.5]), "Line 2: 'behaviour_logprobs' holds a value"),
    (lambda row: row.update(prompt_ids=[1, -7]), "Line 2: a token id is not a whole number"),
    (lambda row: row.update(policy_version=3), "completions of policies [0, 3]"),
])
def test_bad_lines_are_named_and_nothing_is_written(tmp_path: Path, change: Callable[..., object],
                                                    words: str) -> None:
    run = new_run(tmp_path / "run", num_tasks=2)
    bad = json.loads(json.dumps(GOOD))
    change(bad)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n" + json.dumps(bad) + "\n")
    result = warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling")
    assert result.exit_code == 1 and words in result.stderr
    assert not (run.root / "completions").exists() and not (run.root / "prompts").exists()


def test_a_group_is_stored_whole_however_the_lines_are_mixed(tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warehouse.importing.PART_ROWS", 3)
    run = new_run(tmp_path / "run", num_tasks=3)
    lines = [{**GOOD, "task_id": f"task-00{number % 3}", "completion": str(number)} for number in range(12)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling").exit_code == 0
    parts = run.parts("completions", iteration=0, purpose="train")
    stored = [[(row["task_id"], row["sample_index"], row["completion"])
               for row in read_part(part).to_pylist()] for part in parts]
    assert stored == [[(f"task-00{task}", index, str(3 * index + task)) for index in range(4)]
                      for task in range(3)]
    assert not check_run(run).problems


def test_sampling_parameters_are_never_guessed(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", num_tasks=2)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n{not json\n")
    assert "Line 1: 'temperature' is missing" in warehouse("import", run.root, file, "--iteration", 0).stderr
    assert (
        "Line 2 is not JSON"
        in warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling").stderr
    )
    file.write_text(json.dumps(GOOD) + "\n")
    assert warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling").exit_code == 0
    again = warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling")
    assert again.exit_code == 1 and "exists already" in again.stderr


@pytest.fixture
def run(built: Warehouse, tmp_path: Path) -> Warehouse:
    shutil.copytree(built.root, tmp_path / "run")
    return open_warehouse(tmp_path / "run")


def test_pruning_drops_tokens_and_keeps_everything_else(run: Warehouse) -> None:
    scalars = "SELECT * FROM iteration_stats ORDER BY iteration, purpose"
    before = [[f"{value:.9g}" if isinstance(value, float) else value for value in row.values()]
              for row in rows_of(connect(run), scalars)]
    said = warehouse("prune", run.root, "--before", 1)
    assert said.exit_code == 0 and "Run it with --yes" in said.stdout
    assert rows_of(connect(run), "SELECT count(completion_ids) AS n FROM completions")[0]["n"] == 48
    done = warehouse("prune", run.root, "--before", 1, "--yes")
    assert done.stdout.startswith("5 parts pruned")
    held = rows_of(connect(run), "SELECT iteration, count(completion_ids) AS ids, "
                                 "count(behaviour_logprobs) AS mu, "
                                 "count(completion) AS texts FROM completions WHERE purpose = 'train' "
                                 "GROUP BY iteration ORDER BY iteration")
    assert held == [{"iteration": 0, "ids": 0, "mu": 0, "texts": 16},
                    {"iteration": 1, "ids": 16, "mu": 16, "texts": 16}]
    after = [[f"{value:.9g}" if isinstance(value, float) else value for value in row.values()]
             for row in rows_of(connect(run), scalars)]
    assert after == before
    assert check_run(run).problems == []
    log = [json.loads(line) for line in (run.root / "pruned.jsonl").read_text().splitlines()]
    assert log[0]["before"] == 1 and log[0]["bytes_after"] < log[0]["bytes_before"]
    assert warehouse("prune", run.root, "--before", 1, "--yes").stdout.startswith("0 parts pruned")


def test_iterations_that_are_not_trained_keep_their_tokens(run: Warehouse) -> None:
    (run.root / "train/iteration=1/manifest.json").unlink()
    result = warehouse("prune", run.root, "--before", 2, "--yes")
    assert result.exit_code == 1 and "Iteration 1 is not trained yet" in result.stderr
    assert rows_of(connect(run), "SELECT count(completion_ids) AS n FROM completions")[0]["n"] == 48
