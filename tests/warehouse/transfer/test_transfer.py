"""Rows out of a run and into another: JSON lines, TRL's files, datasets folders; pruning old tokens."""

import fcntl
import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.building import scripted
from tests.building.runs import back_before, small_run
from tests.building.sound import check_run
from tests.building.weather import SCORER, build_run, empty_run
from warehouse.cli import cli
from warehouse.sql.database import connect, rows_of
from warehouse.store.errors import StageError
from warehouse.store.parts import read_part
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(
        tmp_path_factory.mktemp("runs") / "run", iterations=2, evals=(1,), num_tasks=4, group_size=4
    )


def warehouse(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def lines_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    return [json.loads(line) for line in content.decode().splitlines()]


def test_an_export_sweeps_what_killed_ones_left_and_leaves_what_another_writes(
        built: Warehouse, tmp_path: Path) -> None:
    left, written = (tmp_path / f"rows.jsonl.tmp-{name}" for name in ("dead", "alive"))
    left.write_text("half")
    with written.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert warehouse("export", built.root, tmp_path / "rows.jsonl").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", written.name}


def test_an_export_to_a_pipe_or_a_link_leaves_it_what_it_is(built: Warehouse, tmp_path: Path) -> None:
    """Of /dev/null, exported to by root, it made a file."""
    pipe, link, device = tmp_path / "pipe", tmp_path / "link", tmp_path / "device"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "rows.jsonl")
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        warehouse("export", built.root, pipe, "--iteration", 0)
        warehouse("export", built.root, link, "--iteration", 0)
    assert read.result() == (tmp_path / "rows.jsonl").read_bytes() != b""
    assert pipe.is_fifo() and link.is_symlink()
    if os.geteuid() == 0:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        assert warehouse("export", built.root, device).exit_code == 0
        assert device.is_char_device()
    assert {path.name for path in tmp_path.iterdir()} - {"device"} == {"link", "pipe", "rows.jsonl"}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.zst"])
