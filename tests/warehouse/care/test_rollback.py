"""`warehouse rollback` where the policy that is left has sampled already."""

from pathlib import Path

from tests.building.runs import TURN, new_run
from tests.building.stored import weights
from tests.building.texts import SAME, add_rollout, fenced
from warehouse.care.rollback import roll_back
from warehouse.stages.due import rollout_due


def test_what_was_sampled_ahead_by_a_policy_that_is_left_is_put_aside(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN})
    for version in (1, 2):
        run.commit_policy(version, weights(run, version, f"weights {version}"))
        run.stage("train", iteration=version - 1).complete({})
    for iteration in (0, 1, 2, 3):                     # the last one by policy 2, which is left
        add_rollout(run, [("turn", fenced(SAME))], iteration=iteration)
    begun = run.folder("completions", iteration=3, purpose="train") / "manifest.json"
    begun.unlink()
    said, after = roll_back(run, 1)
    aside, = (tmp_path / "run" / "discarded").iterdir()
    assert said == ("policy 3 now has the weights of policy 1; iteration 2 stays as it is and is not trained "
                    f"on; what was sampled ahead of iteration 3 is kept in {aside}")
    assert [run.purposes("completions", iteration) for iteration in (2, 3)] == [["train"], []]
    assert not run.purposes("prompts", 3) and rollout_due(run) == 3
    assert sorted(path.parent.parent.name for path in aside.glob("*/*/*")) == ["completions", "prompts"]
    assert roll_back(run, 1) == ["policy 3 has the weights of policy 1 already; nothing is changed", after]
