"""Arms train the same rows with other settings, go on after a kill, and leave their parent as it is."""

import fcntl
import itertools
import json
import math
import signal
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.building import plain
from tests.building.plain import SCORER
from tests.building.runs import TURN, add_policy, begin, copy_run, new_run, small_run, without_waiting
from tests.building.sound import check_run
from tests.building.stored import weights
from tests.warehouse.experiments.test_branch import files
from warehouse.cli import cli
from warehouse.experiments.arms import Arms, scorer_of
from warehouse.experiments.arms_file import Arm, read_arms, with_settings
from warehouse.experiments.arms_table import arms_text, table_of
from warehouse.experiments.comparison import behind, flip_test, holm
from warehouse.experiments.plan import Plan
from warehouse.options import room_command
from warehouse.sql.database import connect
from warehouse.store.config_file import read_config
from warehouse.store.run_folder import Warehouse, open_warehouse

DRIFT = 0.25      # of the parent from every arm, nats per token
FILE = "[low]\nlearning-rate = 1e-4\n[as-it-was]\n[high]\nlearning-rate = 1e-3\n"


class Command:
    """A command of an arm: done as soon as it is asked for, or never where `stuck`."""

    def __init__(self, words: list[str], code: int | None) -> None:
        self.words, self.code, self.pid, self.stopped = words, code, 1, False

    def poll(self) -> int | None:
        return self.code

    def said(self) -> str:
        return "loading\nError: It cannot be done. Do another thing.\n"

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.stopped = True

    def end(self) -> int:
        return -signal.SIGTERM


class World:
    """Commands by their real stages, without engine or model; what was run, in order."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failing, self.kill_at, self.stopped = "", 0, dict[str, str]()

    def start(self, words: list[str]) -> Command:
        stage, root, *rest = words if words[1] != "logprobs" else ["logprobs", *words[2:]]
        self.ran.append(f"{Path(root).name}: {stage} {' '.join(rest)}")
        if self.kill_at and len(self.ran) == self.kill_at:
            raise KeyboardInterrupt
        if self.failing and self.failing in self.ran[-1]:
            return Command(words, 1)
        run, named = open_warehouse(root), dict(pairwise(rest))
        if stage == "logprobs":
            plain.logprobs(run, int(named["--policy"]), int(named["--iteration"]), named["--purpose"], DRIFT)
            return Command(words, 0)
        iteration = int(named["--iteration"])
        if stage == "rollout":
            labelled = {"evaluate": True, "label": named["--label"]} if "--eval" in rest else {}
            version = int(named["--policy"]) if "--policy" in rest else None
            plain.sample(run, iteration=iteration, policy_version=version, **labelled)
        else:
            plain.score(run) if stage == "score" else plain.train(run)
        return Command(words, 0)

    def run(self, plan: Plan, arms: list[Arm], jobs: int = 1) -> dict[str, str]:
        work = Arms(plan, self.start, lambda _line: None, lambda _done, _doing: None)
        with without_waiting():
            work.run(arms, jobs)
        self.stopped = work.stopped
        return work.failed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A run whose iteration 0 is trained; iteration 1 is scored."""
    made = small_run(tmp_path_factory.mktemp("arms"))
    (made.root / "config.toml").write_text("# mine\n[train]\nlearning_rate = 5e-4\nlora-rank = 8\n[score]\n")
    with without_waiting():
        plain.sample(made), plain.score(made), plain.train(made), plain.sample(made), plain.score(made)
    return made


@pytest.fixture
def run(made: Warehouse, tmp_path: Path) -> Warehouse:
    return copy_run(made, tmp_path / "run")


def arms_of(run: Warehouse, text: str) -> list[Arm]:
    path = run.root.parent / "arms.toml"
    path.write_text(text)
    return read_arms(path, room_command("train"), run.root / "config.toml")


def plan_of(run: Warehouse, **options: Any) -> Plan:
    return Plan(run, run.root.with_name("run-arms"), **{"at": 1, "iterations": 1, "evaluate": 2, **options})


def command(*words: object) -> Result:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ROLLHOUSE_WARM", "off")
        return CliRunner().invoke(cli, ["arms", *map(str, words)])