def test_what_is_exported_comes_back_the_same(built: Warehouse, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    result = warehouse("export", built.root, file, "--iteration", 0, "--purpose", "train")
    assert (result.exit_code, result.stdout) == (0, f"{file}\n")
    lines = lines_of(file)
    assert len(lines) == 16 and json.loads(lines[0]["payload"])
    assert lines[0]["reward"] is not None and lines[0]["advantage"] is not None
    other = empty_run(tmp_path / "other", num_tasks=4)
    imported = warehouse("import", other.root, file, "--iteration", 0)
    assert imported.exit_code == 0, imported.output
    assert imported.stdout == f"16 completions; next: score {other.root} --iteration 0\n"
    query = ("SELECT task_id, completion, completion_ids, support_ids, behaviour_logprobs, finish_reason, "
             "policy_version, policy_sha256, temperature, prompts.prompt_ids, prompts.flip, "
             "prompts.color_map, prompts.prompt_format, prompts.prefill "
             "FROM completions JOIN prompts USING (iteration, purpose, group_id) "
             "WHERE completions.iteration = 0 AND purpose = 'train' ORDER BY task_id, sample_index")
    query = query.replace("SELECT task_id", "SELECT completions.task_id").replace(
        "ORDER BY task_id", "ORDER BY completions.task_id").replace("AND purpose", "AND completions.purpose")
    assert rows_of(connect(other), query) == rows_of(connect(built), query)
    assert check_run(other).problems == []


def test_a_purpose_that_no_command_reads_is_refused(empty: Warehouse, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n")
    result = warehouse("import", empty.root, file, "--iteration", 0, "--purpose", "TRAIN", "--plain-sampling")
    assert result.exit_code == 1 and "No command reads rows of --purpose TRAIN" in result.stderr


def test_a_parquet_file_has_the_same_rows(built: Warehouse, tmp_path: Path) -> None:
    for name in ("rows.parquet", "rows.jsonl"):
        assert warehouse("export", built.root, tmp_path / name).exit_code == 0
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    lines = lines_of(tmp_path / "rows.jsonl")
    assert rows["completion_ids"].to_list() == [line["completion_ids"] for line in lines]
    assert len(rows) == 48 and set(rows["purpose"]) == {"train", "eval"}


def test_the_best_completion_of_each_task_is_exported_by_a_condition(built: Warehouse,
                                                                     tmp_path: Path) -> None:
    where = ("purpose = 'train' QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY reward DESC) = 1 "
             "-- the best")
    assert warehouse("export", built.root, tmp_path / "all.jsonl").exit_code == 0
    assert warehouse("export", built.root, tmp_path / "best.jsonl", "--where", where).exit_code == 0
    rewards = dict[str, list[float]]()
    for line in lines_of(tmp_path / "all.jsonl"):
        if line["purpose"] == "train":
            rewards.setdefault(line["task_id"], []).append(line["reward"])
    assert {line["task_id"]: line["reward"] for line in lines_of(tmp_path / "best.jsonl")} == {
        task: max(each) for task, each in rewards.items()}
    assert "prompt_ids" in lines_of(tmp_path / "best.jsonl")[0]
    for wrong in ("nowhere = 1", "true) TO 'x'; DROP TABLE tasks; SELECT (1", "reward >"):
        done = warehouse("export", built.root, tmp_path / "none.jsonl", "--where", wrong)
        assert done.exit_code == 1 and "Traceback" not in done.output
    assert not (tmp_path / "none.jsonl").exists()


def test_no_other_format_is_written(built: Warehouse, tmp_path: Path) -> None:
    done = warehouse("export", built.root, tmp_path / "rows.csv")
    assert done.exit_code == 1 and not [*tmp_path.iterdir()]


def test_a_folder_is_no_file_to_write(built: Warehouse, tmp_path: Path) -> None:
    for name in (".", "/", str(tmp_path)):
        done = CliRunner().invoke(cli, ["export", str(built.root), name])
        assert done.exit_code == 1 and "that is a folder" in done.output


def test_nothing_to_export_is_said(built: Warehouse, tmp_path: Path) -> None:
    result = warehouse("export", built.root, tmp_path / "x.jsonl", "--iteration", 9)
    assert result.exit_code == 1 and "No complete rollout matches" in result.stderr
    assert not (tmp_path / "x.jsonl").exists()


GOOD = {
    "task_id": "task-000",
    "prompt_ids": [1, 2],
    "completion_ids": [3, 4],
    "behaviour_logprobs": [-0.5, 0.0],
    "completion": "x",
    "finish_reason": "stop",
    "policy_version": 0,
}


@pytest.mark.parametrize(("change", "words"), [
    ({"completion_ids": None}, "'completion_ids' is missing"),
    ({"completion_ids": "3 4"}, "'completion_ids' is \"3 4\", not list"),
    ({"completion_ids": []}, "0 completion_ids but 2 behaviour_logprobs"),
    ({"completion_ids": [3, 1 << 40]}, "'completion_ids' is [3, 1099511627776], not list<item: int32>"),
    ({"completion_ids": [3, True]}, "'completion_ids' is [3, true]"),
    ({"prompt_ids": [1, -7]}, "'prompt_ids' is [1, -7], not list"),
    ({"prompt_ids": []}, "'prompt_ids' is empty"),
    ({"task_id": "nope"}, "task 'nope' is not in this run"),
    ({"behaviour_logprobs": [-1.0]}, "2 completion_ids but 1 behaviour_logprobs"),
    ({"behaviour_logprobs": [-1.0, 0.5]}, "'behaviour_logprobs' is [-1.0, 0.5], not list<item: float> from"),
    ({"behaviour_logprobs": [-1.0, float("nan")]}, "'behaviour_logprobs' is [-1.0, NaN]"),
    ({"behaviour_logprobs": [-1.0, -1e39]}, "'behaviour_logprobs' is [-1.0, -1e+39]"),
    ({"behaviour_logprobs": [-1.0, -(10 ** 400)]}, "'behaviour_logprobs' is [-1.0, -1000"),
    ({"policy_version": True}, "'policy_version' is true, not int32 from 0"),
    ({"policy_version": -1}, "'policy_version' is -1"),
    ({"temperature": "hot"}, "'temperature' is \"hot\", not float from 0"),
    ({"temperature": -3}, "'temperature' is -3"),
    ({"top_p": 1.5}, "'top_p' is 1.5, not float from 0 to 1"),
    ({"max_tokens": 1.5}, "'max_tokens' is 1.5, not int32 from 1"),
    ({"seed": "abc"}, "'seed' is \"abc\", not int"),
    ({"host": 5}, "'host' is 5, not string"),
    ({"prompt": 7}, "'prompt' is 7, not string"),
    ({"completion": "\ud800"}, " holds '\\ud800', half of a surrogate pair"),
    ({"flip": 1}, "'flip' is 1, not bool"),
    ({"color_map": "abc"}, "'color_map' is \"abc\", not list"),
    ({"color_map": [0, 1]}, "'color_map' is [0, 1]; it must hold each of 0 to 9 once"),
    ({"color_map": [0, 0, 2, 3, 4, 5, 6, 7, 8, 9]}, "'color_map' is [0, 0, 2"),
    ({"color_map": [None] * 10}, "'color_map' is [null, null"),
    ({"support_ids": [[3, 5]]}, "'support_ids' must have a list for each of completion_ids"),
    ({"support_ids": [[3, 5], [5]]}, "'support_ids' must have a list for each"),
    ({"support_ids": [[3, 5], None]}, "'support_ids' must have a list for each"),
    ({"support_ids": [[3, -5], [4]]}, "'support_ids' is [[3, -5], [4]], not list"),
    ({"finish_reason": "bananas"}, "'finish_reason' is 'bananas'; it must be stop or length"),
    ({"version_segments": [{"start": 0, "length": 1, "policy_version": 0},
                           {"start": 1, "length": 1, "policy_version": 1}]},
     "'version_segments' has tokens of several policies"),
    ({"purpose": "eval"}, "'purpose' is 'eval', not 'train'. Export with --purpose, and import"),
    ({"iteration": 1e308}, "'iteration' is 1e+308, not int32"),
    ({"iteration": [1]}, "'iteration' is [1], not int32"),
    ({"sampler": -5}, "no column is named 'sampler'"),
    ({"temperature": 0.9}, "'logprobs_mode' is missing, and the temperature is not 1"),
    ({"temperature": 0.9, "logprobs_mode": "raw_logprobs"}, "'logprobs_mode' is raw_logprobs, and the"),
    ({"temperature": 0.9, "logprobs_mode": "processed_logprobs"}, "'temperature' is 0.9, which --plain-sam"),
    ({"top_p": 0.9}, "'top_p' is 0.9, which --plain-sampling denies"),
    ({"behaviour_logprobs": None}, "'behaviour_logprobs' is missing"),
])
def test_bad_lines_are_named_and_nothing_is_written(empty: Warehouse, tmp_path: Path, change: dict[str, Any],
                                                    words: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n" + json.dumps({**GOOD, **change}) + "\n")
    refused(empty, file, "rows.jsonl, line 2" + (words if words.startswith(" ") else f": {words}"))


def test_lines_without_a_hash_get_that_of_the_policy_they_name(tmp_path: Path) -> None:
    run, file = empty_run(tmp_path / "run", num_tasks=2), tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n")
    assert import_into(run, file).exit_code == 0
    rows = run.read("completions", ["policy_sha256"], iteration=0, purpose="train").to_pylist()
    assert rows == [{"policy_sha256": "0" * 64}]


@pytest.mark.parametrize(("change", "words"), [
    ({"policy_version": 7}, "has no policy 7; it has [0]"),
    ({"policy_sha256": "f" * 64}, "of a policy 0 with sha256 ffffffffffff, policy 0 of this run has 000000"),
    ({"completion_ids": [3, 512]}, "holds token 512, the base model knows 0 to 511"),
    ({"support_ids": [[3], [4, 512]]}, "holds token 512, the base model knows 0 to 511"),
])
def test_rows_that_are_not_of_this_run_are_refused(tmp_path: Path, change: dict[str, Any],
                                                   words: str) -> None:
    run, file = empty_run(tmp_path / "run", num_tasks=2), tmp_path / "rows.jsonl"
    (run.root / "base").mkdir()
    (run.root / "base" / "config.json").write_text('{"vocab_size": 512}')
    file.write_text(json.dumps({**GOOD, **change}) + "\n")
    refused(run, file, words)


@pytest.mark.parametrize(("text", "fits"), [("$%", True), ("$%\n", True), ("print(1)", False)])
def test_a_text_of_other_tokens_is_refused(tmp_path: Path, text: str, fits: bool) -> None:
    run, file = empty_run(tmp_path / "run", num_tasks=2), tmp_path / "rows.jsonl"
    (run.root / "base").mkdir()
    shutil.copy(Path(__file__).parents[3] / "examples/starter/model/tokenizer.json", run.root / "base")
    file.write_text(json.dumps({**GOOD, "completion": text}) + "\n")
    if fits:
        assert import_into(run, file).exit_code == 0
    else:
        refused(run, file, "completion 1: 'completion' is \"print(1)\", its completion_ids are \"$%\"")


def test_rows_of_another_model_need_no_logprobs_for_distillation(tmp_path: Path) -> None:
    run, file = empty_run(tmp_path / "run", num_tasks=2), tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**GOOD, "behaviour_logprobs": None, "policy_version": None}) + "\n")
    imported = warehouse("import", run.root, file, "--iteration", 0, "--purpose", "distil")
    assert imported.exit_code == 0, imported.output
    assert rows_of(connect(run), "SELECT policy_version, behaviour_logprobs FROM completions") == [
        {"policy_version": None, "behaviour_logprobs": None}]
    assert check_run(run).problems == []


