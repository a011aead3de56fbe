"""Synthetic grid tasks: labels that hold, pairs that mean something, the same tasks from the same seed."""

import hashlib
import json

import numpy as np
import pytest

from warehouse.tasks.synthetic import SyntheticTask, apply_steps, is_trivial, synthetic_tasks
from warehouse.tasks.synthetic_families import FAMILIES

NUM_TASKS = 1500


@pytest.fixture(scope="module")
def tasks() -> list[SyntheticTask]:
    return list(synthetic_tasks(NUM_TASKS, seed=3))


def all_pairs(task: SyntheticTask) -> list[dict]:
    return task.payload["train"] + task.payload["test"]


def test_every_program_makes_its_outputs(tasks):
    for task in tasks:
        names = {}
        exec(task.program, names)
        for pair in all_pairs(task):
            assert np.asarray(names["transform"](pair["input"])).tolist() == pair["output"], task.task_id


def test_pairs_are_legal_and_none_is_the_identity(tasks):
    for task in tasks:
        assert 2 <= len(task.payload["train"]) <= 4 and len(task.payload["test"]) == 1
        assert len({json.dumps(pair["output"]) for pair in all_pairs(task)}) > 1
        for pair in all_pairs(task):
            assert pair["input"] != pair["output"]
            for grid in pair.values():
                assert len({len(row) for row in grid}) == 1 and 0 < len(grid) <= 16 and 0 < len(grid[0]) <= 16
                assert all(type(cell) is int and 0 <= cell <= 9 for row in grid for cell in row)


def test_payloads_survive_json(tasks):
    for task in tasks[:200]:
        assert json.loads(json.dumps(task.payload)) == task.payload


def test_a_program_needs_its_last_step(tasks):
    for task in tasks:
        shorter = [apply_steps(task.steps[:-1], np.array(pair["input"])).tolist() for pair in all_pairs(task)]
        assert shorter != [pair["output"] for pair in all_pairs(task)]


def test_a_second_step_without_effect_is_trivial():
    pairs = [{"input": [[1, 2]], "output": [[1], [2]]}, {"input": [[3, 4]], "output": [[3], [4]]}]
    assert is_trivial(pairs, ("g.T", "np.fliplr(g)"))
    assert not is_trivial(pairs, ("g.T",))
    assert is_trivial([pairs[0], {"input": [[1, 2, 2]], "output": [[1], [2]]}], ("g.T",))


def test_a_program_is_one_line_per_step():
    assert SyntheticTask("task", {}, "family", ("g.T", "np.fliplr(g)")).program == (
        "import numpy as np\n\ndef transform(grid):\n    g = np.array(grid)\n    g = g.T\n"
        "    g = np.fliplr(g)\n    return g")


def test_all_families_occur_and_a_fifth_has_a_second_step(tasks):
    assert {task.family for task in tasks} == {family.name for family in FAMILIES}
    one_step = {family.name for family in FAMILIES if len(family.steps) == 1}
    num_steps = [len(task.steps) for task in tasks if task.family in one_step]
    assert 0.15 < np.mean([count == 2 for count in num_steps]) < 0.25


def test_a_task_does_not_depend_on_how_many_are_asked_for(tasks):
    assert list(synthetic_tasks(5, seed=3)) == tasks[:5]
    assert list(synthetic_tasks(5, seed=4)) != tasks[:5]
    assert len({task.task_id for task in tasks}) == NUM_TASKS


def test_tasks_of_a_seed_never_change():
    """Stored rows name these tasks: a changed generator needs a new name, not other tasks under old ids."""
    tasks = [task._asdict() for task in synthetic_tasks(50, seed=7)]
    digest = hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()
    assert digest[:16] == "8cb4176af45dcaa9"
