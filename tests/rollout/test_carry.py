"""Completions carried over: what an iteration leaves, what the next goes on with, and what is refused."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rollout.cli import rollout
from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling
from rollout.engines.stopping import next_draw
from rollout.prompts.selection import training_visits
from score.cli import score
from tests.building import runs, scripted
from tests.building.runs import small_run, without_waiting
from tests.building.scripted import ScriptedEngine
from tests.building.sound import check_run
from tests.building.stored import weights
from train.inputs.groups import load_groups
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import RunState
from warehouse.maintain.compact import compact_run
from warehouse.maintain.discard import discard
from warehouse.maintain.fix import Change, fix
from warehouse.maintain.prune import prune_run
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import connect
from warehouse.stages.due import rollouts_to_score
from warehouse.stages.shard import Shard
from warehouse.store.errors import SettingChanged, StageError
from warehouse.store.json_files import json_bytes, read_json
from warehouse.store.run_folder import Warehouse
from warehouse.transfer.export_rows import export_rows

LIMIT = Sampling(max_tokens=20)
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def without_flushing() -> Iterator[None]:
    with without_waiting():
        yield


def sample(warehouse: Warehouse, iteration: int, engine: ScriptedEngine | None = None,
           **values: Any) -> list[str]:
    return scripted.sample(warehouse, engine, iteration=iteration, **values)


def rows(warehouse: Warehouse, table: str = "completions", iteration: int = 0) -> list[Row]:
    return warehouse.read(table, iteration=iteration, purpose="train").to_pylist()


def add_policy(warehouse: Warehouse, version: int) -> None:
    """A policy of whole weights, as if the iteration before had been trained."""
    folder = weights(warehouse, version, f"weights {version}")
    facts = read_json(folder / "policy.json") or {}
    (folder / "policy.json").write_bytes(json_bytes({**facts, "kind": "full"}))
    runs.add_policy(warehouse, version, folder)


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    """Six tasks, iteration 0 sampled with half of its completions carried over, iteration 1 due."""
    warehouse = small_run(tmp_path, num_tasks=6)
    sample(warehouse, 0, carry_over="0.4")
    add_policy(warehouse, 1)
    return warehouse


def drawn(warehouse: Warehouse, iterations: int) -> Counter[tuple[str, int, tuple[int, ...]]]:
    """Every completion of the iterations by what it was begun as, with its tokens."""
    return Counter((row["group_id"], row["seed"], tuple(row["completion_ids"]))
                   for iteration in range(iterations) for row in rows(warehouse, iteration=iteration))


def test_what_is_unfinished_goes_on_where_it_was_left(run: Warehouse) -> None:
    left, whole = rows(run, "carried"), rows(run)
    sizes = Counter(row["group_id"] for row in left)
    assert whole and sizes and set(sizes.values()) == {4} and len(left) + len(whole) == 24
    assert sizes.keys().isdisjoint(row["group_id"] for row in whole)
    unfinished = [row for row in left if row["finish_reason"] is None]
    assert 0 < len(unfinished) <= 15 and any(row["completion_ids"] for row in unfinished)
    engine = ScriptedEngine()
    sample(run, 1, engine)
    now = {row["seed"]: row for row in rows(run, iteration=1)}
    for row in left:
        ended, length = now[row["seed"]], len(row["completion_ids"])
        assert ended["group_id"] == row["group_id"] and ended["finish_reason"] is not None
        assert ended["completion_ids"][:length] == row["completion_ids"]
        assert ended["behaviour_logprobs"][:length] == row["behaviour_logprobs"]
    assert not rows(run, "carried", 1)
    assert len(engine.served) == len(now) - (len(left) - len(unfinished)), "what was whole is not asked"
    assert check_run(run).problems == []


def test_what_an_iteration_cost_is_what_it_sampled(tmp_path: Path) -> None:
    run = small_run(tmp_path, num_tasks=6)
    for iteration, rule in enumerate(("0.4", "0.7", "1")):
        engine = ScriptedEngine()
        if iteration:
            add_policy(run, iteration)
        sample(run, iteration, engine, carry_over=rule)
        with closing(connect(run)) as connection:
            cost = connection.execute("SELECT num_tokens, tokens_per_second * seconds FROM costs "
                                      f"WHERE stage = 'rollout' AND iteration = {iteration}").fetchone()
        num_drawn = engine.num_drawn or sum(
            len(engine.finished(request, LIMIT).completion_ids) - len(request.drawn_ids)
            for request in engine.served)
        assert cost == (num_drawn, pytest.approx(num_drawn))


def test_the_rate_of_a_rollout_that_was_killed_is_that_of_the_process_that_ended_it(tmp_path: Path) -> None:
    run, engine = small_run(tmp_path, num_tasks=6), ScriptedEngine()
    with pytest.raises(KeyboardInterrupt):
        sample(run, 0, ScriptedEngine(stop_after=17), spill_seconds=0.0)
    sample(run, 0, engine)
    sampled = sum(len(engine.finished(request, LIMIT).completion_ids) for request in engine.served)
    with closing(connect(run)) as connection:
        cost = connection.execute("SELECT num_tokens, tokens_per_second * seconds FROM costs").fetchone()
    everything = sum(row["num_completion_tokens"] for row in rows(run))
    assert cost == (everything, pytest.approx(sampled)) and sampled < everything


def test_a_row_says_which_tokens_are_of_which_policy(run: Warehouse) -> None:
    sample(run, 1, carry_over="0.2")
    add_policy(run, 2)
    sample(run, 2)
    before = {row["seed"]: [row] for row in rows(run, "carried") if row["finish_reason"] is None}
    for row in rows(run, "carried", 1):
        before.setdefault(row["seed"], []).append(row)
    seen = Counter[int]()
    for iteration in (1, 2):
        for row in rows(run, iteration=iteration):
            lengths = {number: len(begin["completion_ids"]) for number, begin in
                       enumerate(before.get(row["seed"], [])) if begin["finish_reason"] is None}
            spans = row["version_segments"] or [
                {"start": 0, "length": len(row["completion_ids"]), "policy_version": row["policy_version"]}]
            assert [span["start"] for span in spans] == [
                sum(span["length"] for span in spans[:number]) for number in range(len(spans))]
            assert sum(span["length"] for span in spans) == len(row["completion_ids"])
            versions = [span["policy_version"] for span in spans]
            assert versions == sorted(set(versions)) and versions[-1] == row["policy_version"]
            if lengths.get(0) and row["group_id"].startswith("0/"):
                assert (spans[0]["length"], versions[0]) == (lengths[0], 0)
            seen[len(spans)] += 1
    assert seen[2] and seen[3], "some were drawn by two policies, some by three"
    with closing(connect(run)) as connection:
        export_rows(connection, lines := run.root / "rows.jsonl", iterations=(2,))
    told = Counter(len(json.loads(line)["version_segments"] or "1")
                   for line in lines.read_text().splitlines())
    assert told == Counter(len(row["version_segments"] or "1") for row in rows(run, iteration=2))


def test_every_group_is_there_once_whatever_the_shares(tmp_path: Path) -> None:
    whole, carried = small_run(tmp_path / "a", num_tasks=6), small_run(tmp_path / "b", num_tasks=6)
    for iteration, rule in enumerate(["0.3", "5groups", "0.9", "0.01", "0.0001s", "1"]):
        sample(carried, iteration, carry_over=rule, policy_version=0, part_size=5 + 4 * iteration)
    begun = {row["group_id"] for iteration in range(6) for row in rows(carried, "prompts", iteration)}
    ended = drawn(carried, 6)
    assert set(ended.values()) == {1} and len(ended) == 4 * len(begun)
    assert {group for group, _, _ in ended} == begun
    for iteration in range(6):
        sample(whole, iteration, policy_version=0)
        keys = [(row["task_id"], row["sample_index"]) for row in rows(carried, iteration=iteration)]
        assert len(keys) == len(set(keys)) > 0
    assert not ended - drawn(whole, 6), "the completions of an ordinary run, here with the same tokens"
    visits = Counter(row["task_id"] for group in begun for row in [{"task_id": group.split("/")[2]}])
    assert max(visits.values()) - min(visits.values()) <= 1, "long tasks are visited as often as short ones"
    assert check_run(carried).problems == []


class Hazard(ScriptedEngine):
    """Completions end after each token with a chance that the task has, the draw being the request's own."""

    def finished(self, request: Request, sampling: Sampling) -> Sampled:
        ids, seed, left = next_draw(request, sampling)
        draw, chance = random.Random(seed), 0.03 + 0.04 * (ids[0:1] and sum(request.prompt_ids) % 3)
        new = []
        while len(new) < left:
            new.append(draw.randrange(97, 123))
            if draw.random() < chance:
                break
        whole = [*request.drawn_ids, *new]
        reason = "length" if len(whole) == sampling.max_tokens else "stop"
        return Sampled(request.index, whole, [-1.0] * len(whole), bytes(whole).decode(), reason)


