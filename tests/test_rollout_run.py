"""The rollout stage around a scripted engine: what is sampled, written, resumed and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollout.engine import Sampling
from rollout.options import RolloutOptions
from rollout.run import run_rollout
from tests.runs import small_run
from tests.scripted import ScriptedEncoder, ScriptedEngine
from warehouse.errors import StageError
from warehouse.store import Warehouse


def sample(warehouse: Warehouse, engine: ScriptedEngine | None = None, **values) -> ScriptedEngine:
    engine = engine or ScriptedEngine()
    options = RolloutOptions(run=warehouse.root, sampling=Sampling(max_tokens=20), group_size=4,
                             prompt_format="compact", part_size=8)
    run_rollout(replace(options, **values), engine.start, ScriptedEncoder)
    return engine


def rows(warehouse: Warehouse, iteration: int = 0, purpose: str = "train") -> list[dict]:
    return warehouse.read("completions", iteration=iteration, purpose=purpose).to_pylist()


def test_every_task_gets_its_group_with_ids_and_logprobs_as_sampled(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    engine = sample(warehouse)
    completions = rows(warehouse)
    keys = [(row["task_id"], row["sample_index"]) for row in completions]
    assert sorted(keys) == [(f"t{task}", index) for task in range(5) for index in range(4)]
    assert len(warehouse.parts("completions", iteration=0, purpose="train")) == 3   # 8 + 8 + 4
    for row in completions:
        assert row["num_completion_tokens"] == len(row["completion_ids"]) == len(row["behaviour_logprobs"])
        assert (row["finish_reason"] == "length") == (row["num_completion_tokens"] == 20)
        assert row["policy_sha256"] == warehouse.policy(0)["sha256"]
    prompts = {row["group_id"]: row for row in warehouse.read(
        "prompts", iteration=0, purpose="train").to_pylist()}
    assert [request.prompt_ids for request in engine.served if request.index == 0] == [
        prompts[completions[0]["group_id"]]["prompt_ids"]]
    assert len({request.seed for request in engine.served}) == 20


def test_a_killed_rollout_ends_with_the_rows_of_an_undisturbed_one(tmp_path: Path) -> None:
    whole, killed = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    sample(whole)
    with pytest.raises(KeyboardInterrupt):
        sample(killed, ScriptedEngine(stop_after=17))
    kept = len(rows(killed))
    assert 0 < kept < 20
    assert killed.stage("rollout", iteration=0, purpose="train").manifest() is None
    assert len(sample(killed).served) == 20 - kept

    def comparable(warehouse: Warehouse) -> list[dict]:
        return [{key: value for key, value in row.items() if key != "finished_at"} for row in rows(warehouse)]
    assert comparable(killed) == comparable(whole)


def test_a_complete_rollout_is_not_sampled_again(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    assert sample(warehouse, iteration=0).served == []


def test_other_settings_are_refused_with_both_values(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    with pytest.raises(StageError, match=r"temperature = 1\.0, now it is 0\.5"):
        sample(warehouse, iteration=0, sampling=Sampling(max_tokens=20, temperature=0.5))


def test_settings_of_the_machine_may_change_between_runs(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    sample(warehouse, iteration=0, max_num_seqs=7, gpu_memory_utilization=0.5)


def test_held_out_tasks_are_evaluated_and_never_trained_on_unasked(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    sample(warehouse, evaluate=True, label="greedy", sampling=Sampling(max_tokens=20, temperature=0))
    assert {row["task_id"] for row in rows(warehouse)} == {"t0", "t1", "t2", "t3", "t4"}
    assert {row["task_id"] for row in rows(warehouse, purpose="eval-greedy")} == {"h0", "h1"}
    sample(warehouse, evaluate=True, label="pool", splits=("train",))
    assert {row["task_id"] for row in rows(warehouse, purpose="eval-pool")} == {"t0", "t1", "t2", "t3", "t4"}


def test_iterations_visit_every_task_before_any_twice(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path, num_tasks=6)
    visited = []
    for iteration in range(3):
        sample(warehouse, iteration=iteration, policy_version=0, num_tasks=2)
        visited += sorted({row["task_id"] for row in rows(warehouse, iteration)})
    assert sorted(visited) == [f"t{number}" for number in range(6)]


def test_prompts_per_task_are_groups_of_their_own(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path, num_tasks=2)
    sample(warehouse, prompts_per_task=3, augmentation="all")
    completions = rows(warehouse)
    assert sorted(row["sample_index"] for row in completions if row["task_id"] == "t0") == list(range(12))
    groups = {row["group_id"] for row in completions}
    assert len(groups) == 6
    prompts = warehouse.read("prompts", iteration=0, purpose="train").to_pylist()
    assert len({json.dumps([row["flip"], row["rotations"], row["color_map"]]) for row in prompts}) > 3


def test_long_prompts_are_left_out_and_counted(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    with pytest.raises(StageError, match="None of the 5 tasks has a prompt of at most 10 tokens"):
        sample(warehouse, max_prompt_tokens=10)
    assert not (warehouse.root / "completions").exists()


def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    before = sorted(path for path in warehouse.root.rglob("*"))
    for values, sentence in [
        ({"iteration": 3}, "Iteration 3 samples with policy 3, which does not exist yet"),
        ({"sampling": Sampling(top_p=0.95)}, "--top-p makes the sampled distribution differ"),
        ({"sampling": Sampling(max_tokens=2000)}, "leaves no room for a prompt"),
        ({"max_prompt_tokens": 1020}, "--max-prompt-tokens 1020 together are more"),
        ({"splits": ("nope",)}, r"no split 'nope'. It has train, heldout"),
        ({"prompt_format": "nope"}, "Unknown prompt format 'nope'. Known: compact@1, chat@1"),
        ({"format_options": ("max_pairs",)}, "--format-option max_pairs has no value"),
        ({"format_options": ("colour=1",)}, "has no option 'colour'"),
        ({"label": "x"}, "--label names an evaluation"),
    ]:
        with pytest.raises(StageError, match=sentence):
            sample(warehouse, **values)
    assert sorted(path for path in warehouse.root.rglob("*")) == before
