"""Several processes on the same work at once: the rows are those of one, and each says what it did."""

import multiprocessing
from pathlib import Path

import pytest

from tests.building import scripted
from tests.building.runs import add_policy, small_run
from tests.building.scripted import ScriptedEngine
from tests.building.stored import weights
from tests.chaos.kills import Step, at_next_instant, orphans, start, to_the_end
from tests.chaos.loop import contents, leftovers, new_run, problems
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.discard import discard
from warehouse.maintain.rollback import roll_back
from warehouse.stages.shard import Shard
from warehouse.store.run_folder import Warehouse, open_warehouse

WORKERS = 8


def sample(warehouse: Warehouse, shard: Shard) -> None:
    scripted.sample(warehouse, shard=shard, spill_seconds=0.0)


def wait_and_sample(warehouse: Warehouse, shard: Shard, barrier) -> None:
    barrier.wait()
    sample(warehouse, shard)


@pytest.mark.parametrize("sharded", [False, True])
def test_eight_workers_on_one_iteration_write_each_row_once(tmp_path: Path, sharded: bool) -> None:
    alone, shared = small_run(tmp_path / "a", num_tasks=16), small_run(tmp_path / "b", num_tasks=16)
    sample(alone, Shard())
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(WORKERS)
    shards = [Shard(index, WORKERS) if sharded else Shard() for index in range(WORKERS)]
    workers = [context.Process(target=wait_and_sample, args=(shared, shard, barrier)) for shard in shards]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * WORKERS
    stage = shared.stage("rollout", iteration=0, purpose="train")
    assert stage.is_complete() and len(stage.manifest()["parts"]) == 8
    assert contents(shared) == contents(alone)
    assert leftovers(shared) == problems(shared) == []
    assert not list(shared.root.rglob("*.tmp-*"))


def test_a_rollout_that_is_discarded_while_it_runs_says_so(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)

    class Discarding(ScriptedEngine):
        def sample(self, requests, sampling):
            for count, sampled in enumerate(super().sample(requests, sampling)):
                if count == 13:
                    discard(warehouse, 0, "train")
                yield sampled
    with pytest.raises(Refusal) as refused:
        scripted.sample(warehouse, Discarding(), spill_seconds=0.0)
    assert refused.value.code == "ended"
    sample(warehouse, Shard())
    assert warehouse.stage("rollout", iteration=0, purpose="train").is_complete()
    assert problems(warehouse) == []


def test_a_policy_that_is_rolled_back_while_a_rollout_starts_has_no_row(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    add_policy(warehouse, 1, weights(warehouse, 1, "weights 1"))

    class Exchanging(ScriptedEngine):
        def start(self, settings):
            roll_back(open_warehouse(warehouse.root), 0)
            return super().start(settings)
    with pytest.raises(Refusal) as refused:
        scripted.sample(warehouse, Exchanging(), iteration=1, serve="adapter")
    assert (refused.value.code, refused.value.fields["policy"]) == ("policy_exchanged", 1)
    assert not (warehouse.root / "completions").exists()


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A run with one complete rollout; the tests below go on with it, in their order."""
    warehouse = new_run(tmp_path_factory.mktemp("races") / "run")
    assert to_the_end(Step("rollout", 0), warehouse).code == 0
    return warehouse


def together(step: Step, warehouse: Warehouse) -> list[str]:
    """What two processes printed that ran the same command at the same time; both must end well."""
    processes = [start(step, warehouse) for _ in range(2)]
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    return printed


def test_a_killed_score_takes_its_lanes_with_it(sampled: Warehouse, tmp_path: Path) -> None:
    assert at_next_instant(Step("score", 0), sampled, tmp_path / "passed").killed    # its lanes are running
    assert orphans(sampled) == []


def test_two_scores_at_once_write_the_rewards_of_one(sampled: Warehouse) -> None:
    together(Step("score", 0), sampled)
    scorer, = sampled.state.scorers(0, "train")
    rewards = sampled.read("samples", ["reward"], iteration=0, purpose="train", scorer=scorer)["reward"]
    assert len(rewards) == 20 and rewards.null_count == 0
    assert leftovers(sampled) == problems(sampled) == []


@pytest.mark.slow("four trainings, each with its own imports of torch")
def test_of_two_trainings_at_once_one_wins_and_the_other_says_so(sampled: Warehouse) -> None:
    assert to_the_end(Step("score", 0), sampled).code == 0
    printed = together(Step("train", 0), sampled)
    assert sum("wrote policy 1 (" in text for text in printed) == 1, printed
    assert sum("another process wrote policy 1 first" in text or "is trained already" in text
               or "had written policy 1 already" in text for text in printed) == 1, printed
    assert sampled.state.versions == [0, 1]
    assert sampled.stage("train", iteration=0).is_complete()
    assert leftovers(sampled) == problems(sampled) == []
    assert not list(sampled.root.glob(".tmp-*"))


def test_two_compactions_at_once_keep_every_row_once(sampled: Warehouse) -> None:
    before = contents(sampled)
    together(Step("compact", 0), sampled)
    assert contents(sampled) == before
    assert leftovers(sampled) == problems(sampled) == []
    assert len(sampled.parts("completions", iteration=0, purpose="train")) == 1
