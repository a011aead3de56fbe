"""Alarms on runs of every shape, and going back to an earlier policy."""

import json
import re
import shlex
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks.collapse_drill import BROKEN, judge, learning
from benchmarks.collapse_drill import ONSET as DRILL_ONSET
from tests.building.runs import back_before, completion_row, prompt_row, write_rows
from tests.building.sound import check_run
from tests.building.weather import (
    SAMPLING,
    SCORER,
    SHAPES,
    Weather,
    build_run,
    empty_run,
    write_iteration,
    write_training,
)
from warehouse.cli import cli
from warehouse.inspect.advice import _paid, advise, alarm_lines, changed_settings
from warehouse.inspect.alarms import Alarm, _examples, raised_alarms
from warehouse.inspect.story import _fall
from warehouse.inspect.summary import turning_points
from warehouse.ledger.entries import Alarmed
from warehouse.loop.devices import Crew, chosen_devices
from warehouse.loop.driver import Loop, LoopOptions
from warehouse.maintain.prune import prune_policies
from warehouse.sql.database import compute_once, connect, empty_connection, rows_of
from warehouse.store.run_folder import Warehouse, open_warehouse

ONSET = 5
WANTING = "for lack of earlier iterations of the same scorer: "
MISSING = "for lack of a training, rows of its own policy, or outputs to compare: "
UNJUDGED = (f"Not checked at eval 0, {WANTING}truncation, loops, repetition, no_code, "
            "errors, entropy_high, entropy_low, length_up, reward_hacking, diversity, sharpening, "
            "solving_falls, reward_falls.\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Warehouse]:
    root = tmp_path_factory.mktemp("runs")
    return {shape: build_run(root / shape, shape=shape, iterations=9, evals=(0,)) for shape in SHAPES}


def fired(run: Warehouse) -> dict[str, int]:
    alarms = raised_alarms(compute_once(connect(run)), examples=False)
    return {alarm.signal: alarm.first_iteration for alarm in alarms if alarm.fired}


def watch(run: Warehouse, *options: object) -> Result:
    return CliRunner().invoke(cli, ["watch", str(run.root), *map(str, options)])


def test_a_healthy_run_raises_no_alarm(runs: dict[str, Warehouse]) -> None:
    assert fired(runs["healthy"]) == {}
    quiet = watch(runs["healthy"])
    assert quiet.exit_code == 0
    assert quiet.stdout == ("No alarm.\nChecked: iteration 0 to 8, 10 to 25 signals each.\n"
                            f"Checked: eval 0, 2 signals each.\n{UNJUDGED}")


@pytest.mark.parametrize("seed", [1, *(
    pytest.param(seed, marks=pytest.mark.slow("other draws of the same run")) for seed in (2, 3))])
def test_other_healthy_runs_raise_none_either(tmp_path: Path, seed: int) -> None:
    assert fired(build_run(tmp_path / "run", iterations=8, evals=(), seed=seed)) == {}


@pytest.mark.parametrize(("shape", "expected", "never"), [
    ("blow-up", {"truncation": ONSET, "loops": ONSET, "no_code": ONSET, "repetition": ONSET + 1,
                 "entropy_high": ONSET + 1}, {"mismatch", "entropy_low", "reward_hacking"}),
    ("mute", {"entropy_low": ONSET + 1},
     {"truncation", "reward_falls", "mismatch", "diversity"}),     # nothing is lost: pass@k does not fall
    ("mismatch", {"mismatch": ONSET}, {"truncation", "entropy_low", "reward_falls"}),
    ("wrong-adapter", {"wrong_weights": ONSET}, {"truncation", "mismatch", "reward_falls"}),
    ("length-hacking", {"reward_hacking": ONSET + 1, "length_up": ONSET + 1}, {"truncation", "entropy_low"}),
])
def test_each_shape_raises_its_alarms_at_its_onset(runs: dict[str, Warehouse], shape: str,
                                                   expected: dict[str, int], never: set[str]) -> None:
    found = fired(runs[shape])
    assert expected.items() <= found.items()
    assert not never & found.keys()
    assert min(found.values()) >= ONSET


def test_an_alarm_names_completions_that_show_it(runs: dict[str, Warehouse]) -> None:
    result = watch(runs["blow-up"])
    assert result.exit_code == 3
    assert ("truncation since iteration 5, in 4 iterations up to 8: Share of truncated completions"
            in result.stdout)
    connection = connect(runs["blow-up"])
    alarm = next(one for one in raised_alarms(connection) if one.signal == "truncation")
    assert len(alarm.examples) == 3
    for task, index in alarm.examples:
        rows = connection.execute("SELECT truncated FROM samples WHERE iteration = 5 AND purpose = 'train' "
                                  "AND task_id = ? AND sample_index = ?", [task, index])
        assert rows.fetchall() == [(True,)]
    assert advice(result.stdout).endswith(f"warehouse rollback {runs['blow-up'].root} --to 4")


def advice(text: str) -> str:
    """What `watch` says first: what to do."""
    return text.partition("\n\n")[0]


def test_a_fall_is_told_with_the_errors_that_rose_with_it(runs: dict[str, Warehouse]) -> None:
    run, lines = runs["blow-up"], watch(runs["blow-up"]).stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("solving_falls"))
    [[now, before]] = connect(run).execute(
        "SELECT count(*) FILTER (iteration = 5), count(*) FILTER (iteration = 4) FROM samples "
        "WHERE purpose = 'train' AND iteration IN (4, 5) AND error_class = 'no_code'").fetchall()
    assert lines[place + 1] == (f"    no_code: {now / 128:.0%} of the completions, {before / 128:.0%} the "
                                "iteration before")
    assert now > before + 12 and "the iteration before" not in lines[place + 2]


def test_a_fall_between_evaluations_names_the_evaluation_before(tmp_path: Path) -> None:
    said = watch(build_run(tmp_path / "run", shape="blow-up", iterations=9, evals=(0, 8))).stdout
    errors = said.partition("\nerrors (eval)")[2].splitlines()
    assert errors[1].endswith(" of the completions, 2% the evaluation before")


