"""The rollout stage around a scripted engine: what is sampled, written, resumed and refused."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tqdm import tqdm

from rollout.cli import default_options, rollout
from rollout.engines.engine import Request, Sampled, Sampling
from rollout.options import RolloutOptions
from rollout.parts import Spill
from rollout.run import run_rollout
from rollout.start import Sampler
from score.cli import score
from tests.building import scripted
from tests.building.runs import STARTER, add_policy, arc_file, fake_model, new_run, small_run
from tests.building.scripted import ScriptedEngine, scripted_sampler
from warehouse.init import init_run
from warehouse.maintain.check import check_run
from warehouse.maintain.discard import discard
from warehouse.maintain.fix import fix
from warehouse.maintain.tasks import add_tasks
from warehouse.stages import stop
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StageStopped
from warehouse.store.errors import SettingChanged, StageError, UnusableFile
from warehouse.store.parts import part_number, read_part
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.tasks import graders


def sample(warehouse: Warehouse, engine: ScriptedEngine | None = None, **values) -> ScriptedEngine:
    engine = engine or ScriptedEngine()
    scripted.sample(warehouse, engine, **values)
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


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_overwrites_progress_and_a_log_gets_lines_now_and_then(
        terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    given: list[float] = []
    monkeypatch.setattr("rollout.sample.tqdm",
                        lambda **options: given.append(options.get("mininterval", 0.1)) or tqdm(**options))
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    sample(small_run(tmp_path))
    output = capsys.readouterr().err
    assert given == [0.1 if terminal else 30] and "rollout 0 train:" in output
    assert ("\r" in output) == terminal
    assert terminal or all(line == line.strip() and line for line in output.splitlines())


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


def flipped(part: Path, _other: Path) -> None:
    """A bit of a column that no later step of a rollout reads."""
    group = pq.read_metadata(part).row_group(0)
    chunk = [chunk for chunk in map(group.column, range(group.num_columns))
             if chunk.path_in_schema.split(".")[0] in ("behaviour_logprobs", "prompt")][-1]
    content = bytearray(part.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    part.chmod(0o644)
    part.write_bytes(content)


def exchanged(part: Path, other: Path) -> None:
    part.unlink()
    shutil.copy(other, part)


@pytest.mark.parametrize("damage", [flipped, exchanged])
@pytest.mark.parametrize("table", ["completions", "prompts"])
def test_a_damaged_part_of_an_unfinished_rollout_is_not_sealed_in(
        tmp_path: Path, table: str, damage: Callable[[Path, Path], None]) -> None:
    whole, killed = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    sample(whole)
    sample(killed, iteration=1, policy_version=0)
    with pytest.raises(KeyboardInterrupt):
        sample(killed, ScriptedEngine(stop_after=17))
    part, other = (killed.parts(table, iteration=number, purpose="train")[0] for number in (0, 1))
    damage(part, other)
    with pytest.raises(StageError) as refused:
        sample(killed)
    assert str(part) in str(refused.value) and "`warehouse check --fix`" in str(refused.value)
    assert not killed.stage("rollout", iteration=0, purpose="train").is_complete()
    report = check_run(killed)
    assert any(str(part) in problem for problem in report.problems)
    fix(killed, report.changes)
    sample(killed)

    def sampled(warehouse: Warehouse) -> list[dict]:
        return [{key: value for key, value in row.items() if key != "finished_at"} for row in rows(warehouse)]
    assert sampled(killed) == sampled(whole) and check_run(killed).problems == []


def test_a_rollout_that_was_begun_goes_on_with_its_policy_when_there_is_a_newer(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=17), iteration=1, policy_version=0)
    facts = json.loads((warehouse.policy_dir(0) / "policy.json").read_text())
    newer = warehouse.scratch("policy-1")
    (newer / "policy.json").write_text(json.dumps({**facts, "policy_version": 1, "sha256": "newer"}))
    add_policy(warehouse, 1, newer)
    sample(warehouse, iteration=1)
    assert {row["policy_version"] for row in rows(warehouse, 1)} == {0} and len(rows(warehouse, 1)) == 20


def test_a_complete_rollout_is_not_sampled_again(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    assert sample(warehouse, iteration=0).served == []
    told, = scripted.sample(warehouse, iteration=0)
    assert told == f"rollout of iteration 0 (train) is complete; next: score {warehouse.root}"
    CliRunner().invoke(score, [str(warehouse.root)], catch_exceptions=False)
    told, = scripted.sample(warehouse, iteration=0)
    assert told == f"rollout of iteration 0 (train) is complete and scored; next: train {warehouse.root}"


def test_other_settings_are_refused_with_both_values(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    with pytest.raises(SettingChanged) as refused:
        sample(warehouse, iteration=0, sampling=Sampling(max_tokens=20, temperature=0.5))
    assert (refused.value.name, refused.value.before, refused.value.now) == ("temperature", 1.0, 0.5)


def test_settings_of_the_machine_may_change_between_runs(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=9))
    engine = sample(warehouse, iteration=0, max_num_seqs=7, gpu_memory_utilization=0.5)
    assert engine.started[0].max_num_seqs == 7 and 0 < len(engine.served) < 20
    assert len(rows(warehouse)) == 20


def test_held_out_tasks_are_evaluated_and_never_trained_on_unasked(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    sample(warehouse, evaluate=True, label="greedy", sampling=Sampling(max_tokens=20, temperature=0))
    assert {row["task_id"] for row in rows(warehouse)} == {"t0", "t1", "t2", "t3", "t4"}
    assert {row["task_id"] for row in rows(warehouse, purpose="eval-greedy")} == {"h0", "h1"}
    sample(warehouse, evaluate=True, label="pool", splits=("train",))
    assert {row["task_id"] for row in rows(warehouse, purpose="eval-pool")} == {"t0", "t1", "t2", "t3", "t4"}


def test_an_evaluation_asks_nothing_of_the_plans_that_were_trained(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    [plan] = warehouse.parts("prompts", iteration=0, purpose="train")
    plan.write_bytes(b"damaged")
    sample(warehouse, iteration=1, policy_version=0, evaluate=True)
    assert {row["task_id"] for row in rows(warehouse, 1, "eval")} == {"h0", "h1"}


def test_every_split_is_an_evaluation_of_its_own_by_one_engine(tmp_path: Path) -> None:
    """What is stored under one name is one curve: tasks of several benchmarks in one would say nothing."""
    files = [arc_file(tmp_path, names) for names in (["a", "b"], ["c", "d", "e"], ["f"])]
    init_run(tmp_path / "run", str(fake_model(tmp_path / "model")), (f"train={files[0]}",),
             (f"hard={files[1]}", f"x-turn2={files[2]}"))
    warehouse = open_warehouse(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=5), evaluate=True, num_tasks=2)
    sample(warehouse, evaluate=True, num_tasks=2, splits=("hard",))
    assert len(rows(warehouse, purpose="eval-hard")) == 8 and not rows(warehouse, purpose="eval-x_turn2")
    engine = sample(warehouse, evaluate=True, num_tasks=2)
    assert len(engine.started) == 1 and len(engine.served) == 4
    assert {row["task_id"] for row in rows(warehouse, purpose="eval-x_turn2")} == {"f"}
    assert sample(warehouse, evaluate=True, num_tasks=2).started == []
    sample(warehouse, evaluate=True, splits=("train",))
    sample(warehouse, evaluate=True, label="all")
    assert warehouse.state.purposes(0) == ["eval-all", "eval-hard", "eval-train", "eval-x_turn2"]
    assert {row["task_id"] for row in rows(warehouse, purpose="eval-all")} == {"c", "d", "e", "f"}


def test_a_split_is_told_of_before_the_next_is_sampled(tmp_path: Path) -> None:
    warehouse = several_splits(tmp_path)
    options = default_options(warehouse.root).replace(
        group_size=4, prompt_format="compact", evaluate=True, sampling=Sampling(max_tokens=20))
    lines = run_rollout(options, scripted_sampler(ScriptedEngine()))
    assert next(lines).startswith("rollout of iteration 0 (eval-hard): 12 completions of 3 tasks by policy 0")
    assert len(rows(warehouse, purpose="eval-hard")) == 12 and not rows(warehouse, purpose="eval-easy")
    assert [line.partition(":")[0] for line in lines][1] == "rollout of iteration 0 (eval-easy)"
    assert len(rows(warehouse, purpose="eval-easy")) == 8


def several_splits(folder: Path) -> Warehouse:
    files = [arc_file(folder, names) for names in (["a", "b"], ["c", "d", "e"], ["f", "g"])]
    init_run(folder / "run", str(fake_model(folder / "model")), (f"train={files[0]}",),
             (f"hard={files[1]}", f"easy={files[2]}"))
    return open_warehouse(folder / "run")


def test_the_curve_of_the_first_split_goes_on_when_another_is_added(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    for number, name in enumerate(("new", "newer")):
        sample(warehouse, evaluate=True, num_tasks=2)
        add_tasks(warehouse, (), (f"{name}={arc_file(tmp_path, [name])}",))
        warehouse = open_warehouse(warehouse.root)
        engine = sample(warehouse, evaluate=True, num_tasks=2)
        assert len(engine.served) == 4, "what is complete stays so"
        assert {row["task_id"] for row in rows(warehouse, purpose=f"eval-{name}")} == {name}
        stages = warehouse.state.purposes(0)
        assert stages == ["eval", "eval-new", "eval-newer"][:number + 2]
    assert {row["task_id"] for row in rows(warehouse, purpose="eval")} == {"h0", "h1"}
    for query, purpose in (("SELECT 'h1' AS task_id", "eval"), ("SELECT 'new' AS task_id", "eval-new")):
        sample(warehouse, evaluate=True, iteration=1, policy_version=0, tasks_sql=query)
        assert len(rows(warehouse, 1, purpose)) == 4
    sample(warehouse, evaluate=True, iteration=2, policy_version=0, splits=("heldout", "newer"))
    assert warehouse.state.purposes(2) == ["eval", "eval-newer"]


def test_a_split_is_the_same_evaluation_named_and_unnamed(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse, evaluate=True, splits=("heldout",))
    assert not sample(warehouse, evaluate=True).served
    add_tasks(warehouse, (), (f"new={arc_file(tmp_path, ['new'])}",))
    warehouse = open_warehouse(warehouse.root)
    for iteration, splits in ((1, ("heldout",)), (2, ()), (3, ("new",))):
        sample(warehouse, evaluate=True, iteration=iteration, policy_version=0, splits=splits)
        sample(warehouse, evaluate=True, iteration=iteration, policy_version=0)
        for again in ((), ("heldout",), ("new",), ("new", "heldout")):
            assert not sample(warehouse, evaluate=True, iteration=iteration, policy_version=0,
                              splits=again).served
        assert warehouse.state.purposes(iteration) == ["eval", "eval-new"]


def test_evaluations_that_are_done_stay_done_whatever_the_query_names_by_now(tmp_path: Path) -> None:
    warehouse = several_splits(tmp_path)
    new = "SELECT task_id FROM tasks ANTI JOIN (SELECT task_id FROM completions) USING (task_id)"
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=9), evaluate=True, tasks_sql=new)
    sample(warehouse, evaluate=True, tasks_sql=new)
    assert len(rows(warehouse, purpose="eval-hard")) == 12 and len(rows(warehouse, purpose="eval-easy")) == 8
    assert sample(warehouse, evaluate=True, tasks_sql=new).started == []
    assert sample(warehouse, evaluate=True, tasks_sql=new, splits=("easy",)).started == []


def test_queries_may_name_tasks_of_one_split_after_the_other(tmp_path: Path) -> None:
    warehouse = several_splits(tmp_path)
    for task in "cf":
        sample(warehouse, evaluate=True, tasks_sql=f"SELECT '{task}' AS task_id")
    assert [{row["task_id"] for row in rows(warehouse, purpose=f"eval-{split}")} for split in (
        "hard", "easy")] == [{"c"}, {"f"}]


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
    with pytest.raises(StageError, match="None of 5 tasks has a prompt of at most 10 tokens"):
        sample(warehouse, max_prompt_tokens=10)
    assert not (warehouse.root / "completions").exists()


def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    before = sorted(path for path in warehouse.root.rglob("*"))
    for values, sentence in [
        ({"iteration": 3}, "Iteration 3 samples with policy 3, which does not exist yet"),
        ({"sampling": Sampling(top_p=0.95)}, "--top-p makes the sampled .* give --top-k 64 or less with it"),
        ({"sampling": Sampling(top_k=65)}, "--top-k makes the sampled distribution differ"),
        ({"sampling": Sampling(top_k=8, presence_penalty=1)}, "--presence-penalty makes the sampled"),
        ({"sampling": Sampling(max_tokens=2000)}, "leaves room for a prompt of 0"),
        ({"max_prompt_tokens": 1020}, "leaves room for a prompt of 1004. Lower it"),
        ({"splits": ("nope",)}, r"no split 'nope'. It has train, heldout"),
        ({"prompt_format": "nope"}, "Unknown prompt format 'nope'. Known: compact@1, chat@1"),
        ({"format_options": ("max_pairs",)}, "--format-option max_pairs has no value"),
        ({"format_options": ("colour=1",)}, "has no option 'colour'"),
        ({"label": "x"}, "--label names an evaluation"),
        ({"evaluate": True, "label": "a/b"}, "--label 'a/b' is not possible: it may have up to 100 letters"),
        ({"sampling": Sampling(temperature=0.001)}, "--temperature 0.001 is not possible: it must be 0 or"),
    ]:
        with pytest.raises(StageError, match=sentence):
            sample(warehouse, **values)
    assert sorted(path for path in warehouse.root.rglob("*")) == before


def test_a_signal_while_the_engine_closes_is_not_lost(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM closes when nothing holds it, in a finalizer, where an exception goes nowhere."""
    monkeypatch.setattr(stop, "interrupted", False)
    small_run(tmp_path)

    def started(_settings) -> ScriptedEngine:
        engine = ScriptedEngine()
        weakref.finalize(engine, os.kill, os.getpid(), signal.SIGINT)
        return engine
    options = default_options(tmp_path / "run").replace(group_size=4, prompt_format="compact",
                                                        sampling=Sampling(max_tokens=20))
    list(run_rollout(options, scripted_sampler(ScriptedEngine())._replace(start=started)))
    assert stop.interrupted


