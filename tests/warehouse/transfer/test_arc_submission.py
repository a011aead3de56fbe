"""A submission to the ARC Prize: two attempts by vote, and the table that scores them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import warehouse
from examples.arc.submission import cli, submission_table
from tests.building.runs import completion_row, finish, new_run, prompt_row, sample_row, write_rows

A, B, C, D = [[1]], [[2]], [[3]], [[4]]
PAIRS = [{"input": [[5]], "output": [[6]]}, {"input": [[7]], "output": [[8]]}]
TASKS = {
    "one": {"train": PAIRS, "test": [{"input": [[0]], "output": A}]},
    "two": {"train": PAIRS, "test": [{"input": [[0]], "output": A}, {"input": [[9]], "output": B}]},
    "none": {"train": PAIRS, "test": [{"input": [[0]], "output": A}]},
}
# Per task: the test outputs of each completion, and its share of train pairs.
GIVEN = {
    "one": [([A], 1.0), ([B], 0.5), ([B], 0.5), ([B], 0.5), ([C], 0.0), ([D], 1.0), ([A], 1.0)],
    "two": [([C, B], 1.0), ([A, C], 0.5), ([A, C], 0.5)],
    "none": [(None, 0.0)],
}
SCORER = "arc-v1-0123456789"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warehouse = new_run(tmp_path_factory.mktemp("arc") / "run", TASKS)
    prompts, completions, samples = [], [], []
    for task_id, rows in GIVEN.items():
        prompt = prompt_row(task_id, len(rows))
        prompts.append(prompt)
        for index, (tests, share) in enumerate(rows):
            completion = completion_row(prompt, index, [1, 2], [-0.1, -0.1])
            completions.append(completion)
            outputs = None if tests is None else json.dumps({"train": [], "test": tests})
            samples.append(
                sample_row(
                    completion,
                    SCORER,
                    share,
                    outputs=outputs,
                    valid_outputs=tests is not None,
                    train_correct_grids=share,
                    train_is_correct=share == 1.0,
                    correct=False,
                )
            )
    write_rows(warehouse, "prompts", [prompts])
    write_rows(warehouse, "completions", [completions])
    write_rows(warehouse, "samples", [samples], scorer=SCORER)
    finish(warehouse, "rollout", iteration=0, purpose="train")
    finish(warehouse, "score", iteration=0, purpose="train", scorer=SCORER)
    return warehouse.root


def exported(run: Path, output: Path, *words: str) -> tuple[Result, dict[str, Any]]:
    done = CliRunner().invoke(cli, ["write", str(run), str(output), *words])
    return done, json.loads(output.read_text()) if output.exists() else {}


def grids(attempts: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(each["attempt_1"], each["attempt_2"]) for each in attempts]


@pytest.mark.parametrize(
    ("vote", "one", "two"),
    [
        ("solved", [(A, D)], [(C, A), (B, C)]),  # two solve the examples with A, one with D
        ("share", [(A, B)], [(A, C), (C, B)]),  # A 2.0, B 1.5, D 1.0; in `two` heads break the tie
        ("all", [(B, A)], [(A, C), (C, B)]),  # three say B
    ],
)
def test_the_attempts_are_what_most_completions_say(
    run: Path, tmp_path: Path, vote: str, one: Any, two: Any
) -> None:
    done, submission = exported(run, tmp_path / "submission.json", "--vote", vote)
    assert done.output == f"{tmp_path / 'submission.json'}: two attempts for 3 test inputs of 2 tasks\n"
    assert {name: grids(attempts) for name, attempts in submission.items()} == {"one": one, "two": two}


def challenges(path: Path, **tasks: Any) -> Path:
    path.write_text(
        json.dumps(
            {
                name: {"train": PAIRS, "test": [{"input": grid} for grid in inputs]}
                for name, inputs in tasks.items()
            }
        )
    )
    return path


def test_with_the_challenges_it_holds_exactly_their_tasks(run: Path, tmp_path: Path) -> None:
    file = challenges(tmp_path / "challenges.json", two=[[[0]], [[9]]], none=[[[0]]], unseen=[[[0]], [[0]]])
    done, submission = exported(run, tmp_path / "submission.json", "--challenges", str(file))
    assert [(name, len(attempts)) for name, attempts in submission.items()] == [
        ("two", 2),
        ("none", 1),
        ("unseen", 2),
    ]
    assert "2 of the tasks have no completion with valid outputs" in done.output
    assert grids(submission["none"]) == [([[0, 0], [0, 0]], [[0, 0], [0, 0]])]


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ({"one": [[[1]]]}, "the test inputs of task one are not those of the run"),
        ({"two": [[[0]]]}, "the test inputs of task two are not those of the run"),
        ({"other": [[[0]]]}, "has no task of this run"),
    ],
)
def test_challenges_of_another_set_are_refused(run: Path, tmp_path: Path, tasks: Any, sentence: str) -> None:
    file = challenges(tmp_path / "challenges.json", **tasks)
    done, submission = exported(run, tmp_path / "submission.json", "--challenges", str(file))
    assert done.exit_code == 1 and sentence in done.output and not submission


def test_no_completion_is_one_sentence(run: Path, tmp_path: Path) -> None:
    done, _ = exported(run, tmp_path / "submission.json", "--iteration", "5")
    assert done.exit_code == 1 and "No completion with valid outputs of a grid task fits" in done.output


def table_of(run: Path, file: Path) -> Result:
    return CliRunner().invoke(cli, ["score", str(run), str(file)])


def test_the_table_counts_inputs_and_tasks(run: Path, tmp_path: Path) -> None:
    exported(run, tmp_path / "submission.json", "--vote", "solved")
    _, [row] = submission_table(warehouse.open(run), tmp_path / "submission.json")
    # one: A is attempt 1. two: A is attempt 2 of the first input, B attempt 1 of the second. none: nothing.
    assert row == ["train", 3, 2, 4, 0.5, 0.75, pytest.approx(2 / 3), pytest.approx(2 / 3)]
    assert "solved" in table_of(run, tmp_path / "submission.json").output
    attempts = [{"attempt_1": A, "attempt_2": B}, {"attempt_1": A, "attempt_2": A}]
    (tmp_path / "submission.json").write_text(json.dumps({"two": attempts}))
    _, [row] = submission_table(warehouse.open(run), tmp_path / "submission.json")
    assert row[-2:] == [pytest.approx(0.5 / 3), 0.0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"two": [{"attempt_1": A}]},
            "task two has not one object of attempts for each of its 2 test inputs",
        ),
        ({"two": [{"attempt_1": A}, {"attempt_1": A, "attempt_2": A}]}, "attempt_2 of task two is not a"),
        ({"two": [{"attempt_1": A, "attempt_2": [[1.0]]}] * 2}, "attempt_2 of task two has a cell"),
        ({"other": []}, "has no task of this run"),
        ([], "submission.json is not a submission (it is not an object). The command `write` writes one"),
        (b"\x7fELF\xd0", "submission.json is not a submission ('utf-8' codec can't decode"),
    ],
)
def test_what_is_no_submission_is_refused(run: Path, tmp_path: Path, content: Any, sentence: str) -> None:
    told = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "submission.json").write_bytes(told)
    done = table_of(run, tmp_path / "submission.json")
    assert done.exit_code == 1 and sentence in done.output