def test_one_bad_iteration_is_no_trend(tmp_path: Path) -> None:
    # The last of six iterations goes wrong once: trends wait for a second one, wrong weights do not.
    assert fired(build_run(tmp_path / "mute", shape="mute", iterations=ONSET + 2, evals=())) == {}
    once = fired(build_run(tmp_path / "adapter", shape="wrong-adapter", iterations=ONSET + 1, evals=()))
    assert once == {"wrong_weights": ONSET}


def test_rows_of_the_policy_before_raise_nothing_however_long_they_are(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="stale", iterations=ONSET + 2, evals=())
    [whole, tokens] = connect(run).execute("SELECT min(completion_ess), min(train_steps.ess) FROM mismatch "
                                           "JOIN train_steps USING (iteration)").fetchone() or ()
    assert whole < 0.3 and tokens > 0.9        # the ratios of whole completions multiply
    assert fired(run) == {}


def test_one_token_far_off_is_no_alarm_and_rows_far_off_are_one_at_the_second_iteration(
        tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=3, evals=())
    go_on(run, 3, Weather(staleness=1, outlier=7.0))
    assert connect(run).execute("SELECT min(ess), max(ess) > 0.9 FROM train_steps "
                                "WHERE iteration = 3").fetchone() == (pytest.approx(0.004, rel=0.5), True)
    assert fired(run) == {}
    go_on(run, 4, Weather(staleness=1, log_ratio=3, nll=3))
    assert "ess" not in fired(run)
    go_on(run, 5, Weather(staleness=1, log_ratio=3, nll=3))
    assert fired(run)["ess"] == 4


def test_too_few_iterations_have_no_trend(tmp_path: Path) -> None:
    assert fired(build_run(tmp_path / "run", iterations=2, evals=())) == {}
    assert fired(empty_run(tmp_path / "empty")) == {}


def test_ignored_and_past_alarms_do_not_fire(runs: dict[str, Warehouse]) -> None:
    run = runs["wrong-adapter"]
    assert watch(run, "--since", ONSET + 1).exit_code == 0
    assert watch(run, "--ignore", "wrong_weights").exit_code == 0
    unknown = watch(run, "--ignore", "nonsense")
    assert unknown.exit_code == 1 and "There is no signal 'nonsense'" in unknown.stderr


def test_commands_that_are_named_can_be_typed_where_the_folder_has_a_space(tmp_path: Path):
    run = build_run(tmp_path / "learning rate" / "1", shape="blow-up", iterations=6, evals=())
    named = [shlex.split(line[found.start():].partition(" (also")[0])
             for line in watch(run).stdout.splitlines()
             if (found := re.search("(warehouse rollback|score explain) ", line))]
    assert len(named) > 2 and all(words[2] == str(run.root) for words in named)


def test_no_policy_without_weights_is_advised(tmp_path: Path):
    run = build_run(tmp_path / "run", shape="blow-up", iterations=6, evals=())
    back, = re.findall("warehouse rollback .* --to ([0-9]+)", watch(run).stdout)
    prune_policies(run, run.state.newest - int(back))
    told = watch(run)
    assert told.exit_code == 3 and "warehouse rollback" not in told.stdout
    assert f"The weights of policy {back} and of those before it are removed (--keep-policies)" in told.stdout


def rollback(run: Warehouse, to: int) -> Result:
    return CliRunner().invoke(cli, ["rollback", str(run.root), "--to", str(to)])


def test_going_back_before_the_next_rollout_replaces_the_newest_policy(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=3, evals=())
    rows = connect(run).execute("SELECT count(*) FROM completions").fetchone()
    result = rollback(run, 1)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == (
        "policy 3 now has the weights of policy 1; the former policy 3 stays in policies/3/generation=17")
    assert run.policy(3)["sha256"] == run.policy(1)["sha256"] and run.policy(3)["rolled_back_to"] == 1
    former = json.loads((run.root / "policies/3/generation=17/policy.json").read_text())
    assert former["sha256"] == f"{3:064d}"
    assert run.state.rollout_due() == 3 and run.state.train_due() == 3
    assert connect(run).execute("SELECT count(*) FROM completions").fetchone() == rows
    assert check_run(run).problems == []


def test_going_back_after_a_rollout_leaves_its_iteration_untrained(tmp_path: Path) -> None:
    back_before(build_run(tmp_path / "run", iterations=3, evals=()), "train", iteration=2)
    run = open_warehouse(tmp_path / "run")
    result = rollback(run, 0)
    assert "policy 3 now has the weights of policy 0; iteration 2 is left out" in result.stdout
    assert run.state.rollout_due() == 3 and run.state.train_due() == 3
    assert run.policy(3)["sha256"] == run.policy(0)["sha256"]
    assert connect(run).execute("SELECT max(iteration) FROM samples").fetchone() == (2,)
    assert check_run(run).problems == []


def go_on(run: Warehouse, iteration: int, sky: Weather) -> None:
    """One more iteration, sampled, scored and trained."""
    random = np.random.default_rng(iteration)
    rows = write_iteration(run, iteration, "train", sky, random)
    write_training(run, iteration, sky, random, rows)


def test_an_alarm_is_over_once_the_results_are_as_good_as_before(tmp_path: Path) -> None:
    run, sky = build_run(tmp_path / "run", shape="blow-up", iterations=7, evals=()), Weather(solve=0.45)
    for iteration in range(7, 16):
        go_on(run, iteration, sky)
    assert watch(run).exit_code == 3                       # nine good iterations
    go_on(run, 16, sky)
    good = watch(run)
    assert good.exit_code == 0 and good.stdout.startswith("No alarm.")
    over = good.stdout.partition("\nOver; results have since been as good as before:\n")[2]
    assert over.startswith("loops raised at iteration 5, in 2 iterations up to 6: ")
    assert "no_code raised" in over
    assert "Raised once" not in good.stdout and "rollback" not in good.stdout
    said = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout
    assert "Fell" not in said and "Collapsed" not in said and " over: warehouse watch " in said
    blown = sky._replace(solve=0.0, truncated=0.9)      # a second fall begins where it begins
    for iteration in (17, 18):
        go_on(run, iteration, blown)
    again = {alarm.signal: alarm.first_iteration for alarm in raised_alarms(connect(run)) if alarm.fired}
    assert again["truncation"] == again["solving_falls"] == 17
    assert advice(watch(run).stdout).endswith(f"warehouse rollback {run.root} --to 16")