def test_rows_of_held_out_tasks_are_imported_as_an_evaluation_alone(tmp_path: Path) -> None:
    run, file = small_run(tmp_path), tmp_path / "rows.jsonl"
    (Path(run.model) / "tokenizer.json").unlink()       # a made-up one, which reads no token
    file.write_text(json.dumps({**GOOD, "task_id": "h0"}) + "\n")
    refused(run, file, "holds completions of 1 held-out task (h0); none is ever trained on")
    assert import_into(run, file, "--purpose", "eval").exit_code == 0


def test_an_iteration_that_no_column_holds_is_refused(empty: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD) + "\n")
    refused_by_option = warehouse("import", empty.root, tmp_path / "rows.jsonl", "--iteration", 2147483648)
    assert refused_by_option.exit_code == 2 and "0<=x<=2147483647" in refused_by_option.stderr


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return empty_run(tmp_path_factory.mktemp("empty") / "run", num_tasks=2)


def import_into(run: Warehouse, file: Path, *options: str) -> Result:
    return warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling", *options)


def refused(run: Warehouse, file: Path, words: str) -> None:
    """The import says `words` in one sentence and leaves nothing behind."""
    result = import_into(run, file)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1 and words in result.stderr
    assert not (run.root / "completions").exists() and not (run.root / "prompts").exists()