def test_lengths_of_each_task_are_those_of_an_ordinary_run(tmp_path: Path) -> None:
    """Kolmogorov and Smirnov's distance of both, the tail that the last iteration finishes included."""
    many: dict[str, Any] = {"sampling": Sampling(max_tokens=100), "group_size": 4, "policy_version": 0,
                            "prompts_per_task": 20, "part_size": 200}
    lengths: list[dict[str, list[int]]] = []
    for name, rule in (("whole", None), ("carried", "0.6")):
        warehouse, found = small_run(tmp_path / name, num_tasks=3), {}
        for iteration in range(6):
            sample(warehouse, iteration, Hazard(), carry_over=None if iteration == 5 else rule, **many)
            for row in rows(warehouse, iteration=iteration):
                found.setdefault(row["task_id"], []).append(row["num_completion_tokens"])
        lengths.append(found)
    for task in ("t0", "t1", "t2"):
        one, other = lengths[0][task], lengths[1][task]
        assert len(other) >= 200
        distance = max(abs(sum(length <= at for length in one) / len(one)
                           - sum(length <= at for length in other) / len(other)) for at in range(101))
        assert distance < 1.36 * (1 / len(one) + 1 / len(other)) ** 0.5      # its 95% quantile
    cut = [row["num_completion_tokens"] for row in rows(warehouse, "carried") if row["finish_reason"] is None]
    assert len(cut) > 50 and min(cut) > 10, "what is left is long: the test would see a run that dropped it"