def test_three_lucky_iterations_are_no_level_that_the_results_must_reach_again() -> None:
    connection = run_of([*15 * [0.6], 0.68, 0.7, 0.69, 0.6, 0.6, 0.42, 0.42, *12 * [0.63]])
    assert {alarm.signal: alarm.over for alarm in raised_alarms(connection, examples=False)} == {
        "solving_falls": True}
    lower = run_of([*15 * [0.6], 0.68, 0.7, 0.69, 0.6, 0.6, 0.42, 0.42, *12 * [0.6]])
    assert [alarm.over for alarm in raised_alarms(lower, examples=False)] == [False]


def test_a_loop_that_is_started_again_after_an_alarm_judges_what_comes_after_it(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="blow-up", iterations=7, evals=())

    def look(iteration: int) -> list[str]:
        world = open_warehouse(run.root)
        return Loop(world, LoopOptions(20), Crew(chosen_devices("all")), lambda *_: None,  # type: ignore
                    lambda *_: None)._look(iteration).signals

    assert "truncation" in look(6)
    run.append(lambda state: Alarmed(state.of_stage("train", 6)[0].begun, ["truncation"]))
    assert look(6) == []
    go_on(run, 7, Weather())
    assert look(7) == [] and watch(run).exit_code == 3       # what fired is still shown
    for iteration in (8, 9):
        go_on(run, iteration, Weather(truncated=0.9))
    assert "truncation" in look(9)
    assert open_warehouse(run.root).state.unheeded == 7
    made = CliRunner().invoke(cli, ["branch", str(run.root), str(tmp_path / "new"), "--at", "6"])
    assert made.exit_code == 0, made.output
    assert open_warehouse(tmp_path / "new").state.unheeded == 0      # its iteration 6 is another one


def test_alarms_start_again_after_going_back(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="blow-up", iterations=8, evals=())
    assert watch(run).exit_code == 3
    assert rollback(run, 4).exit_code == 0
    [back] = turning_points(open_warehouse(run.root).state)
    assert re.fullmatch(r"Went back to policy 4: .*\btruncation\b.* since iteration [45]", back)
    quiet = watch(run)
    assert quiet.exit_code == 0
    assert "No training iteration from 8 on is scored." in quiet.stdout
    go_on(run, 8, Weather(tokens=70.0))
    once = watch(run)                         # the second bad one in a row, were it not for the rollback
    assert once.exit_code == 0, once.stdout
    assert "an alarm if raised twice in a row:\nlength_up raised at iteration 8" in once.stdout
    assert "truncation since iteration" in watch(run, "--since", 0).stdout
    go_on(run, 9, Weather(tokens=70.0))
    twice = watch(run)
    assert twice.exit_code == 3
    assert "\n\nlength_up since iteration 8, in 2 iterations up to 9" in twice.stdout
    # Policy 8 has the weights of policy 4, so the one before it is policy 3 and not the spoilt policy 7.
    assert advice(twice.stdout).endswith(f"warehouse rollback {run.root} --to 3")


def test_since_leaves_out_a_dip_that_is_over(tmp_path: Path) -> None:
    run, cut_off = build_run(tmp_path / "run", iterations=3, evals=()), Weather(truncated=0.9)
    for iteration, sky in enumerate((cut_off, Weather(), Weather(), cut_off, cut_off), start=3):
        go_on(run, iteration, sky)
    assert "truncation since iteration 3, in 3 iterations up to 7" in watch(run).stdout
    late = watch(run, "--since", 7).stdout
    assert "truncation since iteration 6, in 2 iterations up to 7" in late
    assert advice(late).endswith(f"warehouse rollback {run.root} --to 5")


@pytest.mark.parametrize("shape", ["wrong-adapter", "mismatch"])
def test_a_mismatch_is_the_fault_of_the_engine_not_of_the_policy(runs: dict[str, Warehouse],
                                                                 shape: str) -> None:
    run = runs[shape]
    headline, *lines = watch(run).stdout.splitlines()
    assert headline.startswith("Alarm: ") and "wrong_weights since iteration " in headline
    assert lines[0].startswith("Fix the engine first") and "Policy 5 is sound; policy 6" in lines[0]
    assert lines[1] == f"Stop here, or go back: warehouse rollback {run.root} --to {ONSET}"
    assert lines[4] == (f'    warehouse sql {run.root} "FROM token_gaps({ONSET}) '
                        'ORDER BY abs(gap) DESC LIMIT 15"')
    gaps = [abs(gap) for (gap,) in connect(run).execute("SELECT gap FROM token_gaps(5)").fetchall()]
    moved = sum(gap > 0.05 for gap in gaps)
    like = ", as with another policy" if shape == "wrong-adapter" else ""
    assert (f"{moved / len(gaps):.0%} of its tokens are off by 0.05 and more, "
            f"{sum(gap > 5 for gap in gaps) / moved:.0%} of these by 5 and more{like}. ") in lines[0]


def test_a_reward_that_pays_wrong_answers_is_mended_before_the_steps(runs: dict[str, Warehouse]) -> None:
    run = runs["length-hacking"]
    [[now, before]] = connect(run).execute(
        "SELECT avg(reward) FILTER (iteration = 6), avg(reward) FILTER (iteration = 0) FROM samples "
        "WHERE NOT correct AND purpose = 'train'").fetchall()
    [line] = [line for line in watch(run).stdout.splitlines() if line.startswith("Fix the reward")]
    assert line.startswith("Fix the reward first, or it happens again: in iteration 6 wrong completions "
                           f"were paid {now:.4g} on average, {before:.4g} at first")


