"""What `score` prints at the end: the numbers that the warehouse has of the same rows."""

from pathlib import Path
from typing import Any

from score.display import summary_lines
from score.tasks.function import UNSEEN
from tests.building.runs import (
    completion_row,
    finish,
    new_run,
    prompt_row,
    sample_row,
    table,
    without_waiting,
    write_rows,
)
from warehouse.sql.database import connect, rows_of
from warehouse.store.run_folder import Warehouse

SCORER = "exact-0123456789"


Row = dict[str, Any]


def scored_run(folder: Path, prompt: Row, completions: list[Row], samples: list[Row],
               run: Warehouse | None = None) -> Warehouse:
    """A run, a new one unless given, with one rollout of one prompt, and its scores."""
    with without_waiting():
        run = run or new_run(folder)
        for name, part in (("prompts", [prompt]), ("completions", completions)):
            write_rows(run, name, [part])
        write_rows(run, "samples", [samples], scorer=SCORER)
        finish(run, "rollout", iteration=prompt["iteration"], purpose="train")
        finish(run, "score", iteration=prompt["iteration"], purpose="train", scorer=SCORER)
    return run


def test_the_share_of_right_ones_is_of_those_that_have_a_reward(tmp_path: Path) -> None:
    prompt = prompt_row("turn", 5)
    rows = [completion_row(prompt, index, [1, 2], [-1.0, -1.0]) for index in range(5)]
    # One is right and has no reward: it is neither right nor wrong for pass@1.
    samples = [sample_row(row, SCORER, reward, correct=correct, valid_code=True, valid_outputs=True)
               for row, (reward, correct) in zip(rows, [(None, True), (1.0, True), (0.0, False), (0.0, False),
                                                        (0.0, False)], strict=True)]
    line = summary_lines(table("samples", samples), "iteration 0 train", {}, 0)[1]
    assert line == "  reward 0.250  correct 0.250  valid outputs 1.000  code blocks 1.000  truncated 0.000"
    run = scored_run(tmp_path / "run", prompt, rows, samples)
    assert rows_of(connect(run), "SELECT part, mean FROM part_means") == [{"part": "exact", "mean": 0.25}]
    assert rows_of(connect(run), "SELECT reward_mean, correct_share, pass_at_1 FROM iteration_stats") == [
        {"reward_mean": 0.25, "correct_share": 0.25, "pass_at_1": 0.25}]


def test_programs_that_fail_only_because_they_change_an_argument_are_named() -> None:
    rows = [completion_row(prompt_row(name, 1), 0, [1], [-1.0]) for name in ("heads", "turn")]
    texts = (f'{{"test":[[false,"AssertionError","{UNSEEN}, line 2, []","assertion"]]}}',
             '{"test":[[false,"AssertionError","line 2, []","assertion"]]}')
    samples = [sample_row(row, SCORER, 0.0, outputs=text) for row, text in zip(rows, texts, strict=True)]
    assert summary_lines(table("samples", samples), "iteration 0 train", {}, 0)[2] == (
        "  completions with a test that fails only because they change an argument: 1 (heads). Where a task "
        'asks for that, its payload needs "in_place": true.')


def test_the_parts_of_a_reward_add_up_to_it(tmp_path: Path) -> None:
    prompt = prompt_row("turn", 3)
    rows = [completion_row(prompt, index, [1, 2], [-1.0, -1.0]) for index in range(3)]
    parts = ['{"passed": 1.0, "a \\"short\\" one": 0.5}', '{"a \\"short\\" one": 0.25}', None]
    samples = [sample_row(row, SCORER, reward, reward_parts=text)
               for row, reward, text in zip(rows, (1.5, 0.25, None), parts, strict=True)]
    lines = summary_lines(table("samples", samples), "iteration 0 train", {}, 0)
    assert lines[1].startswith("  reward 0.875 ")
    assert lines[2] == '  reward = a "short" one 0.375 + passed 0.500'
    assert not any("reward =" in line for line in
                   summary_lines(table("samples", samples[1:]), "iteration 0 train", {}, 0))
    run = scored_run(tmp_path / "run", prompt, rows, samples)
    assert rows_of(connect(run), "SELECT part, mean FROM part_means ORDER BY mean") == [
        {"part": 'a "short" one', "mean": 0.375}, {"part": "passed", "mean": 0.5}]


def test_a_part_of_the_reward_that_nobody_earns_has_a_mean_of_0(tmp_path: Path) -> None:
    run = None
    for iteration, rewards in enumerate(((0.5, 0.0), (0.0, 0.0), (None, None))):
        prompt = prompt_row("turn", 2, iteration=iteration)
        rows = [completion_row(prompt, index, [1, 2], [-1.0, -1.0]) for index in range(2)]
        samples = [sample_row(row, SCORER, reward, reward_parts='{"exact": 0.5}' if reward else "{}")
                   for row, reward in zip(rows, rewards, strict=True)]
        run = scored_run(tmp_path / "run", prompt, rows, samples, run)
    assert run and rows_of(connect(run), "SELECT iteration, part, mean FROM part_means ORDER BY ALL") == [
        {"iteration": 0, "part": "exact", "mean": 0.25}, {"iteration": 1, "part": "exact", "mean": 0.0},
        {"iteration": 2, "part": "exact", "mean": None}], "no reward was measured in iteration 2"