@pytest.mark.parametrize("values", [{"prompt_format": "nowhere.py:f"},
                                    {"turn": 2, "feedback": "nowhere.py:f"}])
def test_a_file_of_the_users_that_is_not_there_is_named_before_anything_loads(tmp_path: Path,
                                                                              values: dict) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    options = default_options(warehouse.root).replace(**values)
    with pytest.raises(UnusableFile) as refused:
        list(run_rollout(options.replace(iteration=0, evaluate=not options.turn > 1),
                         Sampler(None, lambda _settings: pytest.fail("an engine was started"))))
    assert (refused.value.path.name, refused.value.problem) == ("nowhere.py", "missing")


@pytest.mark.parametrize("options", [("--max-tokens", "99999"),
                                     ("--max-tokens", "20", "--max-prompt-tokens", "3")])
def test_prompts_that_do_not_fit_are_refused_before_vllm_and_torch_are_imported(
        tmp_path: Path, options: tuple[str, ...]) -> None:
    run = new_run(tmp_path / "run", model=STARTER)
    program = ("import sys, click\nfrom rollout.cli import rollout\n"
               f"try:\n    rollout.main([{str(run.root)!r}, *{options!r}], standalone_mode=False)\n"
               "except click.ClickException as error:\n"
               "    print(error.exit_code, *{'torch', 'vllm'} & {*sys.modules})\n")
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "1", said.stderr