@pytest.mark.parametrize(("at_first", "blamed"), [(0.1, True), (0.3, False)])
def test_a_reward_that_pays_wrong_answers_less_than_at_first_is_not_blamed(at_first: float,
                                                                           blamed: bool) -> None:
    connection = emptied()
    connection.execute("CREATE TABLE paid AS SELECT * FROM (VALUES (0, 1, $1), (0, 2, $1), (3, 1, 0.1), "
                       "(3, 2, 0.2), (3, 3, 0.3)) AS rows (iteration, tokens, reward)", [at_first])
    known = {"iteration": "iteration", "purpose": "'train'", "num_completion_tokens": "tokens",
             "reward": "reward", "correct": "false"}
    for view in ("samples", "iteration_stats"):
        columns = ", ".join(f"{known.get(name, 'NULL')}::{kind} AS {name}" for name, kind, *_ in
                            connection.execute(f"DESCRIBE {view}").fetchall())
        connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM paid")
    long = Alarm("truncation", "train", True, 3, 3, 1, 0.5, 0.2, True, "", [], [], False)
    assert ("longer ones more (correlation 1.00)" in _paid(connection, [long])) == blamed


def test_causes_are_named_before_what_follows_from_them(runs: dict[str, Warehouse]) -> None:
    def at_onset(shape: str) -> list[str]:
        alarms = [one for one in raised_alarms(connect(runs[shape])) if one.fired]
        assert [one.first_iteration for one in alarms] == sorted(one.first_iteration for one in alarms)
        return [one.signal for one in alarms]

    assert at_onset("blow-up")[:2] == ["truncation", "loops"]
    assert at_onset("wrong-adapter")[0] == "wrong_weights"
    hacking = at_onset("length-hacking")
    assert hacking.index("length_up") < hacking.index("reward_hacking")


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_what_could_not_be_judged_yet_is_said(tmp_path: Path, iterations: int) -> None:
    quiet = watch(build_run(tmp_path / "run", iterations=iterations, evals=(), num_tasks=2, group_size=8))
    assert quiet.exit_code == 0
    assert quiet.stdout == "No alarm.\n" + {
        1: "Checked: iteration 0, 10 signals each.\n"
           + UNJUDGED.replace("eval", "iteration").replace("trunc", "grad_norm, clipping, trunc"),
        2: "Checked: iteration 0 to 1, 10 to 22 signals each.\n"
           f"Not checked at iteration 1, {WANTING}grad_norm, diversity, sharpening.\n",
        3: "Checked: iteration 0 to 2, 10 to 23 signals each.\n"
           f"Not checked at iteration 2, {WANTING}diversity, sharpening.\n"}[iterations]


def test_nothing_is_judged_without_scores_and_no_mismatch_without_training(tmp_path: Path) -> None:
    empty = watch(empty_run(tmp_path / "empty"))
    assert (empty.exit_code, empty.stdout) == (
        0, "No alarm.\nNo training iteration from 0 on is scored.\n")
    run = build_run(tmp_path / "run", iterations=5, evals=(), num_tasks=2, group_size=8, trained=False)
    said = watch(run).stdout
    assert "Checked: iteration 0 to 4, 2 to 15 signals each.\nNot checked at iteration 4, " in said
    assert f"{MISSING}wrong_weights, mismatch, ess, weight_mean, weight_spread, step_ratio, " in said


def test_a_dead_iteration_fires_at_once(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=())
    go_on(run, 4, Weather(solve=0.0, truncated=0.98))
    dead = watch(run)
    assert dead.exit_code == 3
    assert {"truncation", "no_code", "solving_falls", "reward_falls"} <= fired(run).keys()
    assert advice(dead.stdout).endswith(f"warehouse rollback {run.root} --to 3")
    story, *said = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()[1:]
    assert story.startswith("Collapsed at iteration 4: pass@1 .") and ".00 at iteration 4" in story
    assert "\n".join(said).startswith(advice(dead.stdout).partition("\n")[2])


@pytest.mark.parametrize("carries", [False, True])
def test_nothing_falls_from_an_iteration_that_ended_with_its_shortest(tmp_path: Path, carries: bool) -> None:
    run, random = empty_run(tmp_path / "run"), np.random.default_rng(0)
    for iteration, solve in enumerate((0.6, 0.25, 0.25, 0.25)):
        if carries:
            prompt = prompt_row("late", 16, iteration=iteration)
            write_rows(run, "carried", [[completion_row(prompt, 0, [1], [-1.0], "", finish_reason=None)]],
                       settings=SAMPLING)
        write_iteration(run, iteration, "train", Weather(solve=solve), random)
    assert ("solving_falls" in fired(run)) is not carries
    story = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()[1]
    assert "over iterations 2 to 3" in story if carries else story.startswith("Collapsed at iteration 1")


def test_a_fall_that_was_made_good_is_no_collapse(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=())
    for iteration, solve in ((4, 0.1), (5, 0.1), (6, 0.5)):
        go_on(run, iteration, Weather(solve=solve, truncated=0.5))
    story = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()[1]
    with connect(run) as connection:
        passes = dict(connection.execute("SELECT iteration, pass_at_1 FROM iteration_stats").fetchall())
    shown = [f"{passes[iteration]:.2f}".lstrip("0") for iteration in range(7)]
    lowest = min((4, 5), key=passes.__getitem__)
    assert story.startswith(f"Fell at iteration 4: pass@1 {max(shown[:4])} at best, {shown[lowest]} at "
                            f"iteration {lowest}, {shown[6]} at iteration 6. Signals since iteration 4")


def test_a_fall_at_equal_difficulty_of_tasks_says_so_where_the_table_has_other_numbers() -> None:
    rows = [{"iteration": iteration, "solving": solving, "solving_plain": plain, "reward": None}
            for iteration, (solving, plain) in enumerate([(0.35, 0.37), (0.1, 0.1)])]
    told = "Collapsed at iteration 1: pass@1 .35 at best, .10 at iteration 1"
    assert _fall(rows, {"solving_falls": 1}) == f"{told}, at equal difficulty of tasks."
    assert _fall([{**rows[0], "solving_plain": 0.35}, rows[1]], {"solving_falls": 1}) == f"{told}."


