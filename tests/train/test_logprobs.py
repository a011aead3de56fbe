"""`train logprobs`: rows of what policies say of stored completions, against plain forwards; SQL by hand."""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from tests.building.runs import STARTER, copy_run, new_run
from tests.building.sampled import load_policy, run_train, sample_rows, sample_turn, tiny_run
from train import ask as train_ask
from train.ask import write_logprobs
from train.cli import train
from train.inputs.asked import model_of_folder, model_of_policy, rollouts_to_ask_about
from train.inputs.options import AskOptions
from train.steps.accelerator import Processes
from warehouse.experiments.branch import make_branch
from warehouse.maintain.check import check_run
from warehouse.maintain.compact import compact_run
from warehouse.maintain.discard import discard
from warehouse.maintain.fix import fix
from warehouse.maintain.prune import prune_run
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import connect, rows_of
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

KEYS: dict[str, Any] = {"iteration": 0, "purpose": "train"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Two trained iterations in three parts each, and what policies 0 to 2 say of both; not to be changed."""
    run = tiny_run(tmp_path_factory.mktemp("runs") / "demo")
    for iteration in (0, 1):
        sample_rows(run, iteration, num_parts=3)
        if iteration == 0:
            sample_turn(run, 0, 2)
        assert run_train(run, "--turns", "1").exit_code == 0
    done = ask(run, "--policy", "0", "--policy", "1", "--policy", "2", "--entropy")
    assert done.exit_code == 0, done.output
    return open_warehouse(run.root)


@pytest.fixture
def run(asked: Warehouse, tmp_path: Path) -> Warehouse:
    return copy_run(asked, tmp_path / "demo")


def ask(run: Warehouse, *words: str) -> Result:
    return CliRunner().invoke(train, ["logprobs", str(run.root), "--device", "cpu", *words])


def rows_under(run: Warehouse, model: str, **keys: Any) -> dict[tuple[str, int], dict[str, Any]]:
    rows = run.read("policy_logprobs", **{**KEYS, **keys}, scorer=model).to_pylist()
    return {(row["task_id"], row["sample_index"]): row for row in rows}


def plain(run: Warehouse, version: int, **keys: Any) -> dict[tuple[str, int], tuple[Any, Any]]:
    """Logprobs and entropies of all completions by forwards of whole rows in float64."""
    policy = load_policy(run, version)
    policy.model.double()
    prompts = {row["group_id"]: row["prompt_ids"] for row in
               run.read("prompts", **{**KEYS, **keys}).to_pylist()}
    found = {}
    for row in run.read("completions", **{**KEYS, **keys}).to_pylist():
        ids, kept = torch.tensor(row["completion_ids"]), row["support_ids"]
        with torch.no_grad():
            text = torch.tensor([[*prompts[row["group_id"]], *ids]])
            logits = policy.full_logits(text)[0, -len(ids) - 1:-1]
        if kept:
            some = torch.full_like(logits, -torch.inf)
            for place, tokens in enumerate(kept):
                some[place, tokens] = logits[place, tokens]
            logits = some
        log_p = logits.log_softmax(-1)
        found[row["task_id"], row["sample_index"]] = (
            log_p.gather(1, ids[:, None])[:, 0].numpy(),
            -(log_p.exp() * log_p.clamp(min=-1e9)).sum(-1).numpy())
    return found


@pytest.mark.parametrize(("version", "keys"), [(0, {}), (2, {}), (1, {"iteration": 1})])
def test_rows_hold_what_a_plain_forward_says(asked: Warehouse, version: int, keys: dict[str, Any]) -> None:
    rows, expected = rows_under(asked, f"policy-{version}", **keys), plain(asked, version, **keys)
    assert rows.keys() == expected.keys()
    for key, row in rows.items():
        np.testing.assert_allclose(row["logprobs"], expected[key][0], atol=2e-5)
        np.testing.assert_allclose(row["entropies"], expected[key][1], atol=2e-5)
        assert row["policy_version"] == version
    assert not check_run(asked).problems


def test_turns_and_what_truncation_left(run: Warehouse) -> None:
    assert ask(run, "--policy", "1", "--purpose", "train-turn2").exit_code == 0
    sample_rows(run, 2, top_k=5)
    assert ask(run, "--policy", "1", "--iteration", "2").exit_code == 0
    for keys in ({"purpose": "train-turn2"}, {"iteration": 2}):
        expected = plain(run, 1, **keys)
        for key, row in rows_under(run, "policy-1", **keys).items():
            np.testing.assert_allclose(row["logprobs"], expected[key][0], atol=2e-5)
            assert row["entropies"] is None, "nobody asked for them"


def test_what_is_written_is_kept_and_workers_share_the_parts(run: Warehouse) -> None:
    [rollout] = rollouts_to_ask_about(run, {1}, "train")
    discard(run, 1, "train", "policy-1")
    model, said = model_of_policy(run, 1), list[str]()

    def work(seconds: float | None = None, **how: Any) -> int:
        again = open_warehouse(run.root)
        with StopRequest(seconds) as stop:
            write_logprobs(again, [model], [rollout], AskOptions(**how), Processes("cpu"), stop, said.append)
        return len(again.parts("policy_logprobs", iteration=1, purpose="train", scorer="policy-1"))

    with pytest.raises(StageStopped):
        work(0)
    assert work(shard=Shard(1, 2)) == 2 and "left to the others: 1 part" in said[-1]
    assert not open_warehouse(run.root).state.is_complete("logprobs", 1, "train", "policy-1")
    assert work(shard=Shard(0, 2)) == 3
    state = open_warehouse(run.root).state
    assert state.is_complete("logprobs", 1, "train", "policy-1")
    assert work() == 3 and state.head == open_warehouse(run.root).state.head, "nothing was to be done"
    np.testing.assert_allclose(rows_under(run, "policy-1", iteration=1)["task-3", 2]["logprobs"],
                               plain(run, 1, iteration=1)["task-3", 2][0], atol=2e-5)
    other = ask(run, "--policy", "1", "--iteration", "1", "--entropy")
    assert other.exit_code == 1 and "entropy" in other.output


@pytest.mark.parametrize(("words", "why"), [
    ([], "--policy K"), (["--policy", "7"], "no policy 7"),
    (["--policy", "1", "--purpose", "eval"], "no complete rollout"),
    (["--policy", "1", "--iteration", "5"], "no complete rollout")])
def test_what_cannot_be_asked_is_one_sentence(asked: Warehouse, words: list[str], why: str) -> None:
    refused = ask(asked, *words)
    assert refused.exit_code == 1 and why in refused.output and refused.output.startswith("Error: ")
    assert ask(asked, "--policy", "latest").exit_code == ask(
        asked, "--policy", "1", "--iteration", "x").exit_code == 2


def test_another_model_has_to_have_the_same_vocabulary(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", model=STARTER)
    other = Path(shutil.copytree(STARTER, tmp_path / "other"))
    with (other / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    assert model_of_folder(run, str(other)).name.startswith("other-")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"][-1]["content"] += "!"
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(StageError, match="another tokenizer"):
        model_of_folder(run, str(other))


def test_another_model_is_asked(run: Warehouse, tmp_path: Path) -> None:
    same = Path(shutil.copytree(run.model, tmp_path / "same"))
    assert ask(run, "--model", str(same), "--iteration", "0").exit_code == 0
    [name] = {life.scorer for life in open_warehouse(run.root).state.of_stage("logprobs")
              if not str(life.scorer).startswith("policy-")}
    assert str(name).startswith("same-")
    base = rows_under(run, "policy-0")
    for key, row in rows_under(open_warehouse(run.root), str(name)).items():
        assert row["logprobs"] == base[key]["logprobs"] and row["policy_version"] is None


def test_rows_of_a_policy_end_with_it(run: Warehouse) -> None:
    held = lambda: {life.scorer for life in open_warehouse(run.root).state.of_stage("logprobs")}  # noqa: E731
    assert held() == {"policy-0", "policy-1", "policy-2"}
    roll_back(run, 0)       # version 2 is the base from now on
    assert held() == {"policy-0", "policy-1"}
    assert ask(run, "--policy", "2").exit_code == 0
    assert rows_under(open_warehouse(run.root), "policy-2")["task-1", 0]["logprobs"] == rows_under(
        run, "policy-0")["task-1", 0]["logprobs"]


def test_compaction_pruning_repair_and_branches_take_them_along(run: Warehouse, tmp_path: Path) -> None:
    before = rows_under(run, "policy-1")
    compact_run(run)
    assert len(run.parts("policy_logprobs", **KEYS, scorer="policy-1")) == 1
    assert rows_under(run, "policy-1") == before and not check_run(run).problems
    make_branch(run, tmp_path / "branch", 1, rows=True)
    branch = open_warehouse(tmp_path / "branch")
    assert {life.scorer for life in branch.state.of_stage("logprobs")} == {"policy-0", "policy-1"}
    assert rows_under(branch, "policy-1") == before and not check_run(branch).problems
    [part] = run.parts("policy_logprobs", **KEYS, scorer="policy-2")
    part.chmod(0o644)
    part.write_bytes(part.read_bytes()[:-9])
    assert fix(run, check_run(run).changes)
    run = open_warehouse(run.root)
    assert not run.state.is_complete("logprobs", **KEYS, scorer="policy-2")
    assert ask(run, "--policy", "2", "--entropy").exit_code == 0
    assert not check_run(open_warehouse(run.root)).problems
    prune_run(run, 1, dry_run=False)
    assert all(row["logprobs"] is None for row in rows_under(run, "policy-1").values())
    assert not check_run(open_warehouse(run.root)).problems
    assert rows_of(connect(run), "SELECT count(*) AS n FROM kl_ladder WHERE iteration = 0") == [{"n": 0}]


def ratios(run: Warehouse, iteration: int, version: int) -> dict[tuple[str, int], np.ndarray]:
    """log model - log mu of the tokens of every completion."""
    mu = {(row["task_id"], row["sample_index"]): np.array(row["behaviour_logprobs"], np.float64) for row in
          run.read("completions", iteration=iteration, purpose="train").to_pylist()}
    return {key: np.array(row["logprobs"], np.float64) - mu[key]
            for key, row in rows_under(run, f"policy-{version}", iteration=iteration).items()}


def test_the_ladder_is_the_mean_of_the_estimators(asked: Warehouse) -> None:
    rungs = rows_of(connect(asked), "FROM kl_ladder")
    found = {(row["iteration"], row["policy_version"]): row for row in rungs}
    assert found.keys() == {(iteration, version) for iteration in (0, 1) for version in (0, 1, 2)}
    for (iteration, version), row in found.items():
        rows = list(ratios(asked, iteration, version).values())
        d, weights = np.concatenate(rows), np.exp([each.sum() for each in rows])
        assert row["kl"] == pytest.approx(np.mean(np.exp(d) - d - 1), abs=1e-12)
        assert row["log_ratio_mean"] == pytest.approx(-d.mean(), abs=1e-12)
        assert row["kl_completion"] == pytest.approx(-np.mean([each.sum() for each in rows]), abs=1e-12)
        assert row["ess"] == pytest.approx(weights.sum() ** 2 / len(weights) / (weights ** 2).sum())
        assert (row["kl"] < 1e-9) == (iteration == version), "the sampler has distance 0 from itself"


def test_the_first_token_to_move_is_found(asked: Warehouse) -> None:
    nats, first = 0.01, dict[tuple[Any, ...], tuple[Any, ...]]()
    for version in (1, 2):
        for key, d in ratios(asked, 0, version).items():
            for position in np.flatnonzero(np.abs(d) >= nats):
                first.setdefault((*key, int(position)), (version, -abs(d[position])))
    rows = rows_of(connect(asked), f"FROM first_moved(0, nats := {nats})")
    places = [(row["task_id"], row["sample_index"], row["position"]) for row in rows]
    assert places and places == sorted(first, key=lambda place: (*first[place], *place))
    assert [row["policy_version"] for row in rows] == [first[place][0] for place in places]
    assert {row["policy_version"] for row in rows} == {1, 2}


def test_an_estimate_is_that_of_its_formulas(asked: Warehouse) -> None:
    """Of both iterations' rows together, what policy 2 would reach; weights and baselines by loops."""
    hits, weights = defaultdict(list), defaultdict(list)
    for iteration in (0, 1):
        d = ratios(asked, iteration, 2)
        for row in asked.read("samples", iteration=iteration, purpose="train", scorer="toy-1").to_pylist():
            hits[row["task_id"]].append(float(row["correct"]))
            weights[row["task_id"]].append(np.exp(d[row["task_id"], row["sample_index"]].sum()))
    normalised, robust, effective = [], [], 0.0
    for task, own in hits.items():
        w = np.array(weights[task])
        normalised.append(w @ own / w.sum())
        baselines = [(sum(own) - hit) / (len(own) - 1) for hit in own]
        robust.append(np.mean([b + v * (hit - b) for b, v, hit in zip(baselines, w, own, strict=True)]))
        effective += w.sum() ** 2 / (w ** 2).sum()
    [row] = rows_of(connect(asked), "FROM estimated_pass('policy-2')")
    num = sum(map(len, hits.values()))
    assert (row["num_tasks"], row["num_completions"]) == (len(hits), num)
    assert row["sampled"] == pytest.approx(np.mean([np.mean(own) for own in hits.values()]))
    assert row["normalised"] == pytest.approx(np.mean(normalised)) and row["robust"] == pytest.approx(
        np.mean(robust))
    assert row["ess"] == pytest.approx(effective / num)
    assert row["weight_mean"] == pytest.approx(np.mean(np.concatenate([*weights.values()])))
    assert row["normalised_low"] <= row["normalised"] <= row["normalised_high"]
    assert not rows_of(connect(asked), "FROM estimated_pass('policy-2', purposes := 'eval%')")
    [first] = rows_of(connect(asked), "FROM estimated_pass('policy-0', until := 0)")
    assert first["normalised"] == pytest.approx(first["sampled"]) and first["ess"] == pytest.approx(1)


def test_rows_of_two_dtypes_are_each_asked_about_in_their_own(tmp_path: Path, monkeypatch: Any) -> None:
    run = tiny_run(tmp_path / "run")
    sample_rows(run, 0)
    assert run_train(run).exit_code == 0
    sample_rows(run, 1)
    loaded, load = [], train_ask._load
    monkeypatch.setattr(train_ask, "_load", lambda warehouse, model, dtype, processes: (
        loaded.append(dtype), load(warehouse, model, dtype, processes))[1])
    dtypes = iter(["float32", "bfloat16"])
    monkeypatch.setattr(train_ask, "dtype_of", lambda _part: next(dtypes), raising=False)
    assert ask(run, "--policy", "0").exit_code == 0
    assert loaded == ["float32", "bfloat16"]
    stored = [run.stage("logprobs", iteration=number, purpose="train", scorer="policy-0").settings()
              for number in (0, 1)]
    assert [each["dtype"] for each in stored if each] == ["float32", "bfloat16"]