def test_a_grader_that_score_will_miss_is_named_before_anything_is_sampled(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)
    monkeypatch.setattr(graders, "version", version)
    run = new_run(tmp_path / "run", {"m": ("math", {"answer": "1"})}, model=fake_model(tmp_path / "model"))
    options, said = default_options(run.root).replace(sampling=Sampling(max_tokens=20)), list[str]()
    with pytest.raises(KeyboardInterrupt):
        list(run_rollout(options, scripted_sampler(ScriptedEngine(stop_after=0)), said.append))
    assert said[0] == ("Tasks of kind math are graded by math-verify, which is not installed. Run pip "
                       "install 'rollhouse[math]'. `score` needs it; sampled rows are kept.")
    assert said[1].startswith("starting the engine")


def test_spilled_completions_survive_a_kill_inside_a_part(tmp_path: Path) -> None:
    whole, killed = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    sample(whole, part_size=100)
    with pytest.raises(KeyboardInterrupt):
        sample(killed, ScriptedEngine(stop_after=13), part_size=100, spill_seconds=0.0)
    assert rows(killed) == []                                # no reader sees half a part
    assert len(sample(killed, part_size=100).served) == 7    # 20 - 13
    assert ids_by_key(killed) == ids_by_key(whole)
    assert not list(killed.root.rglob("*.spill-*"))