def refusal(*words: object) -> str:
    result = command(*words)
    assert result.exit_code == 1 and result.output.startswith("Error: "), result.output
    return result.output


def test_each_arm_trains_the_stored_rows_in_a_run_of_its_own_and_the_parent_stays(run: Warehouse) -> None:
    before, world, plan = files(run.root), World(), plan_of(run)
    arms = arms_of(run, FILE)
    assert world.run(plan, arms) == {}
    assert files(run.root) == before
    assert [line for line in world.ran if line.startswith(("parent", "low"))] == [
        "parent: rollout --eval --label arms-2 --iteration 2 --policy 1 --group-size 2",
        "parent: score --iteration 2 --purpose eval-arms-2",
        "low: train --iteration 1",
        "low: rollout --eval --label arms-2 --iteration 2 --group-size 2",
        "low: score --iteration 2 --purpose eval-arms-2",
        "low: logprobs --policy 1 --iteration 2 --purpose eval-arms-2"]
    low = open_warehouse(plan.folder / "low")
    assert check_run(low).problems == [] and low.state.newest == 2
    assert read_config(low.root / "config.toml")["train"] == {"learning-rate": 1e-4, "lora-rank": 8}
    rows = table_of(plan, arms, {})
    assert [row["arm"] for row in rows] == ["parent", "low", "as-it-was", "high"]
    assert [row["title"] for row in rows] == ["policy 1", "learning-rate 0.0001", "as the run",
                                              "learning-rate 0.001"]
    # The scripted engine answers by the seed alone: the same seeds are the same answers.
    assert [row["gain"] for row in rows[1:]] == [0, 0, 0] and rows[1]["num_tasks"] == 2
    assert [row["kl"] for row in rows[1:]] == [pytest.approx(math.exp(-DRIFT) + DRIFT - 1)] * 3
    assert files(run.root) == before


def test_rows_that_were_scored_again_are_trained_on_the_rewards_of_the_run(run: Warehouse) -> None:
    with pytest.MonkeyPatch.context() as patched, without_waiting():
        patched.setattr(plain, "SCORER", "strict-99")
        plain.score(run)
    plan = plan_of(run, at=0)
    assert scorer_of(plan, Arm("low", {"learning-rate": 1e-4}), 0) == ["--scorer", SCORER]
    assert scorer_of(plan, Arm("strict", {"scorer": "strict"}), 0) == []
    assert scorer_of(plan, Arm("low", {}), 1) == []                         # rows of the arm's own
    both = plan_of(run, at=0, iterations=2, stored=2)
    assert scorer_of(both, Arm("low", {}), 1) == ["--scorer", SCORER]       # not trained yet: as before


def test_a_reward_that_is_not_pass_at_1_has_columns_of_its_own(run: Warehouse) -> None:
    plan = plan_of(run)
    row = {"arm": "low", "title": "", "pass_1": 0.5, "reward": 0.25, "gain_reward": 0.125,
           "gain_reward_low": 0.1, "gain_reward_high": 0.2}
    assert "0.250" in arms_text([row], plan) and "+0.100 .. +0.200" in arms_text([row], plan)
    assert "reward" not in arms_text([row | {"reward": 0.5}], plan)


def test_on_few_tasks_it_is_said_that_none_can_differ_beyond_chance(run: Warehouse) -> None:
    for num_tasks, arms, said in ((5, 1, True), (6, 1, False), (6, 2, True), (7, 2, False)):
        row = {"arm": "low", "title": "", "settings": {}, "num_tasks": num_tasks, "p_value": 1.0}
        text = arms_text([row] * arms, plan_of(run))
        assert (f"On {num_tasks} tasks no difference can reach p 0.05." in text) == said


def test_arms_that_cannot_differ_are_said(run: Warehouse) -> None:
    row = {"title": "", "settings": {}, "pass_1": 0.5}
    rows = [row | {"arm": name, "sha256": each, "late": late} for name, each, late in (
        ("low", "a", False), ("high", "a", True), ("other", "b", False))]
    text = arms_text(rows, plan_of(run))
    assert "low and high wrote the same policy: no gradient depends on what differs" in text
    assert "high learned at less than a tenth of the learning-rate" in text and text.count("policy:") == 1
    assert "learned at" not in arms_text(rows[:1], plan_of(run))