def test_the_rules_end_where_they_say(tmp_path: Path) -> None:
    run = small_run(tmp_path, num_tasks=6)
    sample(run, 0, carry_over="4groups")
    whole = {row["group_id"] for row in rows(run)}
    assert 4 <= len(whole) < 6
    sample(run, 1, carry_over="0.0001s", policy_version=0)
    assert rows(run, iteration=1), "never before a group is whole"
    left = rows(run, "carried", 1)
    engine = ScriptedEngine()
    sample(run, 2, engine, carry_over="1", policy_version=0, num_tasks=2)
    places = sum(row["finish_reason"] is None for row in left)
    fresh = {row["group_id"] for row in rows(run, iteration=2) if row["group_id"].startswith("2/")}
    assert len(fresh) == max(0, 2 * 4 - places) // 4 and len(engine.served) == places + 4 * len(fresh)


def test_workers_end_their_shares_and_the_last_completes_the_iteration(tmp_path: Path) -> None:
    run = small_run(tmp_path, num_tasks=6)
    said = [sample(run, 0, carry_over="0.5", shard=Shard(index, 2), part_size=4)[0] for index in (1, 0)]
    assert "shard 1/2" in said[0] and "groups carried over" in said[1]
    add_policy(run, 1)
    for index in (0, 1):
        sample(run, 1, shard=Shard(index, 2), part_size=4)
    ended = drawn(run, 2)
    assert set(ended.values()) == {1} and len({group for group, _, _ in ended}) >= 6
    assert check_run(run).problems == []


def test_a_killed_iteration_takes_up_what_was_carried_again(run: Warehouse) -> None:
    for stop_after in (3, 2):
        with pytest.raises(KeyboardInterrupt):
            sample(run, 1, ScriptedEngine(stop_after=stop_after), spill_seconds=0.0)
    sample(run, 1)
    ended = drawn(run, 2)
    assert set(ended.values()) == {1} and {row["group_id"] for row in rows(run, "carried")} <= {
        group for group, _, _ in ended}