def test_a_fall_counts_from_the_best_and_not_from_the_start(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=())
    for iteration, solve in enumerate((0.25, 0.4, 0.55, 0.55, 0.55, 0.3, 0.28), start=1):
        go_on(run, iteration, Weather(solve=solve))
    assert fired(run)["solving_falls"] == 6  # still above where the run began


@cache
def one_connection() -> duckdb.DuckDBPyConnection:
    return empty_connection()


def emptied() -> duckdb.DuckDBPyConnection:
    """A connection without rows whose tables and views are as they were made; what a test adds is undone."""
    with suppress(duckdb.TransactionException):         # the first time
        one_connection().execute("ROLLBACK")
    return one_connection().execute("BEGIN")


def run_of(curve: list[float | None], back: int | dict[int, int] | None = None, every: int = 1,
           large_step: int = -1, failing: tuple[int, float] = (-1, 0), usual: float = 0.02,
           groups: int = 32) -> duckdb.DuckDBPyConnection:
    """A run with these pass@1, each with an error of .03; `back`: back to 3 or as given; a KL of .2.

    `failing`: an iteration, and the share of its programs that fail; elsewhere it is `usual`.
    """
    connection = emptied()
    connection.execute("CREATE TABLE curve AS SELECT ((place - 1) * $2)::INTEGER AS iteration, value AS "
                       "solving FROM (SELECT unnest($1) AS value, generate_subscripts($1, 1) AS place)",
                       [curve, every])
    known = {"iteration": "iteration", "purpose": "'train'", "solving": "solving", "solving_plain": "solving",
             "solving_error": "0.03",
             "policy_version": "iteration" if isinstance(back, dict) else back or -1,
             "rolled_back_to": f"MAP {back}[iteration]" if isinstance(back, dict) else 3,
             "policy_kl": f"CASE WHEN iteration = {large_step} THEN 0.2 END", "num_groups": str(groups),
             "num_completions": str(32 * groups), "valid_code_share": "1",
             "failed_share": f"CASE WHEN iteration = {failing[0]} THEN {failing[1]} ELSE {usual} END"}
    for view in ("iteration_stats", "adjusted", "policies", "train_steps"):
        columns = ", ".join(f"{known.get(name, 'NULL')}::{kind} AS {name}" for name, kind, *_ in
                            connection.execute(f"DESCRIBE {view}").fetchall())
        connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM curve")
    return connection


def falls(*args: Any, **options: Any) -> dict[int, bool]:
    """Where solving_falls is raised, and whether at once."""
    return dict(run_of(*args, **options).execute("SELECT iteration, immediate FROM signals WHERE raised AND "
                                   "signal = 'solving_falls' ORDER BY iteration").fetchall())


def test_a_pass_at_1_that_is_below_0_once_tasks_are_alike_is_shown_as_0() -> None:
    connection = run_of([0.3, 0.3, 0.3, 0.3, -0.03])
    [row] = rows_of(connection, "SELECT value, level FROM raised_signals WHERE signal = 'solving_falls'")
    assert row["value"] == 0 < row["level"]


@pytest.mark.parametrize(("large_step", "expected"), [(5, {"solving_falls", "step_kl"}), (4, set())])
def test_what_is_raised_where_fewer_are_solved_does_not_wait(large_step: int, expected: set[str]) -> None:
    connection = run_of([0.49, 0.5, 0.5, 0.5, 0.5, 0.40, 0.49], large_step=large_step)
    assert {name for (name,) in connection.execute("SELECT signal FROM fired_signals").fetchall()} == expected


@pytest.mark.parametrize(("large_step", "failing", "expected"), [
    (-1, (5, 0.2), {"errors"}), (-1, (5, 0.11), set()), (5, (5, 0.11), {"errors", "step_kl"}),
    (4, (5, 0.11), set()), (5, (5, 0.08), set())])
def test_programs_that_fail_speak_alone_or_with_another_sign(large_step: int, failing: tuple[int, float],
                                                             expected: set[str]) -> None:
    connection = run_of([0.5] * 7, large_step=large_step, failing=failing)
    assert {name for (name,) in connection.execute("SELECT signal FROM fired_signals").fetchall()} == expected


@pytest.mark.parametrize(("best", "failing", "usual", "groups", "fires"), [
    (0.5, 0.4, 0.02, 32, True), (0.6, 0.4, 0.02, 32, False),       # more is solved than ever
    (0.5, 0.8, 0.6, 32, False),                                    # most fail anyway
    (0.5, 0.2, 0.0, 32, True), (0.5, 0.2, 0.0, 1, False)])         # 6 of 32, where none was
def test_programs_may_fail_where_more_is_solved_or_few_were_drawn(best: float, failing: float, usual: float,
                                                                  groups: int, fires: bool) -> None:
    connection = run_of([0.5] * 5 + [best, best], failing=(5, failing), usual=usual, groups=groups)
    assert bool(connection.execute("FROM fired_signals").fetchall()) is fires


def test_a_fall_below_the_very_first_is_no_sharpening(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=())
    for iteration in (1, 2, 3):
        go_on(run, iteration, Weather(solve=0.0))
    assert "solving_falls" in fired(run) and "sharpening" not in fired(run)


def test_two_iterations_that_are_low_together_do_not_wait_for_a_third() -> None:
    best = [0.49, 0.5, 0.5, 0.5, 0.5]
    assert falls([*best, 0.44, 0.46]) == {}                  # two errors below, then one
    assert falls([*best, 0.40, 0.48]) == {5: False}          # 3.3 errors below, once
    assert falls([*best, 0.42, 0.42]) == {6: True}           # neither alone, both together
    assert falls([*best, 0.2]) == {5: True}
    assert falls([0.5, 0.42, 0.42]) == {}                    # a best of one iteration is not so sure


