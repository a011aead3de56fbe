"""Unit tests as people write them, which right programs pass from another process."""

import pytest

from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import Judgement, measure, run_programs
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from tests.score.tasks.shapes import SHAPES

BY_NAME = {shape.name: shape for shape in SHAPES}


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(cpu_seconds=4.0, wall_seconds=20.0), 2) as pool:
        yield Executor(pool)


def test_shapes_are_right_but_for_those_that_are_said_not_to_be(executor):
    items = [Item(load_task(shape.name, "function", {
        "entry_point": shape.entry_point, "tests": shape.tests, "in_place": shape.in_place}),
        Answer("", shape.program)) for shape in SHAPES]
    judgements = measure(items, run_programs(executor, items))
    rows: dict[str, Judgement] = dict(zip(BY_NAME, judgements, strict=True))
    wrong = {name: (row.outcome.error_class, row.outcome.error_message, row.measures.outputs)
             for name, row in rows.items() if row.measures.correct != BY_NAME[name].right}
    assert len(rows) >= 150 and not wrong
