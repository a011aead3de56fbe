"""Sequences of commands that once went wrong, and one at random: tests.chaos.sequences makes more."""

from pathlib import Path

import pytest

from tests.building.plain import sample, score, train
from tests.building.runs import TURN, new_run
from tests.chaos.sequences import Step, drawn, trial
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.prune import prune_run
from warehouse.store.run_folder import open_warehouse

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


def test_an_evaluation_that_nobody_scored_keeps_its_tokens(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"t0": TURN}, {"h0": TURN})
    sample(run)
    score(run)
    train(run)
    sample(run, evaluate=True, iteration=0)
    with pytest.raises(Refusal) as refused:
        prune_run(open_warehouse(run.root), 1, dry_run=False)
    assert (refused.value.code, refused.value.fields["iteration"]) == ("unscored", 0)
    score(run)
    assert " pruned, " in prune_run(open_warehouse(run.root), 1, dry_run=False)