def test_spills_of_a_part_that_a_kill_left_beside_it_go_with_the_next_rollout(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = small_run(tmp_path)

    def die(_spill: Spill) -> None:
        raise KeyboardInterrupt
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(Spill, "remove", die)
        sample(warehouse, part_size=100, spill_seconds=0.0)
    assert list(warehouse.root.rglob("part-00000.parquet.spill-*")) and len(rows(warehouse)) == 20
    sample(warehouse, part_size=100)
    assert not list(warehouse.root.rglob("*.spill-*")) and len(rows(warehouse)) == 20


def test_what_truncation_left_survives_a_kill_inside_a_part(tmp_path: Path) -> None:
    class Truncating(ScriptedEngine):
        def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Sampled]:
            for sampled in super().sample(requests, sampling):
                yield replace(sampled, support=[[token, token + 1] for token in sampled.completion_ids])
    warehouse, chosen = small_run(tmp_path), {"part_size": 100, "sampling": Sampling(max_tokens=20, top_k=8)}
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, Truncating(stop_after=13), spill_seconds=0.0, **chosen)
    assert len(sample(warehouse, Truncating(), **chosen).served) == 7
    for row in rows(warehouse):
        assert row["support_ids"] == [[token, token + 1] for token in row["completion_ids"]]


def ids_by_key(warehouse: Warehouse) -> dict:
    return {(row["task_id"], row["sample_index"]): row["completion_ids"] for row in rows(warehouse)}