def test_what_was_low_before_a_rollback_is_not_counted_after_it() -> None:
    assert falls([0.49, 0.5, 0.5, 0.5, 0.5, 0.25, 0.44]) == {5: True, 6: True}
    assert falls([0.49, 0.5, 0.5, 0.5, 0.5, 0.25, 0.44], back=6) == {5: True}
    assert falls([0.49, 0.5, 0.5, 0.5, 0.5, 0.25, 0.44], back=11, every=2) == {10: True}


def test_what_a_rollback_threw_away_is_no_level_for_what_follows() -> None:
    curve = [0.3, 0.3, 0.3, 0.3, 0.6, 0.6, 0.3, 0.3]
    assert falls(curve) == {6: False, 7: True}
    assert falls(curve, back=6) == {}                        # to policy 3, which solved as many
    assert falls([*curve, 0.05], back=6) == {8: True}
    assert falls([*curve, 0.3, 0.3], back={6: 3, 8: 5}).keys() == {8, 9}     # to a policy thrown away before


def test_what_was_not_measured_is_not_held_against_what_follows() -> None:
    assert falls([0.49, 0.5, 0.5, 0.5, 0.5, None, 0.46]) == {}


def test_a_dip_that_is_over_raises_nothing() -> None:
    assert falls([0.49, 0.5, 0.5, 0.5, 0.5, 0.3, 0.5, 0.5]) == {5: True}


def test_the_best_of_many_iterations_is_partly_luck() -> None:
    """A policy that stays as it is: 1,200 iterations with an error of .03 fire nearly never."""
    draw = np.random.default_rng(0)
    num_fired = 0
    for _ in range(10):
        connection = run_of(list(0.4 + 0.03 * draw.normal(size=120)))
        num_fired += len(connection.execute("FROM fired_signals").fetchall())
    assert num_fired <= 2


def test_bad_first_iterations_are_held_against_the_very_first(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=())
    for iteration in (1, 2, 3):
        go_on(run, iteration, Weather(solve=0.05, truncated=0.3))
    assert {"truncation", "solving_falls"} <= fired(run).keys() and min(fired(run).values()) == 1


def test_wrong_answers_that_become_the_same_few_are_no_alarm_while_pass_at_k_holds(tmp_path: Path) -> None:
    def falls_with(solve: float) -> bool:
        random, run = np.random.default_rng(5), empty_run(tmp_path / str(solve))
        for iteration in range(6):
            sky = Weather() if iteration < 4 else Weather(solve=solve, diversity=0.05)
            write_iteration(run, iteration, "train", sky, random)
        return "diversity" in fired(run)

    assert [falls_with(0.3), falls_with(0.02)] == [False, True]


def test_an_evaluation_that_sharpens_is_named_without_an_alarm(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=2, evals=())
    random = np.random.default_rng(1)
    write_iteration(run, 0, "eval", Weather(solve=0.25), random)
    write_iteration(run, 2, "eval", Weather(solve=0.375, sharp=True), random)
    quiet, raised = watch(run), watch(run, "--raised")
    assert (quiet.exit_code, raised.exit_code) == (0, 3)
    assert "sharpening (eval) raised at iteration 2: pass@k, which falls while" in quiet.stdout
    assert f"score explain {run.root} 2/eval/task-" in quiet.stdout
    story = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()[1]
    assert story.startswith("On 'eval', policy 0 to 2: it sharpened")


def test_rows_that_are_used_too_often_are_mended_by_replaying_fewer(runs: dict[str, Warehouse]) -> None:
    run, often = runs["healthy"], Alarm("reuse", "train", True, 5, 8, 4, 9.0, 8.0, True, "", [], [], True)
    far = often._replace(signal="step_kl")
    for alarms, option in (([often], "--replay"), ([often, far], "--learning-rate")):
        [mend] = [line for line in advise(run, connect(run), alarms).lines if "or it happens again" in line]
        assert option in mend


def test_signals_of_steps_are_shown_by_the_completions_with_these_ratios() -> None:
    connection = duckdb.connect()
    connection.execute("""CREATE TABLE train_tokens AS FROM (VALUES
        (4, 'train', 'calm', 0, [0.1, 0.1], [0, 0]), (4, 'train', 'leap', 1, [3.5, 0.0], [0, 0]),
        (4, 'train', 'drift', 2, [-2.0, -9.0], [1, 1]), (4, 'train', 'unused', 3, NULL, NULL))
        t(iteration, purpose, task_id, sample_index, log_drift, clipped)""")
    shown = {signal: _examples(connection, {"signal": signal, "first_iteration": 4, "purpose": "train"})[0]
             for signal in ("step_ratio", "step_kl", "clipping")}
    assert shown == {"step_ratio": ("leap", 1), "step_kl": ("leap", 1), "clipping": ("drift", 2)}


def test_what_sharpens_or_says_one_thing_is_shown_by_what_got_lost_and_by_what_repeats() -> None:
    connection = duckdb.connect()
    connection.execute("""CREATE TABLE samples AS FROM (VALUES
        (4, 'train', 'lost', 0, false, true, 0.1, 9), (4, 'train', 'lost', 1, false, false, 0.3, 9),
        (4, 'train', 'never', 0, false, true, 0.9, 9), (4, 'train', 'solved', 0, true, false, 1.0, 9))
        t(iteration, purpose, task_id, sample_index, correct, first_output, reward, num_completion_tokens);
        CREATE TABLE task_results AS FROM (VALUES
        (1, 'train', 'lost', 2), (4, 'train', 'lost', 0), (1, 'train', 'never', 0), (4, 'train', 'never', 0),
        (4, 'train', 'solved', 1)) t(iteration, purpose, task_id, c)""")
    shown = {signal: _examples(connection, {"signal": signal, "first_iteration": 4, "purpose": "train"})
             for signal in ("sharpening", "diversity", "reuse")}
    assert shown == {"sharpening": [("lost", 1), ("lost", 0)], "diversity": [("lost", 1)], "reuse": []}


@pytest.mark.parametrize(("dtype", "kl", "is_raised"), [
    ("float32", 0.002, True), ("bfloat16", 0.002, False), ("auto", 0.002, False), ("bfloat16", 0.006, True)])
