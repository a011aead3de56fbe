"""A stage over several turns: rewards, and which of them are trained."""

import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.building.runs import back_before, copy_run
from tests.building.sampled import OPTIONS, SCORER, rewrite, sample_rows, sample_turn, tiny_run
from train.cli import train as train_command
from warehouse.sql.database import connect, rows_of


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """Iteration 0 with three turns: every fourth completion was answered."""
    warehouse = tiny_run(tmp_path_factory.mktemp("runs") / "demo")
    sample_rows(warehouse, 0, num_groups=4, group_size=5)
    sample_turn(warehouse, 0, 2)
    sample_turn(warehouse, 0, 3)
    return warehouse


@pytest.fixture
def run(turns, tmp_path):
    return copy_run(turns, tmp_path / "demo")


def invoke(warehouse, *arguments):
    result = CliRunner().invoke(train_command, [str(warehouse.root), *OPTIONS, *arguments])
    assert result.exit_code == 0, result.output
    return result


def refused(warehouse, *arguments):
    result = CliRunner().invoke(train_command, [str(warehouse.root), *OPTIONS, *arguments])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1, result.output
    assert not warehouse.parts("train_samples", iteration=0)
    return result.stderr


def trained(warehouse):
    return warehouse.read("train_samples", iteration=0).to_pylist()


def test_every_turn_is_a_row_of_its_own_purpose_and_advantages_are_among_siblings(run):
    invoke(run)
    rows = trained(run)
    counts = rows_of(connect(run), """
        SELECT purpose, count(*) AS num, count(DISTINCT group_id) AS groups FROM train_samples
        JOIN completions USING (iteration, purpose, task_id, sample_index, group_id)
        GROUP BY purpose ORDER BY purpose""")
    assert [tuple(row.values()) for row in counts] == [("train", 20, 4), ("train-turn2", 15, 5),
                                                       ("train-turn3", 12, 4)]
    for group_id in {row["group_id"] for row in rows}:
        group = [row for row in rows if row["group_id"] == group_id]
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-5)
    mismatch, = run.stage("train", iteration=0).manifest()["facts"]["mismatch"]
    assert mismatch["num_completions"] == 47 and mismatch["mismatch_kl"] < 1e-10


def test_advantages_of_the_examples_credit_a_turn_with_what_follows_from_it(run, tmp_path):
    own = {}
    for purpose in run.state.turns(0):
        for row in run.read("samples", iteration=0, purpose=purpose, scorer=SCORER).to_pylist():
            own[purpose, row["task_id"], row["sample_index"]] = row["reward"]
    children = {key: [] for key in own}
    for purpose in run.state.turns(0)[1:]:
        keys = {"iteration": 0, "purpose": purpose}
        prompts = {row["group_id"]: row for row in run.read("prompts", **keys).to_pylist()}
        for row in run.read("completions", **keys).to_pylist():
            prompt = prompts[row["group_id"]]
            children[prompt["parent_purpose"], row["task_id"], prompt["parent_sample_index"]].append(
                (purpose, row["task_id"], row["sample_index"]))

    def best(key):
        return max([own[key], *(0.4 * best(child) for child in children[key])])

    def last(key):
        later = [last(child) for child in children[key]]
        return 0.4 * sum(later) / len(later) if later else own[key]
    for credit, expected in (("best", best), ("last", last)):
        copy = copy_run(run, tmp_path / credit)
        invoke(copy, "--advantages", f"{Path(__file__).parents[2]}/examples/advantages/credit.py:{credit}")
        groups = {}
        for row in trained(copy):
            key = row["purpose"], row["task_id"], row["sample_index"]
            groups.setdefault(row["group_id"], []).append((row["advantage"], expected(key)))
        for group in groups.values():
            mean = sum(credited for _, credited in group) / len(group)
            assert [advantage for advantage, _ in group] == pytest.approx(
                [credited - mean for _, credited in group], abs=1e-6)


def test_the_turns_that_are_named_are_trained(run, tmp_path):
    for turns, purposes in (("2", {"train-turn2"}), ("1, 3", {"train", "train-turn3"})):
        copy = copy_run(run, tmp_path / turns)
        invoke(copy, "--turns", turns)
        assert {row["purpose"] for row in trained(copy)} == purposes


def test_turns_that_are_not_there_or_not_scored_are_refused(run):
    assert "has no turn 4" in refused(run, "--turns", "4")
    last = {"iteration": 0, "purpose": "train-turn3"}
    run = back_before(run, "score", complete=True, **last, scorer=SCORER)
    assert "The turns 3 of iteration 0 are not scored by toy-1" in refused(run)
    run = back_before(run, "rollout", complete=True, **last)
    assert "The turns 3 of iteration 0 are not scored by toy-1" in refused(run, "--turns", "2,3")
    invoke(run, "--turns", "1,2")


def test_tokens_of_several_policies_have_a_staleness_each(run):
    invoke(run, "--turns", "1", "--learning-rate", "1e-3")
    sample_rows(run, 1, num_groups=4, group_size=5)
    groups = {row["group_id"] for row in run.read("prompts", iteration=1, purpose="train").to_pylist()[:2]}

    def carry(row):
        if row["group_id"] not in groups:
            return row
        first = (len(row["completion_ids"]) + 1) // 2
        behaviour = [value - 0.5 * (place < first) for place, value in enumerate(row["behaviour_logprobs"])]
        return {**row, "behaviour_logprobs": behaviour, "version_segments": [
            {"start": 0, "length": first, "policy_version": 0},
            {"start": first, "length": len(row["completion_ids"]) - first, "policy_version": 1}]}
    rewrite(run, 1, "completions", carry)
    invoke(run, "--iteration", "1")
    fresh, stale = run.stage("train", iteration=1).manifest()["facts"]["mismatch"]
    rows = run.read("completions", iteration=1, purpose="train").to_pylist()
    num_stale = sum((len(row["completion_ids"]) + 1) // 2 for row in rows if row["group_id"] in groups)
    assert (stale["staleness"], stale["num_tokens"], stale["num_completions"]) == (1, num_stale, 10)
    assert stale["log_ratio_abs_mean"] == pytest.approx(0.5, abs=1e-4)
    assert stale["importance_weight_mean"] == pytest.approx(math.exp(0.5), rel=1e-4)
    all_stale = sum(len(row["completion_ids"]) == 1 for row in rows if row["group_id"] in groups)
    assert (fresh["staleness"], fresh["num_completions"]) == (0, 20 - all_stale)
    assert fresh["mismatch_kl"] < 1e-10
    ages = {row["group_id"]: row["staleness"] for row in run.read("train_samples", iteration=1).to_pylist()}
    assert {group_id for group_id, age in ages.items() if age == 1} == groups