def test_a_signal_or_the_time_limit_keeps_what_is_finished(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    with pytest.raises(StageStopped, match="time limit of 0 s is over, before the engine was started"):
        sample(warehouse, time_limit=0.0)

    class Signalling(ScriptedEngine):
        def sample(self, requests, sampling):
            for count, sampled in enumerate(super().sample(requests, sampling)):
                if count == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield sampled

    with pytest.raises(StageStopped, match="SIGTERM was received, with 5 of 20 completions kept"):
        sample(warehouse, Signalling())
    assert len(sample(warehouse).served) == 15
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_ends_the_import_of_vllm_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  fails: bool) -> None:
    """Also where what is imported makes an error of its own of the interruption."""
    class Importing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "rollout.engines.vllm_engine":
                with pytest.raises(KeyboardInterrupt) if fails else contextlib.nullcontext():
                    os.kill(os.getpid(), signal.SIGTERM)
                raise ImportError("initialization failed" if fails else "it went on")
    monkeypatch.delitem(sys.modules, "rollout.engines.vllm_engine", raising=False)
    monkeypatch.delattr("rollout.engines.vllm_engine", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Importing(), *sys.meta_path])
    monkeypatch.setattr("rollout.start.prepare_environment", lambda: None)
    monkeypatch.setattr("rollout.run.check_prompts", lambda _job: None)
    warehouse = small_run(tmp_path)
    stopped = CliRunner().invoke(rollout, [str(warehouse.root)])
    assert stopped.exit_code == 75 and stopped.output.endswith(
        "\nStopped because SIGTERM was received, before the engine was started. Run the same command again "
        "to continue.\n"), stopped.output
    assert warehouse.state.head == 0 and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_shards_share_the_parts_and_the_last_completes_the_rollout(tmp_path: Path) -> None:
    whole, shared = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    sample(whole)
    served = [len(sample(shared, shard=Shard(index, 2)).served) for index in (1, 0)]
    assert served == [8, 12]
    assert shared.stage("rollout", iteration=0, purpose="train").is_complete()
    assert ids_by_key(shared) == ids_by_key(whole)
    with pytest.raises(StageError, match="--shard 3/3 is not INDEX/COUNT"):
        Shard.parse("3/3")