def test_what_rounding_to_bfloat16_makes_is_no_mismatch(dtype: str, kl: float, is_raised: bool) -> None:
    connection = run_of([0.5, 0.5])
    known = {"stage": "'rollout'", "purpose": "'train'", "iteration": "iteration",
             "settings": "'" + json.dumps({"dtype": dtype}) + "'"}
    stages = ", ".join(f"{known.get(name, 'NULL')}::{kind} AS {name}" for name, kind, *_ in
                       connection.execute("DESCRIBE stages").fetchall())
    connection.execute(f"CREATE OR REPLACE VIEW stages AS SELECT {stages} FROM curve")
    connection.execute("CREATE TABLE old AS FROM iteration_stats; CREATE OR REPLACE VIEW iteration_stats"
                       f" AS SELECT * REPLACE ({kl} AS mismatch_kl_fresh) FROM old")
    [(raised,)] = connection.execute("SELECT count(*) FROM signals WHERE signal = 'mismatch' AND raised"
                                     ).fetchall()
    assert bool(raised) == is_raised


def test_what_was_set_otherwise_before_an_alarm_is_named() -> None:
    connection = duckdb.connect()
    connection.execute("""CREATE TABLE stages AS FROM (VALUES
        ('train', 'train', 2, '{"learning_rate": 0.004, "parent_sha256": "a"}'::JSON),
        ('train', 'train', 3, '{"learning_rate": 0.03, "parent_sha256": "b"}'),
        ('train', 'train', 4, '{"learning_rate": 0.03, "parent_sha256": "c"}'),
        ('train', 'train', 6, '{"learning_rate": 0.03, "updates_per_batch": 4}'),
        ('train', 'train', 7, '{"learning_rate": 0.03, "updates_per_batch": 32, "scorer": "b"}'),
        ('train', 'train', 20, '{"learning_rate": 0.03, "kl_beta": null}'),
        ('train', 'train', 21, '{"learning_rate": 0.03, "kl_beta": 0.1}'),
        ('rollout', 'train', 5, '{"part_size": 2048}'), ('rollout', 'train', 6, '{"part_size": 64}'),
        ('rollout', 'eval', 2, '{"temperature": 1}'), ('rollout', 'eval', 3, '{"temperature": 0.6}'))
        stages(stage, purpose, iteration, settings);
        CREATE TABLE rolled_mismatch AS
            FROM (VALUES (6, 0), (7, 1), (7, 3), (8, 0), (9, 3)) mismatch(iteration, staleness);
        CREATE TABLE scorers(iteration INT, purpose VARCHAR, scorer VARCHAR, chosen BOOL)""")
    said = ["Settings changed at iteration 3: train learning_rate 0.03 (was 0.004)."]
    later = ("Settings changed at iteration 7: train staleness 3 (was 0), "
             "train updates_per_batch 32 (was 4).")
    assert [changed_settings(connection, iteration) for iteration in (2, 3, 6)] == [[], said, said]
    assert [changed_settings(connection, iteration, 1) for iteration in (2, 3, 6)] == [[], said, []]
    assert [changed_settings(connection, iteration) for iteration in (7, 12, 13, 17)] == [
        [*said, later], [*said, later], [later], []]
    assert changed_settings(connection, 21) == [
        "Settings changed at iteration 21: train kl_beta 0.1 (was default)."]


@pytest.mark.parametrize(("before", "after"), [(12.0, 0.0), (0.0, 12.0)])
def test_rewards_of_another_scorer_are_not_compared(tmp_path: Path, before: float, after: float) -> None:
    raised = {}
    for scorer in (SCORER, "exact-01"):
        run, random = empty_run(tmp_path / scorer), np.random.default_rng(7)
        for iteration in range(7):
            sky = Weather(shaped=before) if iteration < 5 else Weather(shaped=after, solve=0.15)
            write_iteration(run, iteration, "train", sky, random, scorer=SCORER if iteration < 5 else scorer)
        connection = connect(run)
        raised[scorer] = {row["signal"] for row in rows_of(connection, "FROM raised_signals")}
        said = [f"Settings changed at iteration 5: score scorer {scorer} (was {SCORER})."]
        assert changed_settings(connection, 6) == (said if scorer != SCORER else [])
    assert raised[SCORER] - raised["exact-01"] == {"reward_falls" if before else "reward_hacking"}


def test_what_was_set_otherwise_is_named_beside_what_was_raised_once(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=3, evals=(), num_tasks=2, group_size=8)
    go_on(run, 3, Weather(policy_kl=0.2))
    connection = connect(run)
    connection.execute("""CREATE TABLE kept AS FROM stages; CREATE OR REPLACE VIEW stages AS
        SELECT * REPLACE (CASE WHEN stage = 'train' THEN json_object('kl_beta', iteration // 3 * 5) END
                          AS settings) FROM kept""")
    alarms, said = raised_alarms(connection), "Settings changed at iteration 3: train kl_beta 5 (was 0)."
    lines = alarm_lines(run, connection, alarms, 0)
    assert lines[:2] == ["No alarm.", said]
    assert advise(run, connection, [alarm._replace(fired=True) for alarm in alarms]).lines[0] == said


def test_rows_of_earlier_policies_raise_no_mismatch_and_that_is_said(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=2, evals=())
    go_on(run, 2, Weather(log_ratio=0.06, staleness=1))
    assert "mismatch" not in {alarm.signal for alarm in raised_alarms(connect(run))}
    assert f"Not checked at iteration 2, {MISSING}wrong_weights, mismatch" in watch(run).stdout
    for number, there, not_there in ((1, "mismatch_kl_fresh", "off_policy_kl"),
                                     (2, "off_policy_kl", "mismatch_kl_fresh")):
        said = CliRunner().invoke(cli, ["summary", str(run.root), "--iteration", str(number), "--json"])
        row = json.loads(said.stdout)
        assert row[there] > 0 and row[not_there] is None, row


