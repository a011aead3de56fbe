"""What a step did to each token, and advantages and losses of one's own."""

import math

import pytest

from tests.building.runs import copy_run
from tests.building.sampled import rewrite, run_train, sample_rows, tiny_run
from warehouse.maintain.prune import prune_run
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import connect, rows_of

GROUP_MEANS = """
def centred(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row["reward"])
    means = {name: sum(values) / len(values) for name, values in groups.items()}
    return [row["reward"] - means[row["group_id"]] for row in rows]

def on_the_last_token(rows):
    return [[0.0] * (len(row["completion_ids"]) - 1) + [value] for row, value in zip(rows, centred(rows))]

def too_few(rows):
    return [1.0]

def broken(rows):
    return [row["rewrad"] for row in rows]

def too_large(rows):
    return [10 ** 400 for row in rows]

def too_large_for_a_loss(rows):
    return [1e300 for row in rows]

def given(rows):
    return [row["reward"] for row in rows]

def leaves(rows):
    raise SystemExit(3)

def of_large_numbers(rows):
    return [sum((row[name] * 2 ** 31).sum() for name in ("prompt_ids", "completion_ids")) / 2 ** 31
            for row in rows]
"""


@pytest.fixture
def run(stale_run):
    (stale_run.root / "mine.py").write_text(GROUP_MEANS)
    return stale_run


def test_the_tokens_of_a_step_give_its_largest_ratio_and_its_clipped_share(run):
    assert run_train(run, "--learning-rate", "0.05", "--clip-low", "0.05").exit_code == 0
    steps = {row["optimizer_step"]: row for row in run.read("train_steps", iteration=1).to_pylist()}
    tokens = rows_of(connect(run), """
        SELECT optimizer_step, max(ratio) AS largest, count(*) FILTER (clipped) AS clipped, min(rho) AS least,
               max(abs(old_logprob - behaviour_logprob - ln(rho))) AS error
        FROM token_gaps(1) WHERE ratio IS NOT NULL GROUP BY ALL""")
    assert len(tokens) == len(steps) == 3 and any(row["clipped"] for row in tokens)
    for row in tokens:
        step = steps[row["optimizer_step"]]
        assert row["largest"] == pytest.approx(step["ratio_max"], rel=1e-5)
        assert row["clipped"] == round(step["clip_fraction"] * step["num_trainable_tokens"])
        assert row["least"] < 1 and row["error"] < 1e-6


def test_rows_whose_tokens_were_pruned_count_in_no_gap(run):
    assert run_train(run, "--replay", "1").exit_code == 0
    prune_run(run, 1, dry_run=False)
    left = connect(run)
    assert rows_of(left, "SELECT DISTINCT iteration FROM token_gaps(1)") == [{"iteration": 1}]
    assert not rows_of(left, "FROM token_gaps(0)")
    sample_rows(run, 2)
    result = run_train(run, "--replay", "2")
    assert result.exit_code == 1 and "were pruned" in result.stderr


def test_advantages_of_ones_own_take_the_place_of_the_group_s(run, tmp_path):
    other = copy_run(run, tmp_path / "other")
    assert run_train(run, "--scale-rewards", "none").exit_code == 0
    assert run_train(other, "--advantages", f"{run.root}/mine.py:centred").exit_code == 0
    rows, same = (warehouse.read("train_samples", iteration=1).to_pylist() for warehouse in (run, other))
    assert [row["advantage"] for row in rows] == pytest.approx([row["advantage"] for row in same], abs=1e-7)
    steps, again = (warehouse.read("train_steps", iteration=1).to_pylist() for warehouse in (run, other))
    assert [row["grad_norm"] for row in steps] == pytest.approx([row["grad_norm"] for row in again], rel=1e-4)


def test_an_advantage_per_token_is_stored_as_its_mean(run):
    assert run_train(run, "--advantages", f"{run.root}/mine.py:on_the_last_token").exit_code == 0
    rows = run.read("train_samples", iteration=1).to_pylist()
    rewards = {}
    for row in rows:
        rewards.setdefault(row["group_id"], []).append(row["reward"])
    for row in rows:
        centred = row["reward"] - math.fsum(rewards[row["group_id"]]) / len(rewards[row["group_id"]])
        assert row["advantage"] * len(row["old_logprobs"]) == pytest.approx(centred, abs=1e-6)


def test_numbers_made_of_ids_have_room(run):
    assert run_train(run, "--advantages", f"{run.root}/mine.py:of_large_numbers").exit_code == 0
    prompts = {row["group_id"]: row["prompt_ids"] for row in run.read(
        "prompts", iteration=1, purpose="train").to_pylist()}
    ids = {(row["task_id"], row["sample_index"]): prompts[row["group_id"]] + row["completion_ids"]
           for row in run.read("completions", iteration=1, purpose="train").to_pylist()}
    rows = run.read("train_samples", iteration=1).to_pylist()
    assert rows and all(row["advantage"] == sum(ids[row["task_id"], row["sample_index"]]) for row in rows)


