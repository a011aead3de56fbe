"""Kill -9 at the calls that change a file of an iteration that carries over, and of the one that goes on."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.building.runs import small_run, without_waiting
from tests.building.scripted import ScriptedEngine, sample
from tests.building.sound import check_run
from tests.chaos.care import die_at
from warehouse.store.run_folder import Warehouse, open_warehouse

RULES = ("0.5", "0.5", None)        # of the iterations; the last finishes what is left


def roll_out(run: Path, iteration: int) -> None:
    engine = ScriptedEngine()
    engine.at_once = 9
    sample(open_warehouse(run), engine, group_size=3, part_size=6, iteration=iteration, policy_version=0,
           num_tasks=4, carry_over=RULES[iteration], spill_seconds=0.0)


def dies(work: Callable[[], None], run: Path, number: int) -> bool:
    """Do the work in a process, killed before its `number`th call that changes a file; False if it ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_at(run, number)
            work()
            code = 0
        finally:
            os._exit(code)          # an error must not go on in a second process of the tests
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def completions(run: Warehouse) -> Counter[tuple[Any, ...]]:
    """Every completion by what it was begun as: the engine says the same wherever it was broken off."""
    return Counter((row["group_id"], row["seed"], str([row["completion_ids"], row["behaviour_logprobs"]]))
                   for iteration in range(len(RULES))
                   for row in run.read("completions", iteration=iteration, purpose="train").to_pylist())


@pytest.mark.parametrize("every", [
    43, pytest.param(1, marks=pytest.mark.slow("some two hundred rollouts are killed and finished"))])
@pytest.mark.parametrize("iteration", range(len(RULES)))
def test_killed_anywhere_a_run_has_every_group_once(tmp_path: Path, iteration: int, every: int) -> None:
    whole = small_run(tmp_path / "whole", num_tasks=7)
    with without_waiting():
        for earlier in range(iteration):
            roll_out(whole.root, earlier)
        number = 1
        while True:
            run = Path(shutil.copytree(whole.root, tmp_path / f"killed-{number}" / "run"))
            if not dies(lambda run=run: roll_out(run, iteration), run, number):
                break
            opened = open_warehouse(run)
            assert check_run(opened).problems == []
            for later in range(iteration, len(RULES)):
                roll_out(run, later)
            ended = completions(opened)
            begun = {row["group_id"] for later in range(len(RULES))
                     for row in opened.read("prompts", iteration=later, purpose="train").to_pylist()}
            assert set(ended.values()) == {1} and {group for group, *_ in ended} == begun
            assert len(ended) == 3 * len(begun), f"killed at call {number}"
            assert check_run(opened).problems == []
            shutil.rmtree(run.parent)
            number += every
    assert number > 20, "calls that change a file"