def test_a_loss_that_always_clips_much_raises_nothing_until_it_clips_more(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=0, evals=())
    for iteration, clipped in enumerate((0.35, 0.4, 0.35, 0.3, 0.99)):
        go_on(run, iteration, Weather(clipped=clipped))
    raised = [alarm for alarm in raised_alarms(connect(run)) if alarm.signal == "clipping"]
    assert [alarm.first_iteration for alarm in raised] == [4]


def test_another_loss_is_held_against_its_own_history(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=0, evals=())
    for iteration, (loss, clipped) in enumerate((("dapo", 0.01), ("dapo", 0.01), ("gspo", 0.52),
                                                 ("gspo", 0.5), ("gspo", 0.99))):
        go_on(run, iteration, Weather(clipped=clipped, loss=loss))
    raised = [alarm for alarm in raised_alarms(connect(run)) if alarm.signal == "clipping"]
    assert [alarm.first_iteration for alarm in raised] == [4]


def test_the_first_rewards_of_a_run_are_no_large_gradient(tmp_path: Path) -> None:
    """Until then only the KL to the base has a gradient, which is next to nothing and grows."""
    run = build_run(tmp_path / "run", iterations=0, evals=())
    unsolved = Weather(solve=0.0, invalid=1.0)      # every reward is 0
    for iteration, sky in enumerate([*(unsolved._replace(grad_norm=norm) for norm in (0, 1e-8, 1e-7, 7e-6)),
                                     Weather(), Weather(grad_norm=16.9)]):
        go_on(run, iteration, sky)
    raised = [alarm for alarm in raised_alarms(connect(run)) if alarm.signal == "grad_norm"]
    assert [alarm.first_iteration for alarm in raised] == [5]


def test_bad_steps_spoil_the_policy_that_they_made(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=())
    go_on(run, 4, Weather(ratio_max=2472.0, policy_kl=8.7, grad_norm=16.9))
    assert fired(run) == {"step_ratio": 4, "step_kl": 4, "grad_norm": 4}
    headline, *lines = watch(run).stdout.splitlines()
    assert headline == ("Alarm: step_ratio since iteration 4, step_kl since iteration 4, "
                        "grad_norm since iteration 4.")
    assert lines[0].startswith("Smaller steps first") and "policy 4 is sound; policy 5 was made" in lines[0]
    [[steps, size]] = connect(run).execute("SELECT count(*), avg(num_completions) FROM train_steps "
                                           "WHERE iteration = 4").fetchall()
    assert lines[0].endswith(f"by {steps} steps of {size:.0f} completions, KL 8.7 after the first, "
                              "8.7 at most.")
    assert lines[1].endswith(f"warehouse rollback {run.root} --to 4")


def test_a_policy_that_samples_worse_is_not_sound_though_it_was_stepped_from_too_far(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=())
    go_on(run, 4, Weather(invalid=0.6, ratio_max=2472.0, policy_kl=8.7))
    assert fired(run).items() >= {"errors": 4, "step_kl": 4}.items()
    lines = watch(run).stdout.splitlines()[1:]
    assert lines[0].startswith("Smaller steps first") and "happens again: policy 5 was made by" in lines[0]
    assert lines[1].endswith(f"warehouse rollback {run.root} --to 3")


@pytest.mark.parametrize("name", BROKEN)
def test_the_drill_in_small_broken_runs_fire_in_time(name: str) -> None:
    onset = 1 if name == "bad first iterations" else DRILL_ONSET
    outcome = judge(empty_connection(), BROKEN[name], seed=1, first_look=onset)
    assert outcome.fired is not None
    assert outcome.lost <= 0.25 or outcome.fired - onset <= 1


@pytest.mark.parametrize("first_look", [13, pytest.param(0, marks=pytest.mark.slow("thirteen looks more"))])
@pytest.mark.parametrize(("seed", "prompts_per_task"), [(0, 1), (2, 4)])
def test_the_drill_in_small_a_healthy_run_does_not_fire(seed: int, prompts_per_task: int,
                                                       first_look: int) -> None:
    """Of eight tasks with four prompts each it is chance which an iteration draws, and much of it."""
    assert judge(empty_connection(), learning(0.2, 1.5), seed, first_look, prompts_per_task).fired is None


def test_going_back_twice_changes_nothing_the_second_time(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=3, evals=(), num_tasks=2, group_size=4)
    branch = f"warehouse branch {run.root} {run.root}-at-1 --at 1 --with-rows"
    assert f"to train iteration 1 again: {branch}\n" in rollback(run, 1).stdout
    before = sorted(run.root.glob("policies/*"))
    again = rollback(run, 1)
    assert (again.exit_code, again.stdout) == (
        0, "policy 3 has the weights of policy 1 already; nothing is changed\n"
           f"next: rollout {run.root} --iteration 3, or, to train one iteration more: "
           f"warehouse loop {run.root} 4\n")
    assert sorted(run.root.glob("policies/*")) == before
    assert "policy 3 now has the weights of policy 0" in rollback(run, 0).stdout


def test_going_back_nowhere_is_refused(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=())
    unknown, newest = rollback(run, 9), rollback(run, 1)
    assert unknown.exit_code == 1 and "There is no policy 9; there are 0 to 1" in unknown.stderr
    assert newest.exit_code == 1 and "nothing to go back from" in newest.stderr


def test_a_mismatch_that_truncated_sampling_made_is_named_as_that(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="mismatch", iterations=8)
    connection = connect(run)
    said = "\n".join(alarm_lines(run, connection, raised_alarms(connection), 0))
    assert "Fix the engine first" in said and "Fix the sampling" not in said
    connection.execute("CREATE TABLE kept AS FROM completions")
    connection.execute("CREATE OR REPLACE MACRO stored_completions() AS TABLE SELECT * REPLACE "
                       "(0.95::FLOAT AS top_p, 1.05::FLOAT AS repetition_penalty) FROM kept")
    said = "\n".join(alarm_lines(run, connection, raised_alarms(connection), 0))
    assert "iteration 5 was sampled with top_p 0.95, repetition_penalty 1.05" in said
    assert "Fix the engine" not in said