def test_bad_files_are_refused_whole(empty: Warehouse, tmp_path: Path) -> None:
    file, packed, good = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.zst", json.dumps(GOOD) + "\n"
    file.write_text(good + json.dumps({**GOOD, "policy_version": 3}))
    refused(empty, file, "completions of policies [0, 3]")
    file.write_bytes(good.encode() + b'{"task_id": "\xff"}\n')
    refused(empty, file, "cannot be read after line 0: it is not UTF-8. Give JSON lines.")
    file.write_text(good + "[" * 100_000)
    refused(empty, file, "rows.jsonl, line 2 cannot be read: maximum recursion depth exceeded")
    packed.write_text(good)
    refused(empty, packed, "cannot be read after line 0: ZSTD decompress failed")
    packed.write_bytes(pa.compress(good.encode() * 9, "zstd", asbytes=True)[:-7])
    refused(empty, packed, "Truncated compressed stream. Fetch it again.")


def test_every_frame_of_a_zst_file_is_read(tmp_path: Path) -> None:
    run, file = empty_run(tmp_path / "run", num_tasks=2), tmp_path / "rows.jsonl.zst"
    line = {**GOOD, "behaviour_logprobs": [-1, 0], "iteration": 7}
    file.write_bytes(2 * pa.compress(json.dumps(line).encode() + b"\n", "zstd", asbytes=True))
    assert import_into(run, file).stdout.startswith("2 completions")


