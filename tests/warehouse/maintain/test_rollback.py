"""`warehouse rollback` where the policy that is left has sampled already."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.building.runs import TURN, add_policy, begin, new_run
from tests.building.sound import check_run
from tests.building.stored import weights
from tests.building.texts import SAME, add_rollout, fenced
from warehouse.cli import cli
from warehouse.ledger.refusals import Refusal
from warehouse.maintain import prune
from warehouse.maintain.discard import discard
from warehouse.maintain.rollback import roll_back
from warehouse.store.errors import StageError


def test_what_was_sampled_ahead_by_a_policy_that_is_left_is_put_aside(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN})
    for version in (1, 2):
        add_policy(run, version, weights(run, version, f"weights {version}"))
        run.stage("train", iteration=version - 1).complete({})
    for iteration in (0, 1, 2, 3):                     # the last one by policy 2, which is left
        add_rollout(run, [("turn", fenced(SAME))], iteration=iteration)
    add_rollout(run, [("turn", fenced(SAME))], iteration=1, purpose="eval-turn2", turn=2, parent_iteration=3,
                parent_purpose="train", parent_sample_index=0)
    with pytest.raises(Refusal) as refused:
        roll_back(run, 1)
    assert refused.value.code == "answered"
    discard(run, 1, "eval-turn2")
    said, _, after = roll_back(run, 1)
    assert said == ("policy 3 now has the weights of policy 1; iteration 2 is left out of training; "
                    "what was sampled ahead of iteration 3 is discarded")
    assert [run.state.purposes(iteration) for iteration in (2, 3)] == [["train"], []]
    assert not run.state.purposes(3) and run.state.rollout_due() == 3
    assert roll_back(run, 1) == ["policy 3 has the weights of policy 1 already; nothing is changed", after]
    with pytest.raises(Refusal) as refused:
        discard(run, 2, "train")
    assert refused.value.code == "left_out"


def test_what_a_rollback_gave_up_is_not_to_be_finished(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN})
    add_policy(run, 1, weights(run, 1, "weights 1"))
    run.stage("train", iteration=0).complete({})
    add_rollout(run, [("turn", fenced(SAME))], iteration=1, complete=False)
    roll_back(run, 0)
    [note] = check_run(run).notes
    assert note.endswith("purpose train was given up by a rollback: nothing is left to do.")
    assert not [line for line in CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()
                if "Under way" in line]


def test_going_back_says_which_settings_stay(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN})
    for version, rate in ((1, 1e-3), (2, 3e-2)):
        training = begin(run, "train", {"learning_rate": rate}, iteration=version - 1)
        run.commit_policy(version - 1, weights(run, version, f"weights {version}"))
        training.complete({})
    assert roll_back(run, 1)[-2] == (
        "since policy 1 was trained, its settings became learning-rate 0.03 (was 0.001): they stay as they "
        "are in config.toml")


def test_prune_removes_a_policy_that_was_left_before_it_sampled(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN})
    add_policy(run, 1, weights(run, 1, "weights 1"))
    former = run.policy_dir(1)
    assert f"the former policy 1 stays in {former.relative_to(run.root)}" in roll_back(run, 0)[0]
    monkeypatch.setattr(prune, "UNDER_WAY_SECONDS", 0)
    assert prune.prune_ended(run, dry_run=False).startswith("1 generation ") and not former.exists()
    assert check_run(run).problems == [] and run.state.newest == 1


@pytest.mark.parametrize(("iteration", "purpose"), [(2, "train"), (0, "eval")])
def test_a_policy_whose_rows_are_of_another_iteration_keeps_its_version(tmp_path: Path, iteration: int,
                                                                        purpose: str) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN})
    add_policy(run, 1, weights(run, 1, "weights 1"))
    run.stage("train", iteration=0).complete({})
    add_rollout(run, [("turn", fenced(SAME))], iteration=0)
    add_rollout(run, [("turn", fenced(SAME))], iteration=iteration, purpose=purpose, complete=False,
                settings={"policy_version": 1})
    former = run.policy(1)
    file = run.policy_dir(1) / "adapter_model.safetensors"
    file.write_text("weights 2")
    assert any(move.path is None and "later rows were sampled" in move.why for move in check_run(run).changes)
    file.unlink()
    with pytest.raises(StageError, match="is missing"):
        run.verify_policy(1)
    file.write_text("weights 1")
    assert "policy 2 now has the weights of policy 0; iteration 1 is left out" in roll_back(run, 0)[0]
    assert run.policy(1) == former and run.state.rollout_due() == 2
    assert run.state.purposes(iteration) == ([] if purpose == "train" else ["train", "eval"])


def test_a_training_that_was_killed_behind_its_policy_is_finished_first(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN})
    add_policy(run, 1, weights(run, 1, "weights 1"))
    training = begin(run, "train", iteration=1)
    run.commit_policy(1, weights(run, 2, "weights 2"))
    with pytest.raises(Refusal) as refused:
        roll_back(run, 0)
    assert (refused.value.code, refused.value.fields["iteration"]) == ("training_begun", 1)
    training.complete({})
    assert roll_back(run, 0)[0].startswith("policy 2 now has the weights of policy 0")