def test_a_wide_table_becomes_two_that_both_name_the_arms(run: Warehouse) -> None:
    row = dict.fromkeys(("pass_1", "pass_k", "gain", "gain_low", "gain_high", "gain_k", "gain_k_low",
                         "gain_k_high", "reward", "p_value", "p_k", "kl", "ess", "seconds"), 0.5)
    for title, k, tables in (("", 1, 1), ("seed 1, learning-rate .005, clip .3", 8, 2), ("long " * 30, 8, 2)):
        lines = arms_text([row | {"arm": "low", "title": title}], plan_of(run, evaluate=k)).splitlines()
        assert sum(line.startswith("low ") for line in lines) == tables
        assert len(title) > 120 or max(len(line) for line in lines if line.startswith(("arm", "low"))) <= 120
        assert len([line for line in lines if {"gain", "interval", "p"} <= {*line.split()}]) == 1


def test_an_evaluation_by_another_scorer_than_that_of_the_rows_is_said(run: Warehouse) -> None:
    plan, arms = plan_of(run), arms_of(run, FILE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain, "SCORER", "strict-99")
        World().run(plan, arms)
    rows = table_of(plan, arms, {})
    assert f"strict-99; iteration 1 was trained on those of {SCORER}" in rows[1]["changed"]
    assert arms_text(rows, plan).count("strict-99") == 1
    (plan.folder / "low" / "config.toml").write_text("[train]\nscorer = 'strict'\n")     # it asked for it
    assert not table_of(plan, arms, {})[1]["changed"]
    assert "Gains over" not in arms_text([{"arm": "low", "title": "", "error": "it failed"}], plan)


@pytest.mark.parametrize("kill_at", [*range(1, 7), *(
    pytest.param(number, marks=pytest.mark.slow("the same commands of the second arm"))
    for number in range(7, 11))])
def test_killed_anywhere_it_goes_on_and_what_is_finished_is_read(run: Warehouse, kill_at: int) -> None:
    arms, plan, world = arms_of(run, FILE)[:2], plan_of(run), World()
    world.kill_at = kill_at
    with pytest.raises(KeyboardInterrupt):
        world.run(plan, arms)
    again = World()
    assert again.run(plan, arms) == {}
    assert sorted(world.ran[:-1] + again.ran) == sorted(whole := {*world.ran, *again.ran})
    assert len(whole) == 10
    last = World()
    more = [*arms, Arm("later", {"learning-rate": 2e-3})]
    assert last.run(plan, more) == {} and {line.split(":")[0] for line in last.ran} == {"later"}


def test_settings_with_several_seeds_are_compared_over_them(run: Warehouse) -> None:
    """Margins by hand: 12.706 * .01, 4.303 * .01 / sqrt(3) and 12.706 * sqrt(.0001 + .0001 / 3)."""
    gains = {"grpo": [0.01, 0.03], "gspo": [0.2], "cispo": [0.04, 0.05, 0.06]}
    rows = [{"run": "", "title": "", "pass_1": 0.5, "arm": f"{loss}-{seed}", "gain": gain,
             "settings": {"loss": loss} | ({"seed": seed} if seed else {})}
            for loss, each in gains.items() for seed, gain in enumerate(each)]
    text = arms_text([{"arm": "parent", "title": "", "settings": {}}, *rows], plan_of(run))
    assert [line.split() for line in text.splitlines() if line.startswith("loss")] == [
        ["loss", '"grpo"', "2", "+0.020", "-0.107", "..", "+0.147"],
        ["loss", '"cispo"', "3", "+0.050", "+0.025", "..", "+0.075", "+0.030", "-0.117", "..", "+0.177"]]
    assert "first settings; beyond chance: none. More seeds" in text
    sure = [{**row, "gain": row["gain"] + 1} if row["settings"]["loss"] == "cispo" else row for row in rows]
    known = arms_text([{"arm": "parent", "title": "", "settings": {}}, *sure], plan_of(run))
    assert 'beyond chance: loss "cispo".' in known
    assert "over seeds" not in arms_text(rows[:2], plan_of(run))       # the first is the parent
    same = [rows[0], *({**row, "gain": 0.01} for row in rows[:2])]
    [line] = [line for line in arms_text(same, plan_of(run)).splitlines() if line.startswith("loss")]
    assert line.split() == ["loss", '"grpo"', "2", "+0.010"]              # no interval without width


