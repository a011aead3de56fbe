"""The gain that the summary tells and its +-: of two visits to the same tasks, of others, of too few."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.building.runs import (
    begin,
    completion_row,
    finish,
    new_run,
    prompt_row,
    sample_row,
    without_waiting,
    write_rows,
)
from tests.building.weather import build_run
from warehouse.cli import cli
from warehouse.inspect.render import short_share
from warehouse.inspect.story import PAIRS, Change, story_lines
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import connect, rows_of
from warehouse.store.run_folder import Warehouse

SCORER = "exact-0123456789"
Counts = dict[str, tuple[int, int]]     # completions of a task and how many are right


def evaluated(folder: Path, *visits: Counts, solves: bool | None = True, purpose: str = "eval",
              temperatures: tuple[float, ...] = ()) -> Warehouse:
    """A run whose evaluation at each iteration gave this; no reward could be measured where a task has -1.

    Without `solves` what is paid is not right; None: nobody knows what is.
    """
    with without_waiting():
        run = new_run(folder / "run")
        for iteration, visit in enumerate(visits):
            keys = {"iteration": iteration, "purpose": purpose}
            prompts = [prompt_row(task, n, **keys) for task, (n, _) in visit.items()]
            rows = [completion_row(prompt, index, [1, 2], [-1.0, -1.0])
                    for prompt in prompts for index in range(prompt["group_size"])]
            scores = [sample_row(row, SCORER, None if c < 0 else float(row["sample_index"] < c),
                                 correct=solves and row["sample_index"] < c)
                      for row in rows for _, c in [visit[row["task_id"]]]]
            begin(run, "rollout", {"temperature": temperatures[iteration]} if temperatures else None, **keys)
            write_rows(run, "prompts", [prompts])
            write_rows(run, "completions", [rows])
            finish(run, "rollout", **keys)
            write_rows(run, "samples", [scores], scorer=SCORER)
            finish(run, "score", scorer=SCORER, **keys)
    return run


def said(run: Warehouse) -> str:
    [line] = story_lines(connect(run), [])
    return line


def test_between_visits_to_the_same_tasks_the_error_is_that_of_the_tasks_gains(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    ease = random.beta(0.8, 1.6, 60)
    before, after = random.binomial(16, ease), random.binomial(16, np.clip(ease + 0.04, 0, 1))
    run = evaluated(tmp_path, *({f"t{task:02}": (16, int(c)) for task, c in enumerate(visit)}
                                for visit in (before, after)))
    gains = (after - before) / 16
    margin = 1.96 * gains.std(ddof=1) / np.sqrt(60)
    assert f"({gains.mean():+.3f} ± {margin:.3f} at 95% over tasks)" in said(run)
    apart = 1.96 * np.hypot(*(rates.std(ddof=1) / np.sqrt(60) for rates in (before / 16, after / 16)))
    assert margin < 0.5 * apart


def test_the_interval_of_the_gain_holds_it_as_often_as_it_says(tmp_path: Path) -> None:
    """Two evaluations of a policy that stayed as it is: 95% of the intervals of many such pairs hold 0."""
    connection = connect(evaluated(tmp_path, {"t0": (1, 1)}))
    random, held, pairs = np.random.default_rng(0), [], 200
    for _ in range(pairs):
        ease = random.beta(0.8, 1.6, 40)
        rows = [(iteration, "eval", f"t{task}", 8, int(random.binomial(8, p)))
                for iteration in (0, 1) for task, p in enumerate(ease)]
        connection.execute("CREATE OR REPLACE TEMP TABLE visits AS SELECT unnest($1) AS row", [[
            dict(zip(("iteration", "purpose", "task_id", "n", "c"), row, strict=True)) for row in rows]])
        connection.execute("CREATE OR REPLACE TEMP VIEW task_results AS "
                           "SELECT row.*, 0.0 AS reward_mean FROM visits")
        [found] = rows_of(connection, PAIRS, ["eval", 0, 1, 1])
        gain = sum(c / 8 * (1 if iteration else -1) for iteration, *_, c in rows) / 40
        held.append(abs(gain) <= 1.96 * found["error"])
    assert 0.91 <= np.mean(held) <= 0.98


def test_few_tasks_are_beyond_chance_for_sql_only_where_the_summary_says_so(tmp_path: Path) -> None:
    """Six tasks that lost one completion of eight or none: their gains are alike by chance."""
    for number, fallen in enumerate(((0, 1, 0, 1, 1, 1), (5, 6, 5, 6, 5, 6))):
        run = evaluated(tmp_path / str(number), {f"t{task}": (8, 7) for task in range(6)},
                        {f"t{task}": (8, 7 - less) for task, less in enumerate(fallen)})
        margin = float(re.search(r"± (\S+) at", said(run))[1])
        [row] = rows_of(connect(run), "FROM gains(0, 1)")
        assert row["beyond_chance"] == ("it got worse" in said(run)) == bool(number)
        assert row["high"] - row["gain"] == pytest.approx(margin, abs=0.005)


def test_the_same_draws_make_a_small_gain_certain(tmp_path: Path) -> None:
    """Four completions of 60 tasks, drawn alike: one more of every fifth task is right."""
    visits = ({f"t{task:02}": (4, task % 3 + (late and task % 5 == 0)) for task in range(60)}
              for late in (0, 1))
    told = said(evaluated(tmp_path, *visits))
    assert "it learned; pass@1 .25 → .30 (+0.050 ± 0.026 at 95% over tasks)" in told


def test_where_the_tasks_differ_the_fit_gives_the_error(tmp_path: Path) -> None:
    run = evaluated(tmp_path, {f"t{task}": (8, task) for task in range(8)},
                    {f"t{task}": (8, task + 1) for task in range(1, 8)})
    first, last = rows_of(connect(run), "FROM adjusted ORDER BY iteration")
    margin = 1.96 * np.hypot(first["solving_error"], last["solving_error"])
    gain = (f"{last['solving'] - first['solving']:+.3f} ± {margin:.3f} at 95% over tasks, "
            "at equal difficulty of tasks")
    plain = f"{short_share(first['solving_plain'])} → {short_share(last['solving_plain'])}"
    assert f"{gain} (plain means of different tasks: {plain})" in said(run)


def test_a_training_on_other_tasks_each_time_is_judged_by_means_of_iterations(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    ease = random.normal(0, 0.15, 16)
    visits = []
    for iteration in range(40):
        chosen, level = random.choice(16, 4, replace=False), 0.3 + 0.008 * iteration
        visits.append({f"t{task}": (8, int(random.binomial(8, np.clip(level + ease[task], 0, 1))))
                       for task in chosen})
    run = evaluated(tmp_path, *visits, purpose="train")
    rows = rows_of(connect(run), "FROM adjusted ORDER BY iteration")
    ends = rows[:10], rows[-10:]
    before, after = (np.mean([row["solving"] for row in end]) for end in ends)
    gain = after - before
    margin = 1.96 * np.hypot.reduce([row["solving_error"] for end in ends for row in end]) / 10
    assert said(run).startswith(
        f"Learned the training tasks: pass@1 {gain:+.3f} ± {margin:.3f} at 95% over tasks")
    assert said(run).endswith("over iterations 0 to 39, means of the first and last 10.")
    assert 0.15 < gain < 0.35


def test_one_task_once_is_no_ground_for_a_judgement(tmp_path: Path) -> None:
    run = evaluated(tmp_path, {"t0": (1, 1)}, {"t0": (1, 1)}, {"t0": (1, 0)}, {"t0": (1, 0)})
    assert said(run) == ("On 'eval', policy 0 to 3: too little to tell; "
                         "pass@1 1.00 → .00 (-1.000, too few tasks for an interval).")
    assert rows_of(connect(run), "SELECT signal FROM raised_signals WHERE signal <> 'reward_hacking'") == []
    assert {row["solving_error"] for row in rows_of(connect(run), "FROM adjusted")} == {None}


def test_one_task_within_less_reach_is_no_ground_to_stop(tmp_path: Path) -> None:
    """pass@16 has no error over tasks there; pass@1 rises."""
    run = evaluated(tmp_path, *4 * [{"t0": (16, 1)}], *2 * [{"t0": (64, 5)}])
    assert rows_of(connect(run), "SELECT signal FROM raised_signals") == []


def test_where_nothing_is_solved_the_reward_is_told(tmp_path: Path) -> None:
    after = (8, 10, 8, 10, 8, 10)
    run = evaluated(tmp_path, {f"t{n}": (16, 4) for n in range(6)},
                    {f"t{n}": (16, right) for n, right in enumerate(after)}, solves=False)
    margin = 1.96 * np.std([(right - 4) / 16 for right in after], ddof=1) / np.sqrt(6)
    told = f" the reward rose; reward .25 → .56 (+0.312 ± {margin:.3f} at 95% over tasks)."
    assert said(run) == f"On 'eval', policy 0 to 1: no task is solved,{told}"


def test_a_training_in_which_no_task_is_solved_says_so_unless_nobody_can_know(tmp_path: Path) -> None:
    visits = [{f"t{n}": (16, paid) for n in range(40)} for paid in (1, 2)]
    for solves, told in ((False, "No task is solved; the reward rose"), (None, "Learned the training tasks")):
        run = evaluated(tmp_path / str(solves), *visits, solves=solves, purpose="train")
        assert said(run).startswith(f"{told}: reward .06 → .12 (+0.062 ")


def test_one_task_many_times_is_told_by_its_completions(tmp_path: Path) -> None:
    run = evaluated(tmp_path, {"t0": (16, 4)}, {"t0": (16, 8)})
    margin = 1.96 * np.sqrt((0.25 * 0.75 + 0.5 * 0.5) / 15)
    assert f"pass@1 .25 → .50 (+0.250 ± {margin:.3f} at 95% over tasks)" in said(run)


def test_what_is_never_right_has_0_and_no_rest_of_a_sum(tmp_path: Path) -> None:
    run = evaluated(tmp_path, *({f"t{task}": (8, right * task) for task in range(7)} for right in (1, 0)))
    [row] = rows_of(connect(run), "SELECT solving, reach, reward FROM adjusted WHERE iteration = 1")
    assert list(map(str, row.values())) == ["0.0"] * 3


def test_scores_without_a_reward_are_not_told_as_no_scores(tmp_path: Path) -> None:
    run = evaluated(tmp_path, {"t0": (4, -1), "t1": (4, -1)})
    assert said(run) == "Nothing is judged yet: no reward could be measured."
    printed = CliRunner().invoke(cli, ["summary", str(run.root)])
    assert printed.exit_code == 0 and re.search("8 rewards left out", printed.stdout)
    assert said(new_run(tmp_path / "other")) == "Nothing is judged yet: nothing is scored."


def test_one_task_has_no_interval_over_tasks(tmp_path: Path) -> None:
    bands = rows_of(connect(evaluated(tmp_path, {"t0": (4, 2)}, {"t0": (4, 2), "t1": (4, 1)})),
                    "FROM pass_bands() WHERE k = 1 ORDER BY iteration")
    assert (bands[0]["pass_at_k"], bands[0]["low"], bands[0]["high"]) == (pytest.approx(0.5), None, None)
    assert (bands[1]["low"], bands[1]["high"]) == (pytest.approx(0.25), pytest.approx(0.5))


def test_an_evaluation_of_a_policy_that_a_rollback_left_is_no_result(tmp_path: Path) -> None:
    """Policy 2 was worse and is left: policy 3 is policy 1 again, and the sentence is about 0 and 1."""
    run = build_run(tmp_path / "run", iterations=3, evals=(0, 1, 2), num_tasks=4, group_size=8)
    assert any(line.startswith("On 'eval', policy 0 to 2:") for line in story_lines(connect(run), []))
    roll_back(run, 1)
    assert any(line.startswith("On 'eval', policy 0 to 1:") for line in story_lines(connect(run), []))


def test_of_a_few_tasks_no_gain_is_claimed(tmp_path: Path) -> None:
    """The rewards of three tasks that all gained the same vary in nothing, and say nothing about others."""
    visits = ({f"t{n}": (4, 1) for n in range(3)}, {f"t{n}": (4, 3) for n in range(3)})
    line = said(evaluated(tmp_path, *visits, solves=False))
    assert line == ("On 'eval', policy 0 to 1: no task is solved, too little to tell; "
                    "reward .25 → .75 (+0.500, too few tasks for an interval).")


def test_small_changes_have_three_digits() -> None:
    assert str(Change(0.031, 0.033, 0.002, 0.001)) == ".031 → .033 (+0.002 ± 0.001 at 95% over tasks)"
    assert str(Change(0.095, 0.0965, 0.0015, 0.0004)).endswith("(+0.0015 ± 0.0004 at 95% over tasks)")
    assert str(Change(0.03, 0.05, 0.02, 0.001)) == ".03 → .05 (+0.020 ± 0.001 at 95% over tasks)"


def test_evaluations_that_were_sampled_otherwise_are_not_compared(tmp_path: Path) -> None:
    worse, better = ({f"t{n}": (8, right) for n in range(40)} for right in (2, 6))
    run = evaluated(tmp_path, worse, better, better, temperatures=(1.0, 0.2, 0.2))
    assert said(run).startswith("On 'eval', policy 1 to 2: no change beyond chance;")
    assert said(run).endswith(" (others were sampled with temperature 1.0 instead of 0.2).")
    assert "it learned" in said(evaluated(tmp_path / "same", worse, better, temperatures=(1.0, 1.0)))
    run = evaluated(tmp_path / "only", worse, better, temperatures=(1.0, 0.2))
    assert "; nothing to compare it with (others were sampled with temperature 1.0" in said(run)


def test_eval_asks_for_every_evaluation_also_named_ones(tmp_path: Path) -> None:
    visits = ({f"t{n}": (4, 1) for n in range(8)}, {f"t{n}": (4, 3) for n in range(8)})
    connection = connect(evaluated(tmp_path, *visits, purpose="eval-mbpp"))
    for asked in ("eval", "eval-mbpp", "%mbpp"):
        [row] = rows_of(connection, f"FROM gains(0, 1, '{asked}')")
        assert (row["purpose"], row["num_tasks"], row["gain"]) == ("eval-mbpp", 8, 0.5)
    assert not rows_of(connection, "FROM gains(0, 1, 'eval-other')")