@pytest.mark.parametrize(("name", "said"), [
    ("mine.py", "is not FILE.py:NAME"), ("nowhere.py:f", "/nowhere.py. Name"),
    ("mine.py:f", "defines no function 'f'"), ("mine.py:too_few", "returned 1 values for 42 rows"),
    ("mine.py:broken", "raised KeyError: 'rewrad' (line 16). Nothing was written"),
    ("mine.py:leaves", "raised SystemExit: 3 (line 28). Nothing was written"),
    ("mine.py:too_large", "which is not a finite number"),
    ("mine.py:too_large_for_a_loss", "returned 1e+300 for completion 0")])
def test_what_is_wrong_with_advantages_is_one_sentence(run, monkeypatch, name, said):
    monkeypatch.chdir(run.root)
    result = run_train(run, "--advantages", name)
    assert result.exit_code == 1 and said in result.stderr
    assert not run.parts("train_steps", iteration=1)


LOSSES = """
def plain(policy, old, behaviour, advantages, mask):
    return -advantages * policy

def of_one_number(policy, old, behaviour, advantages, mask):
    return (policy * mask).sum()

def broken(policy, old, behaviour, advantages, mask):
    return policy["no"]

def odd(policy, old, behaviour, advantages, mask):
    return policy

odd.reduction = "median"
"""


def test_a_loss_of_ones_own_is_the_one_that_it_computes(run, tmp_path):
    (run.root / "loss.py").write_text(LOSSES)
    other = copy_run(run, tmp_path / "other")
    assert run_train(other, "--loss", "reinforce").exit_code == 0
    own = ("--loss", f"{run.root}/loss.py:plain", "--correction", "none")
    assert run_train(run, *own).exit_code == 0
    steps, same = (warehouse.read("train_steps", iteration=1).to_pylist() for warehouse in (run, other))
    for name in ("loss", "grad_norm"):
        assert [row[name] for row in steps] == pytest.approx([row[name] for row in same], rel=1e-4, abs=1e-7)
    assert run.stage("train", iteration=1).settings()["loss_sha256"]
    assert run.stage("train", iteration=1).facts()["loss_source"] == LOSSES


@pytest.mark.parametrize(("name", "said"), [
    ("loss.py:f", "defines no function 'f'"), ("nowhere.py:f", "/nowhere.py. Name"),
    ("loss.py:odd", "reduction = 'median'. Known: completion, token, fixed"),
    ("loss.py:of_one_number", "returned ()"), ("loss.py:broken", "(line 9)"), ("sapo", "examples/losses.py")])
def test_what_is_wrong_with_a_loss_is_one_sentence(run, monkeypatch, name, said):
    (run.root / "loss.py").write_text(LOSSES)
    monkeypatch.chdir(run.root)
    result = run_train(run, "--loss", name if ":" not in name else f"{run.root}/{name}")
    assert result.exit_code == 1 and said in result.stderr, result.output
    assert not run.parts("train_steps", iteration=1)


def test_nll_trains_on_right_completions_alone_with_the_mean_of_their_tokens(run):
    rewrite(run, 1, "samples", lambda row: row | {"correct": row["reward"] > 0.5})
    assert run_train(run, "--loss", "nll", "--updates-per-batch", "1").exit_code == 0
    rows = run.read("train_samples", iteration=1).to_pylist()
    right = [row for row in rows if row["reward"] > 0.5]
    assert right and all((row["drop_reason"] is None) == (row["reward"] > 0.5) for row in rows)
    assert {row["drop_reason"] for row in rows} == {None, "not_right"}
    nll = [-value for row in right for value in row["old_logprobs"]]
    [step] = run.read("train_steps", iteration=1).to_pylist()
    assert step["loss"] == pytest.approx(math.fsum(nll) / len(nll), rel=1e-5)


def test_a_group_of_one_has_no_advantage_but_one_that_is_given(tmp_path):
    run = tiny_run(tmp_path / "run")
    (run.root / "mine.py").write_text(GROUP_MEANS)
    sample_rows(run, 0, num_groups=8, group_size=1)
    refused = run_train(run)
    assert refused.exit_code == 1 and "warehouse discard" in refused.stderr
    rewrite(run, 0, "samples", lambda row: row | {"correct": row["reward"] > 0.5})
    assert run_train(run, "--loss", "nll", "--dry-run").exit_code == 0
    assert run_train(run, "--advantages", f"{run.root}/mine.py:given").exit_code == 0
    rows = run.read("train_samples", iteration=0).to_pylist()
    assert len(rows) == 8 and all(row["advantage"] == pytest.approx(row["reward"]) for row in rows)


def test_a_rescue_makes_all_later_steps_smaller_and_a_rollback_by_hand_does_not(run):
    rate = ("--learning-rate", "0.01")
    for back in ({}, {"rate": 0.5}, {"rate": 0.5}):
        assert run_train(run, *rate).exit_code == 0
        roll_back(run, 1, **back)
        sample_rows(run, run.state.newest, num_groups=4)
    assert "learning rate x 0.25, by" in run_train(run, *rate).stdout
    rates = [{row["learning_rate"] for row in run.read("train_steps", iteration=number).to_pylist()}
             for number in run.state.iterations("train")[1:]]
    assert rates == [{0.01}, {0.01}, {0.005}, {0.0025}]