def test_what_fails_is_said_and_the_others_go_on(run: Warehouse) -> None:
    world, plan, arms = World(), plan_of(run), arms_of(run, FILE)
    world.failing = "low: train"
    failed = world.run(plan, arms, jobs=3)
    assert failed == {"low": "It cannot be done. Do another thing."}
    rows = table_of(plan, arms, failed)
    assert rows[1]["error"] == failed["low"] and rows[3]["gain"] == 0
    with (run.root / "config.toml").open("a") as config:
        config.write("cpu-seconds = 2\n")
    assert World().run(plan, arms) == {}                    # tried again, with what was corrected meanwhile
    assert {arm.name: "cpu-seconds = 2" in (plan.folder / arm.name / "config.toml").read_text()
            for arm in arms} == {"low": True, "as-it-was": False, "high": False}


def test_programs_of_an_arm_run_while_the_next_one_is_trained(run: Warehouse) -> None:
    world, scoring, beside, looks = World(), list[Command](), set[str](), itertools.count()

    def start(words: list[str]) -> Command:
        command = world.start(words)
        if words[0] == "score":
            command.code = None
            scoring.append(command)
        elif any(other.code is None for other in scoring):
            beside.add(words[0])
        return command

    def show(_done: int, _doing: str) -> None:
        if next(looks) % 10 == 9:                           # programs take a while
            for command in scoring:
                command.code = 0

    with without_waiting():
        Arms(plan_of(run), start, lambda _line: None, show).run(arms_of(run, FILE), 1)
    assert "train" in beside


def test_one_rollout_at_a_time_and_all_end_with_the_command(run: Warehouse) -> None:
    trained, arms = World(), arms_of(run, FILE)
    trained.failing = "--eval"
    assert trained.run(plan_of(run), arms[:1]).keys() == {"parent", "low"}
    started: list[Command] = []

    def start(words: list[str]) -> Command:
        started.append(Command(words, None))
        return started[-1]

    def show(_done: int, _doing: str) -> None:
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        Arms(plan_of(run), start, lambda _line: None, show).run(arms, 3)
    ran = [f"{Path(each.words[1]).name} {each.words[0]}" for each in started]
    assert ran == ["parent rollout", "as-it-was train", "high train"]       # low waits for the engine
    assert all(each.stopped for each in started)


def test_iterations_without_stored_rows_are_sampled_by_the_arm(run: Warehouse) -> None:
    world = World()
    assert world.run(plan_of(run, iterations=2), [Arm("low", {})]) == {}
    assert [line for line in world.ran if line.startswith("low")] == [
        "low: train --iteration 1", "low: rollout --iteration 2", "low: score --iteration 2 --purpose train",
        "low: train --iteration 2", "low: rollout --eval --label arms-2 --iteration 3 --group-size 2",
        "low: score --iteration 3 --purpose eval-arms-2",
        "low: logprobs --policy 1 --iteration 3 --purpose eval-arms-2"]


def test_stored_iterations_are_trained_in_a_row(run: Warehouse) -> None:
    before, world, plan = files(run.root), World(), plan_of(run, at=0, iterations=2, stored=2)
    assert world.run(plan, [Arm("low", {"learning-rate": 1e-4})]) == {}
    assert [line for line in world.ran if line.startswith("low")][:3] == [
        "low: train --iteration 0", "low: train --iteration 1",
        "low: rollout --eval --label arms-2 --iteration 2 --group-size 2"]
    assert check_run(open_warehouse(plan.folder / "low")).problems == [] and files(run.root) == before
    arms_of(run, "[low]\nlearning-rate = 1e-4\n[more]\n")
    path = run.root.parent / "arms.toml"
    assert "not of 1. Name another folder" in refusal(run.root, path, "--evaluate", 2)
    for words, said in ((("1-0",), "is neither"), (("0-1", "--at", 1), "Leave --at out")):
        assert said in command(run.root, path, "--iterations", *words).output
    elsewhere = ("--folder", run.root.parent / "elsewhere")
    assert "Iteration 2 has no scored rows" in refusal(run.root, path, "--iterations", "0-2", *elsewhere)