@pytest.mark.parametrize("point", ["after settings", "after prompts", "after a part"])
def test_a_killed_import_is_finished_by_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                       point: str) -> None:
    monkeypatch.setattr("warehouse.transfer.import_rollouts.PART_ROWS", 1)
    run, file, other = empty_run(tmp_path / "run", num_tasks=2), tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    lines = [{**GOOD, "task_id": f"task-00{number}"} for number in range(2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other.write_text(json.dumps(GOOD) + "\n")
    calls = []

    def killed(self: Warehouse, table: str, number: int, *rows: Any, **keys: Any) -> bool:
        calls.append(table)
        if len(calls) > ["after settings", "after prompts", "after a part"].index(point):
            raise KeyboardInterrupt
        return write(self, table, number, *rows, **keys)

    write = Warehouse.write_part
    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "write_part", killed)
        assert import_into(run, file).exit_code == 1
    assert run.stage("rollout", iteration=0, purpose="train").settings()
    way_out = f"`warehouse discard {run.root} --iteration 0 --purpose train`"
    with pytest.raises(StageError, match=r"import of a\.jsonl as iteration 0 .* is not complete\. Run"):
        scripted.sample(run)
    strange = import_into(run, other)
    assert strange.exit_code == 1 and "exists already" in strange.stderr and way_out in strange.stderr
    plain = warehouse("import", run.root, file, "--iteration", 0)
    assert plain.exit_code == 1 and way_out in plain.stderr
    finished = import_into(run, file.rename(tmp_path / "renamed.jsonl"))
    assert finished.exit_code == 0 and finished.stdout.startswith("2 completions"), finished.output
    assert check_run(run).problems == []
    again = import_into(run, tmp_path / "renamed.jsonl")
    assert again.exit_code == 0
    assert scripted.sample(run) == [f"rollout of iteration 0 (train) is complete; next: score {run.root}"]
    assert again.stdout == finished.stdout.replace("2 completions", "2 completions, imported before")
    assert import_into(run, other).exit_code == 1
    later = warehouse("import", run.root, other, "--iteration", 2, "--plain-sampling")
    assert later.stdout == ("1 completion; iteration 0 is trained before iteration 2; "
                            f"next: score {run.root} --iteration 0\n"), later.output
    assert warehouse("discard", run.root, "--iteration", 0, "--purpose", "train").exit_code == 0
    assert import_into(run, other).stdout.startswith("1 completion;")


def test_a_group_is_stored_whole_however_the_lines_are_mixed(tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warehouse.transfer.import_rollouts.PART_ROWS", 3)
    run = empty_run(tmp_path / "run", num_tasks=3)
    lines = [{**GOOD, "task_id": f"task-00{number % 3}", "completion": str(number)} for number in range(12)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling").exit_code == 0
    parts = run.parts("completions", iteration=0, purpose="train")
    stored = [[(row["task_id"], row["sample_index"], row["completion"])
               for row in read_part(part).to_pylist()] for part in parts]
    assert stored == [[(f"task-00{task}", index, str(3 * index + task)) for index in range(4)]
                      for task in range(3)]
    assert not check_run(run).problems


def test_sampling_parameters_are_never_guessed(tmp_path: Path) -> None:
    run = empty_run(tmp_path / "run", num_tasks=2)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n{not json\n")
    alone = warehouse("import", run.root, file, "--iteration", 0)
    assert "rows.jsonl, line 1: 'temperature' is missing" in alone.stderr
    plain = warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling")
    assert "rows.jsonl, line 2 is not valid JSON" in plain.stderr
    file.write_text(json.dumps(GOOD) + "\n")
    assert warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling").exit_code == 0
    again = warehouse("import", run.root, file, "--iteration", 0, "--plain-sampling")
    assert again.exit_code == 0 and again.stdout.startswith("1 completion, imp")


@pytest.fixture
def run(built: Warehouse, tmp_path: Path) -> Warehouse:
    shutil.copytree(built.root, tmp_path / "run")
    return open_warehouse(tmp_path / "run")


def test_pruning_drops_tokens_and_keeps_everything_else(run: Warehouse) -> None:
    scalars = "SELECT * FROM iteration_stats ORDER BY iteration, purpose"
    before = [[f"{value:.9g}" if isinstance(value, float) else value for value in row.values()]
              for row in rows_of(connect(run), scalars)]
    said = warehouse("prune", run.root, "--before", 1)
    assert said.exit_code == 0 and "Run it with --yes" in said.stdout
    assert rows_of(connect(run), "SELECT count(completion_ids) AS n FROM completions")[0]["n"] == 48
    done = warehouse("prune", run.root, "--before", 1, "--yes")
    assert done.stdout.startswith("6 parts pruned")
    held = rows_of(connect(run), "SELECT iteration, count(completion_ids) AS ids, "
                                 "count(behaviour_logprobs) AS mu, "
                                 "count(completion) AS texts FROM completions WHERE purpose = 'train' "
                                 "GROUP BY iteration ORDER BY iteration")
    assert held == [{"iteration": 0, "ids": 0, "mu": 0, "texts": 16},
                    {"iteration": 1, "ids": 16, "mu": 16, "texts": 16}]
    after = [[f"{value:.9g}" if isinstance(value, float) else value for value in row.values()]
             for row in rows_of(connect(run), scalars)]
    assert after == before
    assert check_run(run).problems == []
    assert run.state.entries[run.state.head].what.why == "pruned"
    assert warehouse("prune", run.root, "--before", 1, "--yes").stdout == (
        "There is nothing to prune before iteration 1.\n")


def test_weights_of_old_policies_are_pruned_but_what_a_branch_shares_stays(run: Warehouse,
                                                                           tmp_path: Path) -> None:
    for asked in ("prune", run.root), ("prune", run.root, "--ended", "--keep-policies", 1):
        assert "Name just one thing to prune" in warehouse(*asked).stderr
    newest = run.state.newest
    assert newest > 1
    weights = run.policy_dir(1) / "adapter_model.safetensors"
    weights.write_bytes(bytes(200_000))
    said = warehouse("prune", run.root, "--keep-policies", 1).stdout
    assert said.startswith("weights of policies 1, 0.2 MB: would be removed") and "stay" not in said
    assert weights.exists()
    assert warehouse("branch", run.root, tmp_path / "branch", "--at", newest).exit_code == 0
    said = warehouse("prune", run.root, "--keep-policies", 1, "--yes").stdout
    assert "removed; " in said and "MB stay, because branches or arms share them" in said
    assert not weights.exists() and run.policy_dir(newest).exists()
    again = warehouse("prune", run.root, "--keep-policies", 1).stdout
    assert again.startswith("weights of policies none, 0.0 MB")


def test_a_damaged_part_of_a_pruned_iteration_is_lost_alone(run: Warehouse) -> None:
    """The tokens of its prompts are gone, so nothing can sample it again; all other rows stay."""
    warehouse("prune", run.root, "--before", 1, "--yes")
    first, *others = run.parts("completions", iteration=0, purpose="train")
    first.unlink()
    said = warehouse("check", run.root, "--fix")
    assert said.exit_code == 0 and "cannot be sampled again and these rows are lost" in said.stdout
    assert run.parts("completions", iteration=0, purpose="train") == [run.parts(
        "completions", iteration=0, purpose="train")[0].with_name(path.name) for path in others]
    assert check_run(run).problems == []
    run.parts("samples", iteration=0, purpose="train", scorer=SCORER)[0].unlink()
    said = warehouse("check", run.root, "--fix")
    assert "cannot be scored again and these rows are lost" in said.stdout and check_run(run).problems == []
    [left] = rows_of(connect(run, strict=True), "SELECT count(*) AS n FROM completions WHERE iteration = 0 "
                                                "AND purpose = 'train'")
    assert left["n"] == 8


def test_a_plan_with_which_nothing_can_be_sampled_is_not_drawn_again(run: Warehouse) -> None:
    """Merged parts fit no plan, and those of a pruned iteration cannot be sampled anew: all rows stay."""
    assert warehouse("compact", run.root).exit_code == 0
    warehouse("prune", run.root, "--before", 1, "--yes")
    prompts = run.parts("prompts", iteration=0, purpose="train")[0]
    content = prompts.read_bytes()
    prompts.unlink()
    said = warehouse("check", run.root, "--fix")
    assert f"{prompts} is missing" in said.stdout and "restore it from a copy\n" in said.stdout
    prompts.write_bytes(content)
    assert check_run(run).problems == []


def test_iterations_that_are_not_trained_keep_their_tokens(run: Warehouse) -> None:
    back_before(run, "train", complete=True, iteration=1)
    run = open_warehouse(run.root)
    result = warehouse("prune", run.root, "--before", 2, "--yes")
    assert result.exit_code == 1 and "Iteration 1 is not trained yet" in result.stderr
    assert rows_of(connect(run), "SELECT count(completion_ids) AS n FROM completions")[0]["n"] == 48