def test_groups_are_taken_also_if_a_kill_came_before_their_plan_was_stored(
        run: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [group for groups in run.state.waiting_groups(1).values() for group in groups]

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("rollout.run.commit_json", killed)
        sample(run, 1)
    assert waiting and [*run.state.life("rollout", 1, "train").taken] == waiting
    sample(run, 1)
    planned = {row["group_id"] for row in rows(run, "prompts", iteration=1)}
    assert {*waiting} <= planned


@pytest.mark.parametrize("rule", [None, "1groups"])
def test_parts_of_which_nothing_is_left_to_sample_are_written(tmp_path: Path, rule: str | None) -> None:
    """Killed just before: all their completions are saved, or all their groups carried over."""
    run, engine = small_run(tmp_path, num_tasks=6), ScriptedEngine()
    keys = {"iteration": 0, "purpose": "train"}
    sample(run, 0, carry_over=rule)
    left = rows(run, "carried")
    before = [pq.read_table(path) for path in run.parts("completions", **keys)]
    assert [part.num_rows for part in before] == ([4, 0, 0] if rule else [8, 8, 8])
    run = runs.back_before(run, "rollout", complete=True, **keys)
    for path in run.parts("completions", **keys)[1:]:
        path.rename(f"{path}.spill-0123456789ab")
    sample(run, 0, engine, carry_over=rule)
    assert [pq.read_table(path) for path in run.parts("completions", **keys)] == before
    assert engine.served == [] and rows(run, "carried") == left
    assert run.stage("rollout", **keys).is_complete() and check_run(run).problems == []


def score_ends(run: Warehouse, iteration: int) -> str:
    """Score iterations that are due; the scorer."""
    path = run.root.parent / "reward.py"
    path.write_text("def ends(completions, **_):\n    return [1.0] * len(completions)\n")
    done = CliRunner().invoke(score, [str(run.root), "--reward-file", f"{path}:ends"])
    assert done.exit_code == 0, done.output
    scorer, = run.state.scorers(iteration, "train")
    return scorer


def test_scores_and_groups_are_of_the_iteration_in_which_a_group_is_whole(run: Warehouse) -> None:
    sample(run, 1)
    scorer = score_ends(run, 1)
    first = load_groups(run, 0, scorer, truncated_sampling="refuse")
    second = load_groups(run, 1, scorer, truncated_sampling="refuse")
    left = {row["group_id"] for row in rows(run, "carried")}
    assert left.isdisjoint(group.group_id for group in first)
    mixed = [group for group in second if group.group_id in left]
    assert len(mixed) == len(left) and {frozenset(group.policies) for group in mixed} <= {
        frozenset({0, 1}), frozenset({1})}
    for group in mixed:
        assert group.policy_version == 0 and group.iteration == 1
        for member in group.rollouts:
            row, = [row for row in rows(run, iteration=1) if (row["task_id"], row["sample_index"])
                    == (member.task_id, member.sample_index)]
            spans = row["version_segments"] or [{"length": len(row["completion_ids"]),
                                                 "policy_version": row["policy_version"]}]
            assert np.broadcast_to(member.versions, len(member.completion_ids)).tolist() == [
                span["policy_version"] for span in spans for _ in range(span["length"])]
    with closing(connect(run)) as connection:
        def ask(query: str) -> Any:
            return connection.execute(query).fetchall()
        assert ask("SELECT count(*), count(DISTINCT group_id) FROM carried") == [(4 * len(left), len(left))]
        assert ask("SELECT iteration, count(*) FROM completions GROUP BY ALL ORDER BY ALL") == [
            (0, 24 - 4 * len(left)), (1, len(rows(run, iteration=1)))]
        by_task = Counter(row["task_id"] for row in rows(run, iteration=1))
        assert dict(ask("SELECT task_id, n FROM task_results WHERE iteration = 1")) == by_task


def test_what_later_iterations_went_on_with_stays(tmp_path: Path) -> None:
    run = small_run(tmp_path, num_tasks=6)
    sample(run, 0, carry_over="0.4")
    left = {row["group_id"] for row in rows(run, "carried")}
    sample(run, 1, policy_version=0)
    with pytest.raises(Refusal) as refused:
        discard(run, 0, "train")
    assert refused.value.code == "gone_on_with"
    discard(run, 1, "train")
    sample(run, 1, policy_version=0)
    assert left <= {row["group_id"] for row in rows(run, iteration=1)}, "what is discarded waits again"
    assert check_run(run).problems == []


def test_pruning_waits_for_groups_that_are_not_whole(run: Warehouse) -> None:
    with pytest.raises(Refusal) as refused:
        prune_run(run, 1, dry_run=False)
    assert refused.value.code == "carried_needed"
    with pytest.raises(KeyboardInterrupt):
        sample(run, 1, ScriptedEngine(stop_after=3))
    with pytest.raises(Refusal) as refused:
        prune_run(run, 1, dry_run=False)
    assert refused.value.code == "carried_needed"
    sample(run, 1)
    prune_run(run, 1, dry_run=False)
    assert all(row["completion_ids"] is None for row in rows(run, "carried"))
    assert all(row["completion_ids"] for row in rows(run, iteration=1))
    assert check_run(run).problems == []


def test_what_was_pruned_is_begun_again_where_a_repair_asks_for_it(run: Warehouse) -> None:
    sample(run, 1)
    keys = [(row["group_id"], row["sample_index"]) for row in rows(run, iteration=1)]
    prune_run(run, 1, dry_run=False)
    (run.folder("completions", iteration=1, purpose="train") / "part-00000.parquet").unlink()
    fix(run, check_run(run, 1).changes)
    sample(run, 1)
    assert [(row["group_id"], row["sample_index"]) for row in rows(run, iteration=1)] == keys
    assert all(row["completion_ids"] for row in rows(run, iteration=1)) and check_run(run).problems == []


def test_visits_are_counted_in_one_pass(run: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group counts where it was begun; the folder of iterations is listed once, however many there are."""
    sample(run, 1)
    listed, iterations = [], RunState.iterations
    monkeypatch.setattr(RunState, "iterations",
                        lambda self, stage: listed.append(stage) or iterations(self, stage))
    visits = training_visits(run, 9)
    begun = {row["group_id"]: row["task_id"] for number in (0, 1) for row in rows(run, "prompts", number)}
    assert visits.total() == len(begun) and set(visits) == set(begun.values()) and listed == ["rollout"]


def test_what_is_missing_of_a_pruned_rollout_is_not_sampled_without_its_prompts(run: Warehouse) -> None:
    sample(run, 1)
    prune_run(run, 1, dry_run=False)
    part = run.parts("completions", iteration=0, purpose="train")[0]
    part.unlink()
    assert all(change.lost for change in check_run(run).changes)    # earlier versions opened it again:
    stage = run.stage("rollout", iteration=0, purpose="train")
    fix(run, [Change(part, "", stage), Change(part.with_name("manifest.json"), "", stage)])
    with pytest.raises(StageError, match=r"The tokens of rollout of iteration 0 \(train\) were pruned"):
        sample(run, 0, carry_over="0.4", policy_version=0)


def test_what_a_given_up_iteration_had_taken_waits_again(run: Warehouse) -> None:
    """Iteration 1 is begun, then a rollback leaves it: iteration 2 goes on with what iteration 0 left."""
    left = {row["group_id"] for row in rows(run, "carried")}
    with pytest.raises(KeyboardInterrupt):
        sample(run, 1, ScriptedEngine(stop_after=3))
    assert roll_back(run, 0)[0].startswith("policy 2 now has the weights of policy 0")
    sample(run, 2, policy_version=0)
    now = {row["group_id"] for row in rows(run, iteration=2)}
    assert left <= now and {row["policy_version"] for row in rows(run, iteration=2)} == {0}
    assert len(drawn(run, 1)) + 4 * len(now) == 24 + 4 * len(now - left)
    assert not rollouts_to_score(run, "any")[0].count((1, "train")), "no score waits for what nobody finishes"
    with pytest.raises(Refusal) as refused:
        sample(run, 1)
    assert refused.value.code == "given_up"


def test_groups_of_a_trained_iteration_do_not_wait_while_it_is_repaired(run: Warehouse) -> None:
    sample(run, 1)
    before = drawn(run, 2)
    add_policy(run, 2)
    (run.folder("completions", iteration=1, purpose="train") / "part-00000.parquet").unlink()
    fix(run, check_run(run).changes)
    sample(run, 2)
    sample(run, 1)
    assert drawn(run, 2) == before and set(drawn(run, 3).values()) == {1}


@pytest.mark.parametrize("damaged", ["carried-00000.parquet", "part-00000.parquet"])
@pytest.mark.parametrize("taken", [False, True])
def test_repair_neither_doubles_nor_loses_a_group(run: Warehouse, damaged: str, taken: bool) -> None:
    if taken:
        sample(run, 1)
    before = drawn(run, 2)
    path = run.folder("completions", iteration=0, purpose="train") / damaged
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    assert check_run(run).problems
    fix(run, check_run(run, 0).changes)
    sample(run, 0, carry_over="1", accept_change=("carry_over",), policy_version=0)
    if not taken:
        sample(run, 1)
    now = drawn(run, 2)
    assert set(now.values()) == {1} and (not taken or now == before)
    if taken:
        groups = load_groups(run, 0, score_ends(run, 0), truncated_sampling="refuse")
        assert {group.group_id for group in groups} == {row["group_id"] for row in rows(run)}
    planned = {row["group_id"] for iteration in (0, 1) for row in rows(run, "prompts", iteration)}
    assert {group for group, _, _ in now} == planned
    assert check_run(run).problems == []


def test_groups_that_were_carried_over_are_none_that_an_iteration_may_end_with(run: Warehouse) -> None:
    """Its only whole group is sampled again: the parts beside it hold none."""
    sample(run, 1)
    whole = {row["group_id"] for row in rows(run)}
    (run.folder("completions", iteration=0, purpose="train") / "carried-00000.parquet").unlink()
    fix(run, check_run(run, 0).changes)
    sample(run, 0, carry_over="0.4", policy_version=0)
    assert {row["group_id"] for row in rows(run)} == whole and len(whole) == 1


def test_merged_parts_leave_what_is_carried_alone(run: Warehouse) -> None:
    before = rows(run), rows(run, "carried")
    assert compact_run(run) == ["iteration 0 (train): 3 files merged into 1"]
    assert (rows(run), rows(run, "carried")) == before
    assert check_run(run).problems == []
    sample(run, 1)
    assert {row["group_id"] for row in before[1]} <= {row["group_id"] for row in rows(run, iteration=1)}


def test_bad_input_is_one_sentence_and_writes_nothing(run: Warehouse) -> None:
    before = sorted(run.root.rglob("*"))
    for values, sentence in [
        ({"carry_over": "0"}, "--carry-over 0 is not possible. Write a share"),
        ({"carry_over": "1.5"}, "--carry-over 1.5 is not possible"),
        ({"carry_over": "2.5groups"}, "--carry-over 2.5groups is not possible"),
        ({"carry_over": "half"}, "--carry-over half is not possible"),
        ({"carry_over": "0.5", "evaluate": True}, "--carry-over is only for first turns of training"),
        ({"carry_over": "0.5", "turn": 2}, "--carry-over is only for first turns of training"),
        ({"carry_over": "0.5", "endpoint": ("http://gpu-1:8000",)}, "by an engine of this machine"),
        ({"carry_over": "0.5", "allow_truncated_sampling": True,
          "sampling": Sampling(max_tokens=20, presence_penalty=1.0)}, "--presence-penalty counts the tokens"),
        ({"sampling": Sampling(max_tokens=10)}, "Iteration 0 carried over completions that were begun with "
         "--max-tokens 20, now it is 10"),
        ({"sampling": Sampling(max_tokens=20, temperature=0.5)}, "--temperature 1.0, now it is 0.5"),
    ]:
        with pytest.raises(StageError, match=sentence):
            sample(run, 1, **values)
    assert sorted(run.root.rglob("*")) == before
    engine = ScriptedEngine()
    engine.dtype = "bfloat16"
    with pytest.raises(StageError, match="an engine in float32 began, this one runs in bfloat16"):
        sample(run, 1, engine)
    assert not list(run.root.glob("*/iteration=1"))


def test_an_iteration_keeps_the_share_that_it_began_with_unless_that_is_accepted(tmp_path: Path) -> None:
    run = small_run(tmp_path, num_tasks=6)

    class Dying(ScriptedEngine):
        def sample(self, *asked: Any) -> Iterator[Any]:
            for count, sampled in enumerate(super().sample(*asked)):
                if count == 12:
                    raise KeyboardInterrupt
                yield sampled
    with pytest.raises(KeyboardInterrupt):
        sample(run, 0, Dying(), carry_over="0.9", spill_seconds=0.0)
    with pytest.raises(SettingChanged) as refused:
        sample(run, 0, carry_over="0.5")
    assert (refused.value.name, refused.value.before, refused.value.now) == ("carry_over", "0.9", "0.5")
    sample(run, 0, carry_over="0.5", accept_change=("carry_over",))
    assert run.stage("rollout", iteration=0, purpose="train").is_complete() and rows(run, "carried")


def test_of_two_iterations_that_start_at_once_one_takes_what_waits(run: Warehouse) -> None:
    class Slow(ScriptedEngine):
        """While it starts, another machine rolls out iteration 2."""

        def start(self, settings: EngineSettings) -> ScriptedEngine:
            sample(run, 2, policy_version=0)
            return super().start(settings)
    with pytest.raises(Refusal) as refused:
        sample(run, 1, Slow())
    assert refused.value.code == "groups_taken"
    assert not list(run.root.glob("*/iteration=1"))
    sample(run, 1)
    ended = Counter(row["group_id"] for iteration in range(3) for row in rows(run, iteration=iteration))
    assert set(ended.values()) == {4} and {row["group_id"] for row in rows(run, "carried")} <= ended.keys()


def test_another_group_size_is_of_new_groups_alone(run: Warehouse) -> None:
    left = {row["group_id"] for row in rows(run, "carried")}
    sample(run, 1, group_size=3)
    sizes = Counter(row["group_id"] for row in rows(run, iteration=1))
    assert {sizes[group] for group in left} == {4} and set(sizes.values()) == {3, 4}
    keys = [(row["task_id"], row["sample_index"]) for row in rows(run, iteration=1)]
    assert len(keys) == len(set(keys))


def test_evaluations_leave_the_option_of_config_toml_alone(tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    (run.root / "config.toml").write_text("[rollout]\ncarry-over = 0.5\nmax-tokens = 20\n")
    asked = []
    monkeypatch.setattr("rollout.run.run_rollout",
                        lambda options, **_: asked.append(options.carry_over) or [])
    for words in ([], ["--eval"], ["--turn", "2"], ["--eval", "--carry-over", "0.3"]):
        done = CliRunner().invoke(rollout, [str(run.root), *words])
        assert done.exit_code == 0, done.output
    assert asked == ["0.5", None, None, "0.3"]


def test_of_two_workers_on_one_part_the_first_settles_what_is_carried_over(tmp_path: Path) -> None:
    run, none = small_run(tmp_path, num_tasks=6), runs.table("carried", [])

    class Overtaken(ScriptedEngine):
        """When it ends, another worker has written the same parts whole, or has settled to do so."""

        def sample(self, requests: Any, sampling: Sampling, over: Any = None) -> Iterator[Any]:
            for each in super().sample(requests, sampling, over):
                if isinstance(each, Request) and not run.parts("carried", iteration=0, purpose="train"):
                    for number in (0, 2):
                        runs.write_part(run, "carried", number, none, iteration=0, purpose="train")
                yield each
    said = sample(run, 0, Overtaken(), carry_over="0.4")
    assert "left to the other shards: " in said[0]
    assert {row["group_id"] for row in rows(run, "carried")} <= {"0/train/t2/0", "0/train/t3/0"}
    sample(run, 0, carry_over="0.4")        # the other died: what is settled is finished, and the rest not
    assert run.stage("rollout", iteration=0, purpose="train").is_complete()
    sample(run, 1, policy_version=0)
    ended = drawn(run, 2)
    assert set(ended.values()) == {1} and check_run(run).problems == []


def test_a_rollout_with_fewer_parts_than_shards_says_so(tmp_path: Path) -> None:
    said = sample(small_run(tmp_path, num_tasks=6), 0, shard=Shard(1, 99))[-1]
    assert "parts for 99 shards: some have nothing to do. Set part-size = 1 before the next" in said
