"""What `warehouse loop` runs, and in which order: after an alarm, ahead, with evaluations, told to stop."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.building import plain
from tests.building.runs import TURN, new_run, without_waiting
from tests.building.weather import Weather, build_run, write_iteration, write_training
from warehouse.cli import cli
from warehouse.inspect.advice import Advice
from warehouse.ledger.entries import RolledBack
from warehouse.loop.devices import Crew, better_split, chosen_devices, sharing_of
from warehouse.loop.driver import ENGINE_SHARE, Loop, LoopOptions, Watched, check_options
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StageStopped, stopping
from warehouse.stages.warm import AWAKE, BESIDE, PLACE
from warehouse.store.errors import StageError
from warehouse.store.run_folder import open_warehouse

SPILLING = " --spill-seconds 1"


class Fake:
    """A command that does its work when it is asked whether it is over, as soon as what it waits for is."""

    def __init__(self, world: "World", words: list[str], place: Mapping[str, str]) -> None:
        self.world, self.words, self.place, self.number = world, words, place, len(world.jobs)
        self.code: int | None = None
        self.stopped = ""

    def poll(self) -> int | None:
        if self.code is None and self.stopped != "killed":
            for job in self.world.jobs[:self.number + 1]:   # who was begun before goes first
                if job.code is None:
                    job.code = self.world.work(job)
        return self.code

    def said(self) -> str:
        return self.world.words.get(self.words[0], "")

    def stop(self) -> None:
        if self.code is None:
            self.stopped, self.code = "stopped", -signal.SIGTERM

    def kill(self) -> None:
        if self.code is None:
            self.stopped, self.code = "killed", -signal.SIGKILL

    def end(self) -> int:
        assert self.code is not None, f"{self.words} was not told to end"
        return self.code


class World:
    """A run, and commands that work on it."""

    def __init__(self, folder: Path, config: str = "", heldout: bool = True) -> None:
        self.warehouse = new_run(folder / "run", {"t0": TURN, "t1": TURN}, {"h0": TURN} if heldout else None)
        (self.warehouse.root / "config.toml").write_text(config)
        self.jobs: list[Fake] = []
        self.words: dict[str, str] = {}
        self.failing: dict[str, int] = {}                   # exit codes of commands that begin so
        self.fails_once: dict[str, list[int]] = {}          # the same, of as many of them
        self.fires: dict[int, Advice] = {}                  # what is advised after an iteration, once
        self.events: list[tuple[str, dict[str, Any], str]] = []

    def start(self, words: list[str], place: Mapping[str, str]) -> Fake:
        self.jobs.append(Fake(self, words, place))
        return self.jobs[-1]

    def work(self, job: Fake) -> int | None:
        """The exit code of a command that can do its work now."""
        line = " ".join([job.words[0], *job.words[2:], *(f"{name}={job.place[name]}" for name in job.place)])
        for begin, code in self.failing.items():
            if line.startswith(begin):
                return code
        for part, codes in self.fails_once.items():
            if part in line and codes:
                return codes.pop()
        warehouse, words = open_warehouse(self.warehouse.root), job.words
        if words[:2] == ["train", "track"]:
            return 0
        iteration = int(words[words.index("--iteration") + 1])
        sampled = warehouse.state.is_complete("rollout", iteration, "train")
        if words[0] == "score" and "--purpose" not in words and not sampled:
            assert BESIDE in job.place
            return None
        if words[0] == "rollout":
            version = (int(words[words.index("--policy") + 1])
                       if "--policy" in words else None)
            purpose = "eval" if "--eval" in words else "train"
            if not warehouse.state.is_complete("rollout", iteration, purpose):
                plain.sample(warehouse, iteration=iteration, policy_version=version,
                             evaluate="--eval" in words)
        elif words[0] == "score":
            plain.score(warehouse)
        elif not warehouse.state.is_trained(iteration):
            assert iteration in warehouse.state.policies, "it has no turn yet"
            plain.train(warehouse)
        return 0

    def loop(self, iterations: int = 3, devices: int | None = None, split: int | None = None,
             **options: Any) -> int:
        world = self
        crew = Crew(chosen_devices("all", devices), split=split)

        class Watching(Loop):
            def _look(self, iteration: int) -> Watched:
                rows = [{"iteration": iteration}] if self._is_trained(iteration) else []
                advice = world.fires.pop(iteration, None)
                return Watched(rows, advice.lines if advice else [], advice or Advice([]),
                               ["solving_falls"] if advice else [], [f"changed at {iteration}"])

            def _rows(self, iteration: int, purpose: str) -> list[dict[str, Any]]:
                return [{"iteration": iteration, "purpose": purpose}]

        def tell(kind: str, facts: dict[str, Any], line: str) -> None:
            self.events.append((kind, facts, line))
        with without_waiting(), pytest.MonkeyPatch.context() as patched:
            patched.setattr("warehouse.loop.driver.line_of", str)
            code = Watching(open_warehouse(self.warehouse.root), LoopOptions(iterations, **options), crew,
                            self.start, tell).go()
        assert all(job.code is not None for job in self.jobs), "something runs still"
        return code

    def calls(self, name: str) -> list[str]:
        """Commands of a name, without the run, and how often samplers save."""
        return [shlex.join([job.words[0], *job.words[2:]]).replace(SPILLING, "")
                for job in self.jobs if job.words[0] == name]

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [facts for name, facts, _ in self.events if name == kind]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


ROOT = Path(__file__).parents[2]
BACK = Advice(["Stop here, or go back"], 1, back=1)


def test_each_iteration_is_sampled_scored_trained_and_told_once(world: World) -> None:
    assert world.loop() == 0
    assert world.warehouse.state.versions == [0, 1, 2, 3]
    assert [world.calls(name) for name in ("rollout", "score", "train")] == [
        [f"{name} --iteration {number}" for number in range(3)] for name in ("rollout", "score", "train")]
    assert world.told("iteration") == [{"iteration": number} for number in range(3)]
    assert [line for kind, _, line in world.events if kind == "iteration"] == [
        f"{{'iteration': {number}}}\n  changed at {number}" for number in range(3)]
    assert world.told("done") == []
    assert world.loop() == 0 and len(world.calls("rollout")) == 3           # there is nothing left to do
    assert world.told("done") == [{}]
    assert world.loop(4) == 0 and world.calls("rollout")[3:] == ["rollout --iteration 3"]


def test_an_alarm_ends_the_loop(world: World) -> None:
    world.fires[1] = BACK
    assert world.loop() == 3
    assert world.told("alarm") == [{"signals": ["solving_falls"], "back": 1}]
    assert len(world.calls("rollout")) == 2 and world.warehouse.state.newest == 2
    assert world.events[-1][2].endswith("To go on nevertheless, repeat the command.")
    assert world.loop() == 0 and world.warehouse.state.newest == 3
    log = CliRunner().invoke(cli, ["log", str(world.warehouse.root)]).output
    assert "the loop ended at train of iteration 1: solving_falls" in log


def test_policies_that_will_not_fit_on_the_disk_are_said_once(world: World,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warehouse.loop.driver.shutil",
                        SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=1)))
    assert world.loop() == 0
    [said] = world.told("disk")
    size = sum(path.stat().st_size for path in (world.warehouse.root / "policies" / "1").rglob("*.*"))
    assert said == {"needed": 2 * size, "free": 1}
    (world.warehouse.root / "config.toml").write_text("[train]\nkeep-policies = 2\n")
    assert world.loop(4) == 0 and len(world.told("disk")) == 1


def test_a_rescue_goes_back_says_why_and_goes_on_with_a_smaller_step(world: World) -> None:
    world.fires[1] = BACK
    assert world.loop(rescue=True) == 0
    assert world.told("rescue") == [{"from": 2, "to": 1, "why": "solving_falls since iteration 1",
                                     "factor": 0.5}]
    back = [entry.what for entry in world.warehouse.state.entries.values()
            if isinstance(entry.what, RolledBack)]
    assert [(each.to, each.why, each.rate) for each in back] == [(1, "solving_falls since iteration 1", 0.5)]
    assert world.calls("train")[-1] == "train --iteration 2"
    assert world.warehouse.state.newest == 3


def test_a_rescue_after_the_last_iteration_says_which_policy_the_last_one_is(world: World) -> None:
    world.fires[1] = BACK
    assert world.loop(2, rescue=True) == 0
    assert world.events[-1][::2] == ("done", "2 iterations are over. Policy 2 is policy 1 again. To train "
                                             f"one more: warehouse loop {world.warehouse.root} 3")
    assert "Stop here, or go back" not in "".join(line for _, _, line in world.events)
    assert world.loop(2) == 0 and "Policy 2 is policy 1 again" in world.events[-1][2]


def test_a_run_is_rescued_three_times(world: World) -> None:
    for number in range(1, 8):
        world.fires[number] = BACK
    assert world.loop(8, rescue=True) == 3
    assert len(world.told("rescue")) == 3


@pytest.mark.parametrize("advice", [BACK._replace(mend=True), BACK._replace(back=None)])
def test_what_a_smaller_step_does_not_help_ends_the_loop(world: World, advice: Advice) -> None:
    world.fires[1] = advice
    assert world.loop(rescue=True) == 3 and not world.told("rescue")


def test_ahead_an_iteration_is_sampled_by_the_policy_before(world: World) -> None:
    assert world.loop(ahead=True) == 0
    share = f"--gpu-memory-utilization {ENGINE_SHARE}"
    assert world.calls("rollout") == [f"rollout {share} --iteration 0",
                                      *(f"rollout {share} --iteration {number} --policy {number - 1}"
                                        for number in (1, 2))]
    assert world.warehouse.state.newest == 3


def test_ahead_by_two_the_engine_never_waits_for_a_policy(world: World) -> None:
    assert world.loop(5, ahead_by=2) == 0
    versions = [int(words[words.index("--policy") + 1]) if "--policy" in words else None
                for words in (call.split() for call in world.calls("rollout"))]
    assert versions == [None, 0, 0, 1, 2]
    order = [f"{job.words[0]} {job.words[job.words.index('--iteration') + 1]}" for job in world.jobs]
    assert order.index("rollout 2") < order.index("train 1")
    assert order.index("rollout 3") > order.index("train 0")


def test_ahead_alarms_are_heeded_after_the_next_training_which_waits_for_nothing(world: World) -> None:
    world.fires[1] = BACK
    assert world.loop(5, ahead=True) == 3
    assert world.warehouse.state.newest == 3 and len(world.told("iteration")) == 2


def test_a_rescue_discards_all_that_was_sampled_ahead(world: World) -> None:
    world.fires[1] = BACK
    assert world.loop(7, ahead_by=2, rescue=True) == 0
    state = world.warehouse.state
    assert state.newest == 7 and all(life.is_complete for life in state.of_stage("rollout"))
    sampled_by = {life.iteration: life.settings["policy_version"] for life in state.of_stage("rollout")}
    assert [sampled_by[number] for number in (4, 5, 6)] == [4, 4, 4]     # not by those that it went back from
    assert len([call for call in world.calls("rollout") if "--iteration 4 " in f"{call} "]) == 2


@pytest.mark.parametrize("config", ["[rollout]\ngpu-memory-utilization = 0.35\n",
                                    "rollout.gpu_memory_utilization = 0.35\n"])
def test_ahead_the_engine_has_the_memory_that_the_config_gives_it(tmp_path: Path, config: str) -> None:
    world = World(tmp_path, config)
    assert world.loop(1, ahead=True) == 0 and world.calls("rollout") == ["rollout --iteration 0"]


def test_an_alarm_ends_what_is_ahead_and_a_rescue_discards_it(world: World) -> None:
    world.fires[1] = BACK
    assert world.loop(4, ahead=True, rescue=True) == 0
    state = world.warehouse.state
    assert state.newest == 4 and state.num_rollbacks(4) == 1
    assert all(life.is_complete for life in state.of_stage("rollout"))


def test_gpus_are_numbered_among_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert [device.variable for device in chosen_devices("1,0")] == ["7", "4"]
    with pytest.raises(StageError, match=r"--gpus 7 .*: CUDA_VISIBLE_DEVICES=4,7 shows 2 GPUs\. Say all, or"):
        chosen_devices("7")


def test_engines_keep_their_gpus_where_trainings_have_room_beside_them() -> None:
    for awake in (True, False):
        for split in (0, None):
            crew = Crew(chosen_devices("all", 2), awake=awake, split=split)
            workers = [*crew.engines(), *crew.trainers()]
            assert {AWAKE in worker.place for worker in workers} == {awake and split is None}


def test_what_fails_ends_the_loop_with_its_words(world: World) -> None:
    world.failing["score --iteration 1"], world.words["score"] = 1, "No lanes.\n"
    assert world.loop(ahead=True) == 1
    assert world.events[-1][0] == "failed" and world.events[-1][2] == "No lanes."
    assert world.warehouse.state.newest == 1
    del world.failing["score --iteration 1"]
    assert world.loop() == 0 and world.warehouse.state.newest == 3


def test_a_stage_that_may_go_on_ends_the_loop_with_its_code(world: World) -> None:
    world.failing["rollout --iteration 1"] = 75
    assert world.loop() == 75


@pytest.mark.parametrize("rescue", [False, True])
def test_a_training_without_any_gradient_is_an_alarm_or_ends_the_loop(world: World, rescue: bool) -> None:
    world.failing["train --iteration 1"], world.words["train"] = 1, "No gradient.\n"
    if rescue:
        world.fires[1] = BACK._replace(back=0)
    assert world.loop(2, rescue=rescue) == (0 if rescue else 1)
    assert bool(world.told("rescue")) == rescue


def test_the_first_every_kth_and_the_last_policy_are_evaluated_once(world: World) -> None:
    assert world.loop(3, ahead=True, eval_every=2) == 0
    assert [call for call in world.calls("rollout") if "--eval" in call] == [
        f"rollout --gpu-memory-utilization {ENGINE_SHARE} --eval --iteration {version}"
        for version in (0, 2, 3)]           # with the memory of the others: it is the same engine
    assert [facts["iteration"] for facts in world.told("evaluation")] == [0, 2, 3]
    ahead = [call for call in world.calls("rollout") if "--policy" in call]
    assert len(ahead) == 1 and " --iteration 1 " in ahead[0]    # one engine samples at a time
    assert world.loop(3, eval_every=2) == 0 and len(world.told("evaluation")) == 3


@pytest.mark.parametrize(("config", "label", "count"), [
    ("", "arms-8", 2), ("", "t0", 2), ("", "heldout", 1), ('[eval]\nlabel = "mine"\n', "mine", 1),
    ('[eval]\nsplit = ["train"]\n', "train", 1)])
def test_a_policy_is_evaluated_unless_the_loops_own_evaluation_of_it_is_there(
        tmp_path: Path, config: str, label: str, count: int) -> None:
    world = World(tmp_path, config)
    plain.sample(world.warehouse, iteration=0, evaluate=True, label=label)
    plain.score(world.warehouse)
    assert world.loop(1, eval_every=1) == 0
    assert len([call for call in world.calls("rollout") if "--eval" in call]) == count


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("stage", ["rollout", "score"])
def test_an_evaluation_in_which_the_loop_ended_is_finished_by_the_next(world: World, version: int,
                                                                      stage: str) -> None:
    evaluation = {"rollout": f"rollout --eval --iteration {version}",
                  "score": f"score --iteration {version} --purpose eval"}
    world.fails_once[evaluation[stage]] = [75]
    assert world.loop(3, eval_every=2) == 75
    assert version not in [facts["iteration"] for facts in world.told("evaluation")]
    assert world.loop(3, eval_every=2) == 0
    assert [facts["iteration"] for facts in world.told("evaluation")] == [0, 2, 3]


def test_that_rows_are_of_an_earlier_policy_is_no_change_of_settings(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=2, evals=(), num_tasks=4, group_size=8)
    random = np.random.default_rng(0)
    rows = write_iteration(run, 2, "train", Weather(), random, num_tasks=4, group_size=8)
    write_training(run, 2, Weather(staleness=1, loss="gspo"), random, rows)
    loop = Loop(run, LoopOptions(3), Crew(chosen_devices("all", None)), pytest.fail, pytest.fail)
    assert loop._look(2).changed == ["Settings changed at iteration 2: train loss gspo (was dapo)."]


def test_the_last_evaluation_is_tracked_although_no_training_follows_it(world: World) -> None:
    assert world.loop(2, eval_every=1, track="wandb") == 0
    assert [job.words for job in world.jobs if job.words[:2] == ["train", "track"]] == [
        ["train", "track", str(world.warehouse.root), "wandb"]]


def test_what_cannot_be_evaluated_is_one_sentence(tmp_path: Path) -> None:
    warehouse = World(tmp_path, heldout=False).warehouse
    with pytest.raises(StageError, match="has no held-out tasks"):
        check_options(warehouse, LoopOptions(1, eval_every=1))


def test_policies_that_are_sampled_with_are_to_be_kept(world: World) -> None:
    config = world.warehouse.root / "config.toml"
    config.write_text("[train]\nkeep-policies = 2\n")
    check_options(world.warehouse, LoopOptions(2, ahead=True))
    with pytest.raises(StageError, match=r"With --ahead-by 2 .* keep-policies = 2 removes. Raise it to 3"):
        check_options(world.warehouse, LoopOptions(2, ahead_by=2))


def test_a_schedule_that_has_ended_is_refused_before_anything_is_sampled(
        world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.loop(2) == 0
    root, taken = world.warehouse.root, world.warehouse.policy(2)["global_step"]
    for total in (taken, taken + 1):
        (root / "config.toml").write_text(f'[train]\nschedule = "linear"\ntotal_steps = {total}\n')
        check_options(open_warehouse(root), LoopOptions(2))
        refused = pytest.raises(StageError, match=f"ends at step {taken}, and {taken} are taken")
        with refused if total == taken else contextlib.nullcontext():
            check_options(open_warehouse(root), LoopOptions(3))
    assert "schedule" not in capsys.readouterr().err
    check_options(open_warehouse(root), LoopOptions(5))
    assert f"ends at step {taken + 1}, the loop may end at step {taken + 3}: raise" in capsys.readouterr().err


# Several devices ------------------------------------------------------------------------------------------


def places(world: World, name: str) -> list[str | None]:
    return [job.place.get("CUDA_VISIBLE_DEVICES") for job in world.jobs if job.words[0] == name]


def test_each_device_samples_a_share_and_all_of_them_train_together(world: World) -> None:
    assert world.loop(1, devices=2) == 0
    assert world.calls("rollout") == [f"rollout --iteration 0 --part-size 16 --shard {index}/2"
                                      for index in range(2)]
    assert places(world, "rollout") == ["0", "1"] and places(world, "train") == ["0,1"] * 2
    ranks = [(job.place["RANK"], job.place["LOCAL_RANK"], job.place["WORLD_SIZE"])
             for job in world.jobs if job.words[0] == "train"]
    assert ranks == [("0", "0", "2"), ("1", "1", "2")]


def test_what_was_begun_in_parts_goes_on_in_such_parts_whatever_devices_there_are(world: World) -> None:
    plain.sample(world.warehouse, iteration=0, shard=Shard(0, 2))
    begun = world.warehouse.stage("rollout", iteration=0, purpose="train").settings()
    assert begun and world.loop(1, devices=3) == 0
    assert f"--part-size {begun['part_size']} --shard 2/3" in world.calls("rollout")[-1]


def test_an_iteration_that_was_imported_is_scored_and_trained(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    plain.sample(other.warehouse, iteration=0)
    lines = tmp_path / "rows.jsonl"
    (Path(world.warehouse.model) / "tokenizer.json").unlink()       # a made-up one, which reads no token
    for words in (["export", str(other.warehouse.root), str(lines)],
                  ["import", str(world.warehouse.root), str(lines), "--iteration", "0"]):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output
    assert world.loop(1) == 0 and world.warehouse.log.refresh().newest == 1


def test_the_share_of_an_engine_that_fails_is_sampled_by_the_others(world: World) -> None:
    world.fails_once["--shard 1/3"] = [-9]
    assert world.loop(1, devices=3) == 0
    assert [call.split()[-1] for call in world.calls("rollout")] == ["0/3", "1/3", "2/3", "1/6", "4/6"]
    [lost] = world.told("lost")
    assert (lost["device"], lost["exit_code"], lost["left_out"]) == ("device 1", -9, False)


def test_a_device_that_fails_twice_is_left_out(world: World) -> None:
    world.fails_once["CUDA_VISIBLE_DEVICES=1"] = [1, 1]
    assert world.loop(3, devices=2) == 0
    assert [lost["left_out"] for lost in world.told("lost")] == [False, True]
    assert world.calls("rollout")[-1] == "rollout --iteration 2"
    assert places(world, "train")[-1] == "0" and "RANK" not in world.jobs[-1].place


def test_a_rollout_ahead_that_fails_meanwhile_ends_the_loop_too(world: World) -> None:
    world.failing[f"rollout --gpu-memory-utilization {ENGINE_SHARE} --iteration 1"] = 1
    assert world.loop(ahead=True) == 1 and world.warehouse.state.newest == 1


@pytest.mark.parametrize(("code", "begun"), [(0, 2), (1, 0), (None, 0)])
def test_nothing_is_sampled_ahead_of_a_rollout_that_failed(world: World, code: int | None,
                                                           begun: int) -> None:
    loop = Loop(world.warehouse, LoopOptions(5, ahead_by=2), Crew(chosen_devices("all")), world.start,
                lambda *event: None)
    loop.sampling = {0: SimpleNamespace(poll=lambda: 0),        # type: ignore[dict-item]
                     1: SimpleNamespace(poll=lambda: code)}     # type: ignore[dict-item]
    loop._sample_ahead(0)
    assert len(world.jobs) == begun         # a rollout and its score


def test_where_no_engine_is_left_the_loop_ends_with_the_words_of_the_last(world: World) -> None:
    world.failing["rollout"], world.words["rollout"] = 1, "No memory.\n"
    assert world.loop(1, devices=2) == 1
    assert world.events[-1][0] == "failed" and world.events[-1][2] == "No memory."


def test_a_training_of_which_a_process_fails_begins_again_by_another_port(world: World) -> None:
    world.fails_once["RANK=1"], world.fails_once["RANK=0"] = [-9], [75]
    assert world.loop(2, devices=2) == 0
    ports = [job.place["MASTER_PORT"] for job in world.jobs if job.words[0] == "train"]
    assert len(ports) == 6 and ports[0] == ports[1] != ports[2] and {*ports[2:]} == {ports[2]}
    assert [lost["device"] for lost in world.told("lost")] == ["device 1"]


def test_a_training_that_all_of_its_processes_refuse_ends_the_loop(world: World) -> None:
    world.failing["train --iteration 1"] = 3
    assert world.loop(2, devices=2) == 3 and not world.told("lost")
    assert len(world.calls("train")) == 4


def test_ahead_some_devices_sample_while_the_others_train(world: World) -> None:
    assert world.loop(devices=3, ahead=True, split=0) == 0
    assert {*places(world, "rollout")} == {"0"} and {*places(world, "train")} == {"1,2"}
    assert not any("--gpu-memory-utilization" in call for call in world.calls("rollout"))


def test_a_split_by_number_stays_whatever_was_measured(world: World) -> None:
    assert world.loop(devices=3, ahead=True, split=2) == 0
    assert {*places(world, "rollout")} == {"0", "1"} and {*places(world, "train")} == {"2"}
    given, adapting = (Crew(chosen_devices("all", 8), split=split) for split in (6, 0))
    assert not given.adapt(90.0, 1.0) and len(given.engines()) == 6
    assert adapting.adapt(90.0, 1.0) and len(adapting.engines()) == 5


@pytest.mark.parametrize(("split", "span"), [(3, 1), (4, 1), (1, 2)])
def test_a_split_that_leaves_nothing_to_train_is_refused(split: int, span: int) -> None:
    with pytest.raises(StageError, match=f"--split {split} leaves no GPU to train or no whole engine: 3 are"):
        Crew(chosen_devices("all", 3), split=split, span=span)


def test_ahead_without_a_split_every_device_samples_and_trains(world: World) -> None:
    assert world.loop(devices=2, ahead=True) == 0
    assert {*places(world, "rollout")} == {"0", "1"} and {*places(world, "train")} == {"0,1"}
    assert all("--gpu-memory-utilization" in call for call in world.calls("rollout"))


@pytest.mark.parametrize(("num_engines", "sampling", "training", "then"), [
    (4, 10.0, 10.0, 4), (4, 20.0, 10.0, 5), (4, 10.0, 20.0, 3), (4, 90.0, 1.0, 5), (7, 90.0, 1.0, 7),
    (1, 1.0, 90.0, 1), (4, 11.0, 10.0, 4)])
def test_the_split_moves_by_one_towards_the_stage_that_takes_longer(num_engines: int, sampling: float,
                                                                   training: float, then: int) -> None:
    assert better_split(8, num_engines, sampling, training) == then


def test_a_config_of_accelerate_has_the_trainers_share_the_weights(tmp_path: Path) -> None:
    sharing = sharing_of(ROOT / "examples" / "many-gpus" / "by-layer.yaml")
    assert sharing["ACCELERATE_USE_FSDP"] == sharing["FSDP_RESHARD_AFTER_FORWARD"] == "true"
    assert sharing["FSDP_VERSION"] == "2" and sharing.keys() <= PLACE
    for count in (1, 2):
        crew = Crew(chosen_devices("all", count), sharing=sharing)
        assert [worker.place["RANK"] for worker in crew.trainers()] == [str(rank) for rank in range(count)]
        assert all(sharing.items() <= worker.place.items() for worker in crew.trainers())
        assert not any("RANK" in worker.place for worker in crew.engines())
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(StageError, match="fsdp_config"):
        sharing_of(tmp_path / "empty.yaml")


def test_gpus_are_those_that_this_process_sees_by_the_numbers_of_torch(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [device.variable for device in chosen_devices("all")] == ["3", "5"]
    assert [device.variable for device in chosen_devices("1")] == ["5"]
    for wrong in ("2", "0,0", "x", ""):
        with pytest.raises(StageError, match="--gpus"):
            chosen_devices(wrong)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert [device.variable for device in chosen_devices("all")] == [None]


# Processes -------------------------------------------------------------------------------------------------


SLEEPING = "#!/bin/bash\nexec -a {folder}/asleep sleep 60\n"
TYPED = ("import sys; from warehouse.cli import cli; sys.argv[0] = {bin!r} + '/warehouse'; "
         "sys.exit(cli(sys.argv[1:], 'warehouse'))")


def started(folder: Path, *options: str, **stages: str) -> subprocess.Popen[str]:
    """The command in a process of its own; stages sleep unless they are given."""
    warehouse = new_run(folder / "run", {"t0": TURN})
    (folder / "bin").mkdir()
    for name in ("rollout", "score", "train"):
        path = folder / "bin" / name
        path.write_text(stages.get(name, SLEEPING.format(folder=folder)))
        path.chmod(0o755)
    words = [sys.executable, "-c", TYPED.format(bin=str(folder / "bin")), "loop", str(warehouse.root), "2"]
    return subprocess.Popen([*words, *options], env=os.environ | {"ROLLHOUSE_WARM": "off"}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def num_asleep(folder: Path) -> int:
    return subprocess.run(["pgrep", "-f", f"^{folder}/asleep"], capture_output=True).stdout.count(b"\n")


def wait_for(true: Callable[[], object]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within half a minute")


@pytest.mark.parametrize("number", [signal.SIGTERM, *(
    pytest.param(number, marks=pytest.mark.slow("one handler is set for every signal"))
    for number in (signal.SIGINT, signal.SIGHUP))])
def test_told_to_stop_it_leaves_nothing_running_and_says_how_to_go_on(tmp_path: Path,
                                                                      number: signal.Signals) -> None:
    with started(tmp_path) as process:
        wait_for(lambda: num_asleep(tmp_path) == 2)
        process.send_signal(number)
        _, said = process.communicate(timeout=40)
    assert process.returncode == 75 and f"Stopped by {number.name}" in said and "Traceback" not in said
    assert num_asleep(tmp_path) == 0


def test_the_end_of_the_process_that_ran_it_is_not_called_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StageStopped, match="by the end of the process that ran it"), stopping():
        monkeypatch.setattr(os, "getppid", lambda: -1)
        os.kill(os.getpid(), signal.SIGTERM)


def test_killed_it_leaves_nothing_running(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        wait_for(lambda: num_asleep(tmp_path) == 2)
        process.kill()
    wait_for(lambda: num_asleep(tmp_path) == 0)


def test_what_a_stage_said_is_in_the_log_of_the_loop(tmp_path: Path) -> None:
    failing = "#!/bin/bash\necho 'Error: out of luck' >&2\nexit 1\n"
    with started(tmp_path, "--json", rollout=failing) as process:
        printed, said = process.communicate(timeout=40)
    [event] = [json.loads(line) for line in printed.splitlines()]
    assert (process.returncode, event["event"], event["exit_code"]) == (1, "failed", 1), said
    assert "Error: out of luck" in (tmp_path / "run" / "loop.log").read_text()


@pytest.mark.parametrize(("table", "sentence"), [
    ('[train]\nloss = "bnpo"\n', "There is no loss 'bnpo'. That of TRL is dapo with"),
    ('[train]\nscorer = "exact"\n[score]\nreward = "tests-share"\n', "makes the scorer tests-share, and "),
    ('[train]\nscorer = "mine"\n', "of the default reward, and [train] wants the rewards of mine. Put "),
    ('[score]\nreward-file = "mine.py:fast"\n', "mine.py. Name"),
    ("[rollout]\ngroup-size = 1\n", "With group-size = 1 below [rollout] every advantage is 0"),
    ('[train]\nschedule = "linear"\n', "--schedule linear needs --total-steps"),
    ('[train]\ntrack = "wandb"\n', "--track wandb cannot be used: it is not installed. Run `pip install"),
    ('[loop]\ntrack = "mlflow"\n', "--track mlflow cannot be used: it is not installed."),
    ('[loop]\ntrack = "tensorbord"\n', "'tensorbord' is not one of 'tensorboard', 'wandb', ")])
def test_what_a_later_stage_would_refuse_is_told_before_anything_is_sampled(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, sentence: str) -> None:
    run = World(tmp_path).warehouse.root
    monkeypatch.setenv("ROLLHOUSE_WARM", "off")
    monkeypatch.setattr("train.inputs.settings.find_spec", lambda _name: None)
    monkeypatch.setenv("ROLLHOUSE_TRUST", str(run))
    (run / "config.toml").write_text(table)
    result = CliRunner().invoke(cli, ["loop", str(run), "1"])
    assert result.exit_code == 1 and sentence in result.output and not (run / "loop.log").exists()
