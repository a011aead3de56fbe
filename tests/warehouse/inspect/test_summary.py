"""How the summary ends: what the run waits for, and whether it goes wrong."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.building.runs import back_before
from tests.building.weather import SCORER, Weather, build_run, empty_run, write_iteration, write_training
from warehouse.cli import cli
from warehouse.experiments.branch import make_branch
from warehouse.inspect.render import short_share
from warehouse.inspect.summary import iteration_rows, line_of, summary_lines, turning_points
from warehouse.maintain.rollback import roll_back
from warehouse.maintain.tasks import add_tasks
from warehouse.sql.database import connect, rows_of
from warehouse.sql.inventory import take_inventory
from warehouse.store.run_folder import Warehouse, open_warehouse


def ending(run: Warehouse) -> list[str]:
    """The lines after the last blank one."""
    result = CliRunner().invoke(cli, ["summary", str(run.root)])
    assert result.exit_code == 0, result.output
    return result.stdout.rpartition("\n\n")[2].splitlines()


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    return build_run(tmp_path / "run", iterations=2, evals=(), num_tasks=2, group_size=4)


def test_a_trained_run_waits_for_the_next_rollout(run: Warehouse) -> None:
    assert ending(run)[0] == f"Next: rollout {run.root}"


def test_a_scored_iteration_waits_for_training(run: Warehouse) -> None:
    back_before(run, "train", iteration=1)
    assert ending(run)[0] == f"Next: train {run.root}"


def test_a_complete_rollout_waits_for_its_scores(run: Warehouse) -> None:
    back_before(run, "score", iteration=1, purpose="train", scorer=SCORER)
    assert ending(run) == [f"Next: score {run.root}"]
    back_before(open_warehouse(run.root), "score", iteration=0, purpose="train", scorer=SCORER)
    assert ending(run) == [f"Nothing is scored yet. Next: score {run.root}"]


def test_a_rollout_under_way_is_to_be_finished_first(run: Warehouse) -> None:
    back_before(run, "rollout", complete=True, iteration=1, purpose="train")
    assert ending(run)[-1] == f"Next: rollout {run.root}"


def test_a_collapse_is_the_last_thing_said(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="wrong-adapter", iterations=6, evals=(), num_tasks=4,
                    group_size=8)
    due, alarms = ending(run)
    assert due == f"Next, if it is to go on despite the alarm: rollout {run.root}"
    assert alarms.startswith("1 signal since iteration 5")
    assert alarms.endswith(f": warehouse watch {run.root}")
    roll_back(run, 5)
    assert ending(run)[0] == f"Next: rollout {run.root}"


def test_the_first_line_names_the_policies_that_a_rollback_made(run: Warehouse) -> None:
    def first() -> str:
        return CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()[0]
    assert first().endswith("policies 0..2")
    roll_back(run, 1)
    assert first().endswith("policies 0..2 (2 is 1 again)")


def test_iterations_that_a_rollback_left_are_no_part_of_the_trend(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=5, evals=(), num_tasks=4, group_size=8)

    def lines_of(run: Warehouse) -> list[str]:
        return CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()
    lines = lines_of(run)
    assert any(line.startswith("pass@1") and len(line.split()[1]) == 5 for line in lines)
    assert any("over iterations 0 to 4" in line for line in lines)
    roll_back(run, 2)
    lines = lines_of(run)
    assert any(re.match(r"pass@1 +\S{3}    ", line) for line in lines)
    assert any("over iterations 0 to 2" in line for line in lines)


def test_a_branch_from_before_a_rollback_did_not_go_back(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=(), num_tasks=4, group_size=8)
    roll_back(run, 2)
    run = open_warehouse(run.root)
    make_branch(run, tmp_path / "again", 2, rows=True)
    make_branch(run, tmp_path / "after", 4, rows=True)
    assert turning_points(open_warehouse(tmp_path / "again").state) == []
    assert turning_points(open_warehouse(tmp_path / "after").state) == ["Went back to policy 2"]


def test_iterations_that_a_rollback_gave_up_are_marked(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=(0, 3), num_tasks=4, group_size=8)
    roll_back(run, 2)
    lines = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()
    assert [line.split()[0] for line in lines if line.endswith(" given up")] == ["3", "3"]


def test_added_tasks_are_told(run: Warehouse) -> None:
    last = max(run.state.iterations("rollout"))
    add_tasks(run, ("synthetic:2:6",), ())
    assert turning_points(open_warehouse(run.root).state) == [f"2 tasks added after iteration {last}"]


def test_a_rollback_is_told_with_the_settings_that_followed(run: Warehouse) -> None:
    roll_back(run, 1)
    assert turning_points(open_warehouse(run.root).state) == ["Went back to policy 1"]
    random = np.random.default_rng(2)
    rows = write_iteration(run, 2, "train", Weather(), random, num_tasks=2, group_size=4)
    write_training(run, 2, Weather(loss="gspo"), random, rows)
    assert turning_points(open_warehouse(run.root).state) == [
        "Went back to policy 1; loss gspo (was dapo) from iteration 2 on"]


def run_of_sizes(folder: Path, sizes: list[int]) -> Warehouse:
    """A run whose iterations have groups of these sizes."""
    warehouse, random = empty_run(folder, num_tasks=4), np.random.default_rng(0)
    for iteration, size in enumerate(sizes):
        write_iteration(warehouse, iteration, "train", Weather(), random, num_tasks=4, group_size=size)
    return warehouse


def test_pass_at_k_over_iterations_is_of_one_k(tmp_path: Path) -> None:
    run = run_of_sizes(tmp_path / "run", [16, 16, 4])
    reached = [short_share(row["pass_at_k"]) for row in rows_of(
        connect(run), "SELECT pass_at_k FROM pass_curve WHERE k = 4 ORDER BY iteration")]
    result = CliRunner().invoke(cli, ["summary", str(run.root)])
    [trend] = [line for line in result.stdout.splitlines() if line.startswith("pass@4 ")]
    assert trend.endswith(f"  {reached[0]} → {reached[2]}")


def test_an_evaluation_of_one_completion_each_tells_pass_at_1_once(tmp_path: Path) -> None:
    run, random = run_of_sizes(tmp_path / "run", [4, 4]), np.random.default_rng(8)
    for iteration in (0, 1):
        write_iteration(run, iteration, "eval", Weather(), random, num_tasks=4, group_size=1)
        story = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()[1]
        assert story.startswith("On 'eval'") and story.count("pass@") == 1


def test_the_line_of_an_iteration_has_the_reward_if_it_is_a_function_of_the_user(run: Warehouse) -> None:
    connection = connect(run)
    [row] = [row for row in iteration_rows(connection, 0) if row["purpose"] == "train"]
    assert not row["own_reward"] and "reward" not in line_of(row)
    connection.execute("""CREATE TABLE kept AS FROM stages; CREATE OR REPLACE VIEW stages AS SELECT * REPLACE
        (CASE WHEN stage = 'score' THEN json_object('user_code', 'ab') END AS settings) FROM kept""")
    [row] = [row for row in iteration_rows(connection, 0) if row["purpose"] == "train"]
    assert f"reward {row['reward_mean']:.3f}" in line_of(row)


def test_the_parts_of_a_reward_have_trends(run: Warehouse) -> None:
    connection, inventory = connect(run), take_inventory(run)
    assert not any(line.startswith("exact") for line in summary_lines(run, connection, inventory))
    connection.execute("""CREATE OR REPLACE VIEW part_means AS SELECT iteration, 'train' AS purpose, part,
        iteration / 1000 - 0.0046 AS mean FROM (VALUES (0), (1)) AS of(iteration),
        (VALUES ('form'), ('right')) AS p(part)""")
    lines = summary_lines(run, connection, inventory)
    assert [line for line in lines if line.startswith(("form", "right"))] == [
        "form       ▁█  -0.0046 → -0.0036", "right      ▁█  -0.0046 → -0.0036"], "small parts, too"