def test_an_arm_that_is_behind_is_stopped_and_goes_on_when_asked(run: Warehouse,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    plan, arms = plan_of(run, at=0, iterations=2, stored=2, stop_behind=True), arms_of(run, FILE)
    world = World()
    monkeypatch.setattr("warehouse.experiments.arms.behind", lambda _connection, tasks: {"high": "it is low"})
    assert world.run(plan, arms) == {} and world.stopped.keys() == {"high"}
    high = [line for line in world.ran if line.startswith("high")]
    assert high == ["high: train --iteration 0",
                    "high: rollout --eval --label arms-2 --iteration 1 --group-size 2",
                    "high: score --iteration 1 --purpose eval-arms-2"]
    rows = table_of(plan, arms, {}, world.stopped)
    assert rows[3]["stopped"] == "policy 1: it is low" and "gain" not in rows[3] and rows[1]["num_tasks"] == 2
    assert "Raise --iterations" in refusal(run.root, run.root.parent / "arms.toml", "--stop-behind",
                                           "--folder", run.root.parent / "elsewhere")
    assert World().run(plan._replace(stop_behind=False), arms) == {}
    assert open_warehouse(plan.folder / "high").state.newest == 2


def test_behind_is_what_chance_does_not_explain_for_any_pair_of_arms(run: Warehouse) -> None:
    def tasks(share: float) -> dict[str, dict[str, float]]:
        return {f"t{number}": {"pass_1": share + 0.1 * (number % 2), "pass_k": 1.0} for number in range(20)}
    with connect(run) as connection:
        found = behind(connection, {"good": tasks(0.5), "bad": tasks(0.3), "near": {**tasks(0.5), "t0": {
            "pass_1": 0.0, "pass_k": 0.0}}})
        assert found.keys() == {"bad"} and "-0.200 to that of good" in found["bad"]
        assert behind(connection, {"only": tasks(0.1)}) == {} == behind(connection, {})
        # Six tasks that all fall: p is 2 / 64, which one pair of arms bears out and three do not.
        few = {name: dict(list(tasks(share).items())[:6]) for name, share in
               (("good", 0.5), ("bad", 0.3), ("near", 0.48))}
        assert "near" not in (found := behind(connection, few)) and "bad" not in found
        assert behind(connection, {name: few[name] for name in ("good", "bad")}).keys() == {"bad"}


def test_arms_at_work_are_not_begun_by_a_second_command(run: Warehouse) -> None:
    arms_of(run, FILE)
    folder = run.root.with_name("run-arms")
    folder.mkdir()
    with (folder / "arms.log").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert "is running in" in refusal(run.root, run.root.parent / "arms.toml")
    assert not (folder / "low").exists()


def test_rows_that_an_arm_samples_are_sampled_and_scored_with_its_options(run: Warehouse) -> None:
    [hot] = arms_of(run, "[hot]\nlearning-rate = 1e-4\n[hot.rollout]\ntemperature = 0.7\n"
                         "[hot.score]\nallow-import = ['scipy']\n")
    world = World()
    assert world.run(plan_of(run, iterations=2), [hot]) == {}
    assert [line for line in world.ran if line.startswith("hot")][:3] == [
        "hot: train --iteration 1", "hot: rollout --iteration 2 --temperature 0.7",
        "hot: score --iteration 2 --purpose train --allow-import scipy"]
    assert "temperature" not in world.ran[-3] and "eval" in world.ran[-3], "evaluated like the others"
    assert read_config(plan_of(run).folder / "hot" / "config.toml")["train"]["learning-rate"] == 1e-4
    assert hot.title == 'learning-rate 0.0001, rollout temperature 0.7, score allow-import ["scipy"]'
    path = run.root.parent / "arms.toml"
    assert "Raise --iterations" in refusal(run.root, path, "--folder", run.root.parent / "elsewhere")


def test_what_arms_cost_follows_from_the_price_of_an_hour(run: Warehouse) -> None:
    arms = arms_of(run, FILE)
    World().run(plan_of(run), arms)
    assert all("cost" not in row for row in table_of(plan_of(run), arms, {}))
    with (run.root / "config.toml").open("a") as file:
        file.write("[warehouse]\nprice-per-hour = 3600\n")
    rows = table_of(plan_of(run), arms, {})
    assert [row["cost"] for row in rows] == [row["seconds"] for row in rows] and rows[1]["cost"] > 0
    assert "$" in command(run.root, run.root.parent / "arms.toml", "--evaluate", 2).stdout


def test_reward_and_pass_at_k_have_a_p_of_their_own_and_rewards_of_other_scorers_no_gain(
        run: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    arms, rewards = arms_of(run, FILE), iter([(1.0, "a"), (1.5, "a"), (1.0, "a"), (3.0, "b")])
    World().run(plan_of(run), arms)
    monkeypatch.setattr("warehouse.experiments.arms_table.evaluated", lambda *_: {
        str(task): {"pass_1": 0.5, "pass_k": reward / 4, "reward": reward, "scorer": scorer}
        for reward, scorer in [next(rewards)] for task in range(8)})
    rows = table_of(plan_of(run), arms, {})
    assert [row["p_value"] for row in rows[1:]] == [1, 1, 1]
    assert rows[1]["p_k"] == pytest.approx(3 / 2**7, abs=0.01) and rows[2]["p_k"] == 1
    assert rows[1]["p_reward"] == pytest.approx(2 / 2**7, abs=0.01) and rows[2]["p_reward"] == 1
    assert rows[3]["reward"] == 3 and rows[3]["gain_reward"] is None is rows[3]["p_reward"]
    text = arms_text(rows, plan_of(run))
    assert f"{rows[1]['p_k']:.4f}" in text and f"{rows[1]['p_reward']:.4f}" in text
    assert f"{arms[2].name}: its reward is of b, which is not the parent's scorer" in text


def test_the_command_prints_a_row_per_arm_and_refuses_an_edited_one(run: Warehouse) -> None:
    arms = arms_of(run, FILE)
    World().run(plan_of(run), arms)
    path, before = run.root.parent / "arms.toml", files(run.root)
    result = command(run.root, path, "--evaluate", 2, "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["arm"] for row in rows] == ["parent", "low", "as-it-was", "high"]
    assert rows[1]["settings"] == {"learning-rate": 1e-4} and rows[1]["p_value"] == 1
    text = command(run.root, path, "--evaluate", 2).stdout
    assert "95% interval" in text and "corrected by Holm for 3 arms" in text
    path.write_text(FILE.replace("1e-4", "2e-4"))
    said = refusal(run.root, path, "--evaluate", 2)
    assert "low was made with learning-rate 0.0001" in said and f"remove {run.root}-arms/low" in said
    path.write_text(FILE)
    assert "start from policy 1" in refusal(run.root, path, "--at", 0)
    assert files(run.root) == before


@pytest.mark.parametrize(("text", "said"), [
    ("[a]\n[a]\n", "each arm needs a name of its own"),
    ("[a]\nlearning-rate = 1e-4\n[b]\nlearning_rate = 1e-4\n", "the arms a and b have equal settings"),
    ("[a]\n[b]\nlearning-rate = 5e-4\n", "the arms a and b have equal settings"),
    ("[a]\n[b]\nkl-beta = 0\n", "the arms a and b have equal settings"),
    ("[a]\nmodel = 'other'\n", "the stored rows are of the run's own model"),
    ("[a]\nlearning-rat = 1\n", "line 2: [a] has no option 'learning-rat'"),
    ("[a]\nlearning-rate = 'high'\n", "is not a valid float."),
    ("[a]\niteration = 3\n", "iteration cannot differ between arms"),
    ("[a.rollout]\nlabel = 'mine'\n", "label cannot differ between arms"),
    ("[a.rollout]\ntemperatur = 1\n", "line 2: [a.rollout] has no option 'temperatur'"),
    ("[a]\n[rollout]\nnum-tasks = 3\n", "[rollout] would be an arm of this name. Options of `rollout`"),
    ("[a]\n[kl-0.02]\nkl-beta = 0.02\n", 'line 2: [kl-0.02] is not a table of the arm kl-0, which may have '),
    ("[kl-0.02]\nkl-beta = 0.02\n", 'A name with a dot needs quotes: ["kl-0.02"].'),
    ("[parent]\n", "cannot be named 'parent'"), ("['../a']\n", "cannot be named '../a'"),
    ("a = 1\n", "'a' is not a table"), ("", "has no arms")])
def test_a_file_that_cannot_be_run_is_one_sentence(run: Warehouse, text: str, said: str) -> None:
    (run.root.parent / "arms.toml").write_text(text)
    assert said in refusal(run.root, run.root.parent / "arms.toml")
    assert not run.root.with_name("run-arms").exists()


def test_an_arm_that_train_would_refuse_is_refused_before_anything_is_sampled(run: Warehouse) -> None:
    (run.root / "config.toml").write_text("[train]\nloss = 'dr_grpo'\nmax-completion-length = 9\n")
    arms_of(run, FILE + "[other]\nloss = 'grpo'\n")
    said = refusal(run.root, run.root.parent / "arms.toml")
    assert "line 6: [other] The loss grpo does not use --max-completion-length." in said
    assert 'In an arm max-completion-length = "" leaves it out.' in said
    assert not run.root.with_name("run-arms").exists()


def test_an_empty_value_leaves_an_option_of_the_run_out_of_an_arm(run: Warehouse) -> None:
    (run.root / "config.toml").write_text("[train]\nlr = 5e-4\nmax-completion-length = 9\nloss = 'dr_grpo'\n")
    [arm] = arms_of(run, "[a]\nloss = 'grpo'\nmax_completion_length = ''\nlearning-rate = 1e-4\n")
    assert arm.title == 'loss "grpo", without max-completion-length, learning-rate 0.0001'
    assert World().run(plan_of(run), [arm]) == {}
    assert read_config(run.root.parent / "run-arms" / "a" / "config.toml")["train"] == {
        "loss": "grpo", "learning-rate": 1e-4}, "a second name of the run's rate would be refused"


def test_a_run_that_is_not_trusted_is_refused_before_anything_is_sampled(run: Warehouse) -> None:
    arms_of(run, FILE)
    (run.root / "config.toml").write_text("[train]\nadvantages = 'mine.py:mine'\n")
    assert f"ROLLHOUSE_TRUST={run.root}" in refusal(run.root, run.root.parent / "arms.toml")
    assert not run.root.with_name("run-arms").exists()


def test_a_run_that_has_nothing_to_train_on_is_one_sentence(run: Warehouse, tmp_path: Path) -> None:
    arms = tmp_path / "arms.toml"
    arms.write_text(FILE)
    assert "There is no policy 9" in refusal(run.root, arms, "--at", 9)
    assert "cannot be read" in refusal(run.root, tmp_path / "none.toml")
    bare = new_run(tmp_path / "bare", {"t0": TURN}, {"h0": TURN})
    assert "has no scored rows to train on" in refusal(bare.root, arms)
    begin(bare, "rollout", {"policy_version": 0}, iteration=0, purpose="train")
    assert "has no scored rows with tokens to train on." in refusal(bare.root, arms, "--at", 0)
    for version in (1, 2, 3):
        add_policy(bare, version, weights(bare, version, f"weights {version}"))
    from warehouse.maintain.prune import prune_policies
    prune_policies(bare, 2)
    assert "Policy 1 has no weights" in refusal(bare.root, arms, "--at", 1)


def test_settings_are_put_into_the_tables_of_a_config_file() -> None:
    tables = {"rollout": {"seed": 1}, "train": {"learning-rate": 1e-3, "loss": "grpo"},
              "prices": {"a/b c": {"input": 1.5, "output": 2}}, "score": {"parameter": ["x=1", 'say "it"']}}
    made = with_settings(tables, {"learning-rate": 1e-5, "rslora": True, "advantages": 'a "b".py:c'})
    assert tomllib.loads(made) == {**tables, "train": {
        "learning-rate": 1e-5, "rslora": True, "advantages": 'a "b".py:c', "loss": "grpo"}}
    assert tomllib.loads(with_settings({}, {"seed": 3})) == {"train": {"seed": 3}}


def test_holm_and_the_test_of_signs_against_numbers_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])      # as R's p.adjust
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []
    assert flip_test([0.0, 0.0]) == 1.0 and flip_test([0.5]) == 1.0
    assert flip_test([0.1] * 6) == pytest.approx(2 / 64, abs=0.006)
    assert flip_test([0.1] * 40) == pytest.approx(1 / 10_001)
