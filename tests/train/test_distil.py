"""Training on what another model wrote: right answers alone, no ratio and no mismatch invented for them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tests.building.runs import completion_row, finish, prompt_row, sample_row, write_rows
from tests.building.sampled import END, OPTIONS, SCORER, load_policy, tiny_run
from tests.building.sound import check_run
from train.cli import train
from train.inputs.inputs import mismatch_floor
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.discard import discard
from warehouse.sql.database import connect
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

PROMPT, RIGHT, WRONG = [7, 11, 13], [5, 9, 21, END], [33, 2, 2, END]
NO_POLICY: dict[str, Any] = {
    "policy_version": None, "policy_sha256": None, "logprobs_mode": None, "dtype": None, "device": None,
    "engine": "wise-1 (openai)", "temperature": 0.0, "max_tokens": 10}


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """A tiny run whose iteration 0 has two greedy answers of a foreign model to each of four tasks."""
    run = tiny_run(tmp_path / "run")
    samples = [sample_row(row, SCORER, float(row["completion_ids"] == RIGHT),
                          correct=row["completion_ids"] == RIGHT) for row in answer(run, 0)]
    write_rows(run, "samples", [samples], scorer=SCORER)
    finish(run, "score", iteration=0, purpose="distil", scorer=SCORER)
    return run


def answer(run: Warehouse, iteration: int) -> list[dict[str, Any]]:
    """Roll out purpose distil; its completions."""
    keys: dict[str, Any] = {"iteration": iteration, "purpose": "distil"}
    prompts = [prompt_row(f"task-{number}", 2, **keys, prompt_ids=[*PROMPT, number]) for number in range(4)]
    completions = [completion_row(prompt, index, ids, [], **NO_POLICY) | {"behaviour_logprobs": None}
                   for prompt in prompts for index, ids in enumerate((RIGHT, WRONG))]
    for table, rows in (("prompts", prompts), ("completions", completions)):
        write_rows(run, table, [rows])
    finish(run, "rollout", **keys)
    return completions


def invoke(warehouse: Warehouse, *more: str) -> Any:
    return CliRunner().invoke(train, [str(warehouse.root), *OPTIONS, "--purpose", "distil", *more])


def loss_of(warehouse: Warehouse, version: int, ids: list[int]) -> float:
    """Mean negative log-likelihood of an answer to the first task, at temperature 1."""
    tokens = torch.tensor([*PROMPT, 0, *ids])
    with torch.no_grad():
        logprobs = load_policy(warehouse, version).full_logits(tokens[None])[0].log_softmax(dim=-1)
    places = range(len(PROMPT), len(tokens) - 1)
    return -sum(float(logprobs[place, tokens[place + 1]]) for place in places) / len(ids)


def test_the_policy_learns_the_right_answers_and_no_mismatch_is_made_up(warehouse: Warehouse) -> None:
    before = loss_of(warehouse, 0, RIGHT)
    done = invoke(warehouse, "--loss", "nll")
    assert done.exit_code == 0, done.output
    assert "rho" not in done.output and "rounding" not in done.output, "no policy of the run drew them"
    assert "mismatch" not in done.output
    assert mismatch_floor(warehouse, 1) is None, "nor do they say how far rounding goes"
    assert loss_of(warehouse, 1, RIGHT) < before - 0.05
    exported = CliRunner().invoke(train, ["export", str(warehouse.root), "--output",
                                          str(warehouse.root / "exported")])
    assert exported.exit_code == 0, exported.exception
    assert warehouse.state.rollout_due() == 1, "more rows of iteration 0 would never be trained on"
    rows = warehouse.read("train_samples", iteration=0).to_pylist()
    assert {(row["purpose"], row["staleness"]) for row in rows} == {("distil", 0)}
    assert [row["drop_reason"] for row in rows] == [None, "not_right"] * 4
    for row in rows:
        assert row["mismatch_kl"] is None and row["log_ratio_abs_max"] is None
        expected = [RIGHT, WRONG][row["sample_index"]]
        assert len(row["old_logprobs"]) == len(expected)
    assert {row["ess"] for row in warehouse.read("train_steps", iteration=0).to_pylist()} == {None}
    first = rows[0]
    assert -sum(first["old_logprobs"]) / len(RIGHT) == pytest.approx(before, abs=1e-4), "at temperature 1"


def test_what_was_trained_on_is_known_by_its_purpose(warehouse: Warehouse) -> None:
    """It stays, and `check` looks for its scores, not for those of a training rollout that never was."""
    assert invoke(warehouse, "--loss", "nll").exit_code == 0
    with pytest.raises(Refusal) as refused:
        discard(warehouse, 0, "distil")
    assert refused.value.code == "trained"
    assert f"`warehouse branch {warehouse.root} NEW --at 0`" in str(refused.value)
    assert not check_run(warehouse).problems
    (warehouse.folder("samples", iteration=0, purpose="distil", scorer=SCORER) / "manifest.json").unlink()
    with pytest.raises(StageError, match=r"is missing.*iteration 0, purpose distil, .* is left out"):
        connect(warehouse, strict=True)
    shutil.rmtree(warehouse.folder("samples", iteration=0, purpose="distil", scorer=SCORER))
    problem, = check_run(warehouse).problems
    assert "is gone, though score of iteration 0, purpose distil," in problem


def test_where_nothing_is_due_what_comes_first_is_said(warehouse: Warehouse) -> None:
    assert invoke(warehouse, "--loss", "nll").exit_code == 0
    other = invoke(warehouse, "--loss", "nll", "--purpose", "distil-big")
    assert other.exit_code == 0 and other.stdout == (
        "nothing to train: iteration 1 has no rollout of purpose distil-big yet; "
        f"next: rollout {warehouse.root} --api-model NAME --distil --label big\n")
    answer(warehouse, 1)
    there = CliRunner().invoke(train, [str(warehouse.root), *OPTIONS])
    assert there.exit_code == 0 and there.stdout == (
        "nothing to train: iteration 1 has no rollout yet, but rows of purpose distil (see "
        f"--purpose); next: rollout {warehouse.root}\n")
    unscored = invoke(warehouse, "--loss", "nll")
    assert unscored.exit_code == 1 and "of purpose distil of iteration 1 are not scored. Run `score" in (
        unscored.stderr), unscored.output


@pytest.mark.parametrize(("options", "sentence"), [
    (("--loss", "dapo"), "have no logprobs, which the loss dapo needs. Train on them with --loss nll"),
    (("--loss", "nll", "--purpose", "eval"), "--purpose eval is not possible"),
    (("--loss", "nll", "--purpose", "distil-other"),
     "no complete rollout of purpose distil-other. Run `rollout"),
    (("--loss", "nll", "--dtype", "auto"), "do not say in which dtype they were sampled"),
])
def test_what_cannot_be_trained_is_one_sentence(warehouse: Warehouse, options: tuple[str, ...],
                                                sentence: str) -> None:
    done = invoke(warehouse, *options)
    assert done.exit_code == 1 and sentence in done.output, done.output
    assert warehouse.state.versions == [0]
