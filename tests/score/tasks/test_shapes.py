"""Unit tests as people write them, judged in both modes."""

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
from score.tasks.together import normal, shared_tests
from tests.score.tasks.shapes import SHAPES

BY_NAME = {shape.name: shape for shape in SHAPES}


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(cpu_seconds=4.0, wall_seconds=20.0), 2) as pool:
        yield Executor(pool)


def judged(executor: Executor, mode: str) -> dict[str, Judgement]:
    """The verdicts on the programs of all shapes, by name."""
    items = []
    for shape in SHAPES:
        payload = {"entry_point": shape.entry_point, "tests": shape.tests, "mode": mode}
        items.append(Item(load_task(shape.name, "function", payload), Answer("", shape.program)))
    return dict(zip(BY_NAME, measure(items, run_programs(executor, items)), strict=True))


def test_together_every_shape_passes(executor):
    rows = judged(executor, "together")
    failed = {name: (row.outcome.error_class, row.outcome.error_message, row.measures.outputs)
              for name, row in rows.items() if not row.measures.correct}
    assert len(rows) >= 108 and not failed


def test_apart_those_pass_that_need_no_more_than_plain_data(executor):
    rows = judged(executor, "apart")
    assert {name for name, row in rows.items() if row.measures.correct} == {
        shape.name for shape in SHAPES if shape.apart}


@pytest.mark.parametrize("name", BY_NAME)
def test_wrong_tests_are_written_as_right_ones_are(name):
    shape = BY_NAME[name]
    for test in shared_tests("", shape.tests, shape.entry_point):
        assert test.doubts.wrong
        for wrong in test.doubts.wrong:
            assert wrong.source != test.doubts.right and normal(wrong.source) == wrong.source
            assert all(normal(each) == each != test.doubts.right for each in wrong.more())
