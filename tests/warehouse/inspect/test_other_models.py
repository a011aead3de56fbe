"""What a model behind an API says is none of the run's doing: no alarm, nothing learned by it."""

from pathlib import Path

from click.testing import CliRunner

from tests.building import runs
from warehouse.cli import cli
from warehouse.inspect.story import story_lines
from warehouse.sql.database import connect
from warehouse.store.run_folder import Warehouse

SCORER = "exact-0123456789"


def write_answers(run: Warehouse, iteration: int, purpose: str, *, policy: int | None,
                  solved: int = 0, size: int = 4) -> None:
    """`size` completions of the task, empty where it is not a policy that speaks."""
    keys = {"iteration": iteration, "purpose": purpose}
    prompt = runs.prompt_row("turn", size, **keys)
    said = [1] * (2 if policy is not None else 1)
    rows = [runs.completion_row(prompt, index, said, [], policy_version=policy)
            for index in range(size)]
    scores = [runs.sample_row(row, SCORER, float(right), correct=right)
              for row in rows for right in [row["sample_index"] < solved]]
    runs.write_rows(run, "prompts", [[prompt]])
    runs.write_rows(run, "completions", [rows])
    runs.finish(run, "rollout", **keys)
    runs.write_rows(run, "samples", [scores], scorer=SCORER)
    runs.finish(run, "score", scorer=SCORER, **keys)


def test_empty_answers_of_another_model_are_no_alarm(tmp_path: Path) -> None:
    with runs.without_waiting():
        run = runs.new_run(tmp_path / "run")
        write_answers(run, 0, "distil", policy=None)
        write_answers(run, 0, "eval-gpt", policy=None)
    watched = CliRunner().invoke(cli, ["watch", str(run.root)])
    assert watched.exit_code == 0 and watched.stdout.startswith("No alarm.\n"), watched.stdout


def test_answers_of_another_model_are_said_to_be_of_another_model_with_pass_at_1_once(tmp_path: Path) -> None:
    with runs.without_waiting():
        run = runs.new_run(tmp_path / "run")
        write_answers(run, 0, "distil", policy=None, size=1)
    lines = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()
    assert lines[1].startswith("On 'distil' another model has pass@1 .00; ")
    assert [line.count("pass@1") for line in lines if line.lstrip().startswith("iteration")] == [1]


def test_an_evaluation_is_not_compared_with_that_of_another_model(tmp_path: Path) -> None:
    with runs.without_waiting():
        run = runs.new_run(tmp_path / "run")
        write_answers(run, 0, "eval", policy=None)
        write_answers(run, 3, "eval", policy=3, solved=4)
    [line] = story_lines(connect(run), [])
    assert line == "On 'eval' policy 3 has pass@1 1.00; nothing to compare it with."
