"""examples/turns/budget: first turns against shares of every turn, at equal numbers of completions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import warehouse
from examples.turns.budget import budget_table, main
from tests.building.runs import (
    completion_row,
    finish,
    new_run,
    prompt_row,
    sample_row,
    without_waiting,
    write_rows,
)
from warehouse.sql.database import rows_of
from warehouse.store.errors import StageError
from warehouse.store.names import turn_of
from warehouse.store.run_folder import Warehouse

SCORER = "arc-exact-0123456789"
TASKS = [f"task-{number:02d}" for number in range(64)]


def write_turn(run: Warehouse, purpose: str, right: dict[str, list[bool]], parent: int | None = None) -> None:
    """Completions of each task, right as told; those of a later turn answer one of the turn before."""
    prompts, completions, samples = [], [], []
    for task, verdicts in right.items():
        prompts.append(prompt_row(task, len(verdicts), purpose=purpose, turn=turn_of(purpose),
                                  parent_sample_index=parent))
        rows = [completion_row(prompts[-1], index, [1, 2], [-1.0, -1.0]) for index in range(len(verdicts))]
        completions += rows
        samples += [sample_row(row, SCORER, reward=float(correct), valid_code=True, valid_outputs=True,
                               correct=correct, train_is_correct=correct, test_is_correct=correct,
                               train_pixel_score=0.5, fingerprint=f"{correct}", code=f"{row['sample_index']}")
                    for row, correct in zip(rows, verdicts, strict=True)]
    keys: dict[str, Any] = {"iteration": 0, "purpose": purpose}
    for table, rows in (("prompts", prompts), ("completions", completions)):
        write_rows(run, table, [rows])
    finish(run, "rollout", **keys)
    write_rows(run, "samples", [samples], scorer=SCORER)
    finish(run, "score", scorer=SCORER, **keys)


@pytest.fixture
def verdicts() -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
    random = np.random.default_rng(5)
    return ({task: (random.random(8) < 0.1).tolist() for task in TASKS},
            {task: (random.random(4) < 0.4).tolist() for task in TASKS})


def run_with(folder: Path, first: dict[str, list[bool]], second: dict[str, list[bool]],
             parent: int) -> Warehouse:
    with without_waiting():
        run = new_run(folder / "run")
        write_turn(run, "eval", first)
        write_turn(run, "eval-turn2", second, parent)
    return run


def test_the_arms_hold_what_a_count_by_hand_gives(tmp_path: Path, verdicts: tuple) -> None:
    first, second = verdicts
    run = run_with(tmp_path, first, second, parent=3)
    names, rows, lines = budget_table(warehouse.open(run.root), 8)
    table = [dict(zip(names, row, strict=True)) for row in rows]
    assert [(row["purpose"], row["completions"], row["n"], row["most n"]) for row in table] == [
        ("eval", "8", 8, 8), ("eval", "4 + 4", 8, 8)]
    alone = np.array([any(first[task]) for task in TASKS], float)
    refined = np.array([any(first[task][:4]) or any(second[task]) for task in TASKS], float)
    assert [row["same program"] for row in table] == pytest.approx([alone.mean(), refined.mean()])
    assert table[1]["test pass rate"] == pytest.approx(np.mean(
        [first[task][:4] + second[task] for task in TASKS]))
    gain = refined - alone
    drawn = np.random.default_rng(1).choice(gain, (20000, len(gain))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert lines[1].split()[:2] == ["same", "program"]
    assert float(lines[1].split()[2]) == pytest.approx(gain.mean(), abs=1e-4)
    bounds = lines[1].partition("[")[2].partition("]")[0].split(", ")
    assert list(map(float, bounds)) == pytest.approx([low, high], abs=0.008)
    assert f"better on {int((gain > 0).sum())} of 64 tasks, worse on {int((gain < 0).sum())}" in lines[1]


def test_one_task_has_no_interval_over_tasks(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"task-00": [False] * 8}, {"task-00": [True] * 4}, parent=3)
    *_, lines = budget_table(warehouse.open(run.root), 8)
    assert lines[1].endswith(" +1.0000, better on 1 of 1 task, worse on 0")


def test_first_turns_alone_count_where_nobody_asks_for_turns(tmp_path: Path, verdicts: tuple) -> None:
    run = run_with(tmp_path, *verdicts, parent=3)
    counts = rows_of(warehouse.open(run.root), "SELECT purpose, sum(n)::INTEGER AS n FROM task_results "
                                               "GROUP BY purpose ORDER BY purpose")
    assert counts == [{"purpose": "eval", "n": 512}, {"purpose": "eval-turn2", "n": 256}]
    [row] = rows_of(warehouse.open(run.root), "SELECT turn_of('eval-a-turn12') AS turn, base_purpose("
                                              "'eval-a-turn12') AS base, turn_of('eval-turn1') AS first")
    assert row == {"turn": 12, "base": "eval-a", "first": 1}


def test_budgets_that_compare_unlike_things_are_refused(tmp_path: Path, verdicts: tuple) -> None:
    run = run_with(tmp_path, *verdicts, parent=5)
    for budget, words in ((8, "answers completion 5 of a task; with 8 in all only the first 4 would be"),
                          (16, "A task of 'eval' has 8 first turns: 16 of them cannot be compared with. "
                               "Sample more, give a smaller BUDGET, or keep other rows: --purpose eval, ")):
        with pytest.raises(StageError, match=words):
            budget_table(warehouse.open(run.root), budget)
    for purpose in ("train", "it's"):
        refused = CliRunner().invoke(main, [str(run.root), "8", "--purpose", purpose])
        assert refused.exit_code == 1 and "No completion that fits is of a second turn" in refused.output
