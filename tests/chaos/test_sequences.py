"""Sequences of commands that once went wrong, and one at random; `python -m tests.chaos.sequences` has more."""

import pytest

from tests.chaos.sequences import Step, drawn, trial

FOUND = {
    "what was pruned before it was scored is not due": [
        Step("rollout", 60), Step("score", 24), Step("train", 66), Step("ahead", 8), Step("rollout", 75),
        Step("score", 73), Step("train", 17), Step("train", 77), Step("evaluation", 41), Step("prune", 73)],
}


@pytest.mark.parametrize("name", FOUND)
def test_a_sequence_that_once_went_wrong(name: str) -> None:
    assert trial(FOUND[name]) is None


def test_thirty_commands_with_kills_full_disks_and_others_meanwhile() -> None:
    assert trial(drawn(0, 30)) is None