def test_a_change_is_refused_or_accepted_and_recorded(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=9))
    with pytest.raises(SettingChanged) as refused:
        sample(warehouse, dtype="float16")
    assert (refused.value.name, refused.value.before, refused.value.now) == ("dtype", "auto", "float16")
    sample(warehouse, dtype="float16", accept_change=("dtype",))
    manifest = warehouse.stage("rollout", iteration=0, purpose="train").manifest()
    assert manifest["changes"] == [{"setting": "dtype", "before": "auto", "now": "float16"}]


def test_long_completions_survive_a_kill_as_often_as_short_ones(tmp_path: Path) -> None:
    """An engine that serves all at once finishes short ones first; what is kept must not show it."""
    class ByLength(ScriptedEngine):
        def sample(self, requests, sampling):
            finished = sorted(super().sample(requests, sampling), key=lambda one: len(one.completion_ids))
            for count, sampled in enumerate(finished):
                if count == 100:
                    raise KeyboardInterrupt
                yield sampled

    reference, killed = small_run(tmp_path / "a", num_tasks=50), small_run(tmp_path / "b", num_tasks=50)
    sample(reference)
    keys = {"iteration": 0, "purpose": "train"}
    while not killed.stage("rollout", **keys).is_complete():
        with contextlib.suppress(KeyboardInterrupt):
            sample(killed, ByLength(), spill_seconds=0.0)
        for part in killed.parts("completions", **keys):   # whole by the plan, not by who was first
            columns = ["task_id", "sample_index", "completion_ids"]
            whole = reference.part_path("completions", part_number(part), **keys)
            assert read_part(part, columns).equals(read_part(whole, columns))
    assert ids_by_key(killed) == ids_by_key(reference)


def test_a_query_over_the_warehouse_chooses_tasks_and_its_choice_is_kept(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    query = "select task_id from tasks where task_id >= 't3' order by 1"
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=2), tasks_sql=query)
    sample(warehouse, tasks_sql=query)
    assert {row["task_id"] for row in rows(warehouse)} == {"t3", "t4"}
    for wrong, sentence in [
        ("select 1 as n", "no column 'task_id' but n"), ("selec", "syntax error"),
        ("select task_id from tasks where heldout", "none of them in the splits to sample"),
        ("select [task_id] as task_id from tasks", r"gives \['t\d'\] as task_id, which is not text"),
        ("select {'a': 1} as task_id", "gives {'a': 1} as task_id, which is not text"),
        ("select null as task_id", "names no task"), ("", "no column 'task_id' but none"),
    ]:
        with pytest.raises(StageError, match=sentence):
            sample(warehouse, iteration=1, policy_version=0, tasks_sql=wrong)


