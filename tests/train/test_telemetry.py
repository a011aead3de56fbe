"""What `train --track` sends, read back from TensorBoard's files."""

import pytest
from click.testing import CliRunner, Result

import train.steps.steps
from tests.building.runs import finish, write_rows
from tests.building.sampled import OPTIONS, rewrite
from train.cli import track
from train.cli import train as train_command
from train.steps.accelerator import stage_numbers
from warehouse.sql.database import connect, rows_of
from warehouse.store.run_folder import Warehouse


def invoke(warehouse: Warehouse, *words: str) -> Result:
    return CliRunner().invoke(train_command, [str(warehouse.root), *OPTIONS, *words])


def sent(warehouse: Warehouse) -> dict[str, list[tuple[int, float]]]:
    """Points by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(warehouse.root / "tracking" / "demo"))
    events.Reload()
    return {name: [(point.step, point.value) for point in events.Scalars(name)]
            for name in events.Tags()["scalars"]}


def test_a_killed_stage_goes_on_in_the_same_run_with_each_step_once(run: Warehouse,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    asked = ["--track", "tensorboard", "--updates-per-batch", "5"]
    whole = train.steps.steps.take_step

    def killed_at_2(learner, step, *rest):
        if step == 2:
            raise KeyboardInterrupt
        return whole(learner, step, *rest)

    with monkeypatch.context() as patch:        # two steps were sent, and no checkpoint holds them
        patch.setattr(train.steps.steps, "take_step", killed_at_2)
        assert invoke(run, *asked).exit_code == 1
    assert len(sent(run)["train/loss"]) == 2
    result = invoke(run, *asked)
    assert result.exit_code == 0, result.output
    points, steps = sent(run), run.read("train_steps", iteration=0).to_pylist()
    assert len(steps) == 5
    told, = (run.root / "tracking").rglob("hparams.yml")
    assert "train/updates_per_batch: 5\n" in told.read_text()
    for name in ("loss", "grad_norm", "clip_fraction"):
        assert points[f"train/{name}"] == [(row["global_step"], pytest.approx(row[name])) for row in steps]
    [stats] = rows_of(connect(run),
                      "SELECT tokens_mean, pass_at_1, mismatch_kl_fresh, log_ratio_abs_mean, "
                      "log_ratio_abs_max, importance_weight_mean FROM iteration_stats")
    assert points["rollout/tokens_mean"][-1] == (1, pytest.approx(stats["tokens_mean"]))
    assert points["score/pass_at_1"][-1] == (1, pytest.approx(stats["pass_at_1"]))
    for name in ("mismatch_kl_fresh", "log_ratio_abs_mean", "log_ratio_abs_max", "importance_weight_mean"):
        assert points[f"train/{name}"] == [(5, pytest.approx(stats[name]))]


def test_what_no_training_has_sent_is_sent_by_itself(run: Warehouse) -> None:
    """A last evaluation, at the step that the next training would begin with."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    assert invoke(run, "--track", "tensorboard", "--updates-per-batch", "2").exit_code == 0
    evaluation = {"iteration": 1, "purpose": "eval"}
    [identity] = run.state.scorers(0, "train")
    for name, scorer in (("prompts", {}), ("completions", {}), ("samples", {"scorer": identity})):
        rows = run.read(name, iteration=0, purpose="train", **scorer).to_pylist()
        write_rows(run, name, [[{**row, **evaluation} for row in rows]], **scorer)
    finish(run, "rollout", **evaluation)
    finish(run, "score", **evaluation, **scorer)
    result = CliRunner().invoke(track, [str(run.root), "tensorboard"])
    assert result.output == "policy 1: its evaluations were sent to tensorboard\n"
    [stats] = rows_of(connect(run), "SELECT reward_mean FROM iteration_stats WHERE purpose = 'eval'")
    assert sent(run)["eval/reward_mean"] == [(3, pytest.approx(stats["reward_mean"]))]


def test_nothing_is_sent_unless_asked(run: Warehouse) -> None:
    assert invoke(run, "--dry-run", "--track", "tensorboard").exit_code == 0
    assert invoke(run).exit_code == 0
    assert not (run.root / "tracking").exists()


def test_what_a_tracker_raises_is_one_sentence(run: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    class UsageError(Exception):
        """As wandb's, which is an error of no class that everybody has."""

    def init(*_: object, **__: object) -> None:
        raise UsageError("No API key configured. Use `wandb login` to log in.")
    monkeypatch.setattr("train.inputs.settings.find_spec", lambda _name: True)
    monkeypatch.setattr("accelerate.Accelerator.__init__", init)
    result = invoke(run, "--track", "wandb")
    assert result.exit_code == 1 and result.stderr.endswith(
        "Error: --track wandb cannot be used: UsageError: No API key configured. Use `wandb login` to log in "
        "(WANDB_MODE=offline needs none). Correct that, or leave --track out.\n")


def test_an_iteration_without_any_gradient_is_sent(run: Warehouse) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    rewrite(run, 0, "samples", lambda row: row | {"reward": 0.0, "correct": False})
    result = invoke(run, "--track", "tensorboard")
    assert result.exit_code == 1 and "has a gradient" in result.stderr
    assert sent(run)["score/reward_mean"] == [(1, 0.0)]


def test_the_parts_of_a_reward_are_sent_by_name(run: Warehouse) -> None:
    for sixth, parts in enumerate(('{"valid": 1.0, "pixel score": 0.5}', '{"valid": 0.0}')):
        rewrite(run, 0, "samples", lambda row, sixth=sixth, parts=parts: {
            **row, "reward_parts": parts if row["sample_index"] % 2 == sixth else row["reward_parts"]})
    numbers = stage_numbers(run, 0)
    assert numbers["score/reward_parts/valid"] == 0.5 and numbers["score/reward_parts/pixel score"] == 0.25
