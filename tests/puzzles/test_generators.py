"""Puzzles of our own: what they say is true, leaves one answer, and says nothing that is not needed."""

import json
from itertools import permutations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from examples.puzzles import connections
from examples.puzzles.__main__ import write_puzzles
from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import measure, run_programs
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from tests.puzzles.test_grader import measured
from warehouse.sources.named import parse_source, read_source

try:
    from examples.puzzles import mysteries, zebras
except ModuleNotFoundError:
    mysteries = zebras = None  # type: ignore[assignment]
needs_ortools = pytest.mark.skipif(mysteries is None, reason="ortools is not installed")


def spied(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a module asks its solver, and what it is told."""
    asked: list[tuple[Any, ...]] = []
    solve = module.needed_clues

    def spy(world: Any, clues: Any, answer: Any, rng: Any) -> Any:
        kept = solve(world, clues, answer, rng)
        asked.append((world, clues, answer, kept))
        return kept

    monkeypatch.setattr(module, "needed_clues", spy)
    return asked


def holds(clauses: Any, world: set[int]) -> bool:
    return all(
        any((fact in world) if fact > 0 else (-fact not in world) for fact in clause) for clause in clauses
    )


@needs_ortools
@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_a_zebra_leaves_one_grid_of_all_there_are_and_needs_every_clue(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spied(zebras, monkeypatch)
    for seed in range(5):
        zebras.zebra(Random(f"{level} {seed}"), 3, level)
        world, clues, answer, kept = asked[-1]
        # facts are numbered by attribute, value, house: orders of the values of each attribute are a world
        worlds = [
            {
                1 + 9 * name + 3 * value + house
                for name, order in enumerate(orders)
                for value, house in enumerate(order)
            }
            for orders in product(permutations(range(3)), repeat=3)
        ]
        assert all(holds(world.rules, each) for each in worlds)
        left = [each for each in worlds if all(holds(clues[place], each) for place in kept)]
        assert left == [set(answer)]
        for dropped in kept:
            others = [clues[place] for place in kept if place != dropped]
            assert sum(all(holds(clue, each) for clue in others) for each in worlds) > 1


@needs_ortools
@pytest.mark.parametrize("level", ["easy", "hard"])
def test_every_clue_of_a_mystery_is_true_of_its_night(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spied(mysteries, monkeypatch)
    nights = []
    draw = mysteries.draw_mystery
    monkeypatch.setattr(mysteries, "draw_mystery", lambda *key: nights.append(draw(*key)) or nights[-1])
    for seed in range(5):
        mysteries.mystery(Random(seed), 4, level)
        night, (world, clues, answer, kept) = nights[-1], asked[-1]
        _, facts = mysteries.describe(night)
        true = {
            facts.at[person][hour][room]
            for person, rooms in enumerate(night.place)
            for hour, room in enumerate(rooms)
        }
        true |= {facts.lies[thing][room] for thing, room in enumerate(night.lies)} | set(answer)
        assert holds(world.rules, true) and all(holds(clue, true) for clue in clues) and len(kept) >= 4


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_words_can_be_grouped_in_one_way_alone(level: str) -> None:
    least, most = connections.OVERLAPS[level]
    for seed in range(5):
        puzzle = connections.connections(Random(seed), 4, level)
        groups = puzzle["payload"]["groups"]
        assert least <= puzzle["num_clues"] <= most
        words = frozenset(word for group in groups for word in group)
        assert connections.solutions(words) == {frozenset(map(frozenset, groups))}
    fruits_or_colours = "lime peach olive fig orange amber rose ivory"
    several = f"{fruits_or_colours} lion tiger puma lynx oak ash elm palm"
    assert len(connections.solutions(frozenset(several.split()))) > 1


@needs_ortools
@pytest.mark.parametrize("kind", ["mysteries", "zebras", "connections"])
def test_the_file_is_a_source_whose_solutions_are_judged_right(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "puzzles.jsonl"
    done = CliRunner().invoke(write_puzzles, [kind, "6", "--output", str(file), "--seed", "3"])
    assert done.exit_code == 0 and done.output.startswith(f"{file}: 6 puzzles with ")
    tasks = read_source(parse_source(str(file), heldout=False))
    assert [measured(json.loads(task.payload), task.solution or "").correct for task in tasks] == [True] * 6
    asked = json.loads(tasks[0].messages or "")[0]["content"]
    assert measured(json.loads(tasks[0].payload), asked).correct_share < 0.7  # the question is no answer
    CliRunner().invoke(write_puzzles, [kind, "2", "--output", str(tmp_path / "fewer.jsonl"), "--seed", "3"])
    assert file.read_text().startswith((tmp_path / "fewer.jsonl").read_text())


def test_without_ortools_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "examples.puzzles.mysteries", None)
    done = CliRunner().invoke(write_puzzles, ["mysteries", "2", "--output", str(tmp_path / "x.jsonl")])
    assert done.exit_code == 1 and "pip install 'rollhouse[puzzles]'" in done.output


def test_a_puzzle_is_graded_in_a_lane() -> None:
    payload = {"grader": "puzzle_grader", "groups": [["a", "b"], ["c", "d"]]}
    item = Item(load_task("t", "graded", payload), Answer("a, b\nc, x", None))
    config = LaneConfig(Layer.SECCOMP, preload=("puzzle_grader",), import_paths=("examples/graders",))
    with LanePool(config, Limits(), 1) as pool:
        [row] = measure([item], run_programs(Executor(pool), [item]))
    assert row.measures.correct_share == 0.5, row.outcome


@needs_ortools
@pytest.mark.parametrize(("name", "sentence"), [("x.txt", "ends in .jsonl"), ("no/x.jsonl", "no folder")])
def test_a_file_that_no_run_could_read_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    refused = CliRunner().invoke(write_puzzles, ["connections", "1", "-o", str(tmp_path / name)])
    assert refused.exit_code == 1 and sentence in refused.output


def test_groups_of_words_have_no_size(tmp_path: Path) -> None:
    words = ["connections", "2", "--output", str(tmp_path / "x.jsonl"), "--size", "5"]
    refused = CliRunner().invoke(write_puzzles, words)
    assert refused.exit_code == 1 and "always four of four" in refused.output