def test_after_a_discard_the_plan_is_made_anew(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    with pytest.raises(SettingChanged, match=r"`warehouse discard .* --iteration 0 --purpose train`"):
        sample(warehouse, iteration=0, group_size=2)
    before, head = rows(warehouse), warehouse.state.head
    discard(warehouse, 0, "train")
    sample(warehouse, iteration=0, group_size=2)
    assert len(rows(warehouse)) == 10 and rows(open_warehouse(warehouse.root, at=head)) == before


def test_a_plan_that_another_worker_stored_first_is_taken(tmp_path: Path) -> None:
    """A query may answer differently each time; the answer that is stored counts."""
    warehouse = small_run(tmp_path, num_tasks=9)
    query = "select task_id from tasks where not heldout order by random() limit 2"

    class Racing(ScriptedEngine):
        def start(self, settings):
            with contextlib.suppress(KeyboardInterrupt):   # another worker stores its plan meanwhile
                sample(warehouse, ScriptedEngine(stop_after=0), tasks_sql=query)
            return super().start(settings)

    sample(warehouse, Racing(), tasks_sql=query)
    prompts = warehouse.read("prompts", iteration=0, purpose="train").to_pylist()
    assert {row["group_id"] for row in rows(warehouse)} == {row["group_id"] for row in prompts}


def test_only_what_sampled_the_rows_may_change(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="--accept-change part_size is not possible"):
        sample(small_run(tmp_path), accept_change=("part_size",))


def test_spilled_rows_of_another_dtype_are_sampled_again(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=13), part_size=100, spill_seconds=0.0)
    other = ScriptedEngine()
    other.dtype = "float16"
    again = sample(warehouse, other, part_size=100, dtype="float16", accept_change=("dtype",))
    assert len(again.served) == 20
    assert {row["dtype"] for row in rows(warehouse)} == {"float16"}


def test_uneven_epochs_visit_tasks_evenly(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path, num_tasks=7)
    visits: Counter[str] = Counter()
    for iteration in range(5):
        sample(warehouse, iteration=iteration, policy_version=0, num_tasks=3)
        visits.update({row["task_id"] for row in rows(warehouse, iteration)})
        counts = [visits[f"t{number}"] for number in range(7)]
        assert max(counts) - min(counts) <= 1


def test_a_complete_rollout_stands_when_the_engine_is_another_version(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    monkeypatch.setattr("rollout.settings.engine_version", lambda: "vllm 99")
    assert sample(warehouse, iteration=0).served == []


def test_options_that_the_engine_refuses_are_not_remembered(tmp_path: Path) -> None:
    class Refusing(ScriptedEngine):
        def start(self, settings):
            raise StageError("The engine found too little free memory.")

    warehouse = small_run(tmp_path)
    with pytest.raises(StageError, match="too little free memory"):
        sample(warehouse, Refusing(), seed=1)
    assert not (warehouse.root / "completions").exists()
    sample(warehouse, seed=2)


def test_a_changed_base_model_is_refused(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 512}')
    with pytest.raises(StageError, match="has changed since the run was made"):
        sample(warehouse)


@pytest.mark.parametrize(("words", "num_tasks"), [
    ([], 2), (["--eval"], None), (["--eval", "--num-tasks", "1"], 1)])
def test_the_number_of_tasks_in_the_config_is_that_of_training(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], num_tasks: int | None) -> None:
    warehouse = small_run(tmp_path)
    (warehouse.root / "config.toml").write_text("[rollout]\nnum-tasks = 2\n")
    asked: list[RolloutOptions] = []
    monkeypatch.setattr("rollout.run.run_rollout", lambda options, say, typed: asked.append(options) or [])
    result = CliRunner().invoke(rollout, [str(warehouse.root), *words], catch_exceptions=False)
    assert result.exit_code == 0
    assert [options.num_tasks for options in asked] == [num_tasks]


def test_several_gpus_are_refused_of_an_engine_for_cpus(tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout.settings.on_cpu", lambda: True)
    warehouse = new_run(tmp_path / "run")
    done = CliRunner().invoke(rollout, [str(warehouse.root), "--tensor-parallel-size", "2"])
    assert done.exit_code == 1 and "is the CPU build" in done.output
