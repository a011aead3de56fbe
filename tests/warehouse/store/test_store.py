"""Atomic parts, stages and policies: the first writer wins, a kill leaves nothing half-written."""

import hashlib
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.building.runs import begin, small_run
from warehouse.init import init_run
from warehouse.maintain.check import check_run
from warehouse.stages.space import saying_the_disk_is_full
from warehouse.store import commit
from warehouse.store.checksums import file_hashes, weights_sha256
from warehouse.store.errors import Damaged, NoRun, SettingChanged, StageError
from warehouse.store.run_folder import open_warehouse
from warehouse.store.schema import arrow_schema


def steps(count: int, iteration: int = 0) -> pa.Table:
    schema = arrow_schema("train_steps")
    rows = [dict.fromkeys(schema.names) | {"iteration": iteration, "optimizer_step": step}
            for step in range(count)]
    return pa.Table.from_pylist(rows, schema=schema)


def test_the_first_writer_of_a_part_wins(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    begin(warehouse, "train", iteration=0)
    assert warehouse.write_part("train_steps", 0, steps(1), iteration=0)
    assert not warehouse.write_part("train_steps", 0, steps(2), iteration=0)
    assert warehouse.read("train_steps", iteration=0).num_rows == 1
    assert not list(warehouse.root.rglob("*.tmp-*"))


def test_a_run_that_was_moved_is_not_begun_anew_at_its_former_place(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    training = begin(warehouse, "train", iteration=0)
    warehouse.root.rename(tmp_path / "elsewhere")
    for work in (lambda: warehouse.write_part("train_steps", 0, steps(1), iteration=0),
                 lambda: begin(warehouse, "train", iteration=1), lambda: training.complete({}),
                 lambda: training.note_work(1.0, "stopped")):
        with pytest.raises(StageError, match="it was moved or removed while this command worked"):
            work()
    with pytest.raises(StageError, match="moved or removed"), saying_the_disk_is_full(warehouse.root):
        warehouse.scratch("checkpoint").mkdir()
    assert not warehouse.root.exists()


def test_a_kill_before_the_link_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = small_run(tmp_path)
    begin(warehouse, "train", iteration=0)

    def write_and_die() -> None:
        monkeypatch.setattr(commit, "_link", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        warehouse.write_part("train_steps", 0, steps(1), iteration=0)

    process = multiprocessing.get_context("fork").Process(target=write_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert warehouse.parts("train_steps", iteration=0) == []
    assert warehouse.write_part("train_steps", 0, steps(1), iteration=0)
    assert warehouse.read("train_steps", iteration=0).num_rows == 1


def race(root: str, barrier, wins) -> None:
    warehouse = open_warehouse(root)
    barrier.wait()
    begin(warehouse, "train", iteration=0)
    for number in range(20):
        if warehouse.write_part("train_steps", number, steps(1), iteration=0):
            wins.put(number)


def test_eight_processes_racing_for_twenty_parts_write_each_once(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(8), context.Queue()
    processes = [context.Process(target=race, args=(str(warehouse.root), barrier, wins)) for _ in range(8)]
    for process in processes:
        process.start()
    won = sorted(wins.get(timeout=600) for _ in range(20))
    for process in processes:
        process.join()
    assert won == list(range(20)) and wins.empty()


def test_a_filesystem_without_hard_links_is_refused_in_one_sentence(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(1, "Operation not permitted")
    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(StageError, match=r"The filesystem of .* has no hard links.* Put the run on another"):
        commit.commit_bytes(tmp_path / "x", b"first")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StageError, match="has no hard links"):
        small_run(tmp_path / "new")
    assert not list(tmp_path.rglob("warehouse.json"))


def test_an_answer_lost_on_the_network_does_not_turn_the_winner_into_a_loser(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def done_and_told_otherwise(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)        # what an NFS client that asks twice is told
    monkeypatch.setattr(os, "link", done_and_told_otherwise)
    assert commit.commit_bytes(tmp_path / "x", b"first")


def test_a_bit_flip_inside_a_page_is_an_error_and_never_other_numbers(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    begin(warehouse, "train", iteration=0)
    warehouse.write_part("train_steps", 0, steps(2000), iteration=0)
    path, = warehouse.parts("train_steps", iteration=0)
    position = arrow_schema("train_steps").names.index("optimizer_step")
    column = pq.read_metadata(path).row_group(0).column(position)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    with pytest.raises(StageError, match=r"cannot be read \(.*CRC checksum"):
        warehouse.read("train_steps", iteration=0)


def test_once_complete_a_stage_has_the_parts_of_its_manifest_and_no_others(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    begin(warehouse, "train", iteration=0)
    for number in range(3):
        warehouse.write_part("train_steps", number, steps(1), iteration=0)
    warehouse.stage("train", iteration=0).complete({})
    assert not warehouse.write_part("train_steps", 7, steps(1), iteration=0)
    first = warehouse.parts("train_steps", iteration=0)[0]
    shutil.copy(first, first.with_name("steps-00007.parquet"))      # a zombie of another plan
    assert warehouse.read("train_steps", iteration=0).num_rows == 3
    warehouse.parts("train_steps", iteration=0)[1].unlink()
    with pytest.raises(StageError, match=r"steps-00001.parquet is missing"):
        warehouse.read("train_steps", iteration=0)


def test_a_part_of_another_run_does_not_get_into_a_manifest(tmp_path: Path) -> None:
    warehouse, other = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    for run in (warehouse, other):
        begin(run, "train", iteration=0)
    warehouse.write_part("train_steps", 0, steps(1), iteration=0)
    other.write_part("train_steps", 1, steps(1), iteration=0)
    foreign = warehouse.part_path("train_steps", 1, iteration=0)
    foreign.write_bytes(other.part_path("train_steps", 1, iteration=0).read_bytes())
    with pytest.raises(StageError, match=r"steps-00001.parquet belongs to run"):
        warehouse.stage("train", iteration=0).complete({})
    foreign.unlink()
    with pytest.raises(StageError, match="Part 1 of this stage vanished"):
        warehouse.stage("train", iteration=0).complete({}, range(2))


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def no_space(path: Path) -> None:
        raise OSError(28, "No space left on device")
    with pytest.raises(StageError, match="the disk is full"):
        commit.commit_file(tmp_path / "x", no_space)
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_another_took_the_place_of_is_no_row(tmp_path: Path) -> None:
    """Whole Parquet of the right columns and run, but not what the stage wrote."""
    warehouse = small_run(tmp_path)
    begin(warehouse, "train", iteration=0)
    for number in range(2):
        warehouse.write_part("train_steps", number, steps(2 + number), iteration=0)
    warehouse.stage("train", iteration=0).complete({})
    warehouse.verify("train_steps", iteration=0)
    first, second = warehouse.parts("train_steps", iteration=0)
    os.replace(second, first.with_name("held"))
    os.replace(first, second)
    os.replace(first.with_name("held"), first)
    with pytest.raises(StageError, match=r"steps-00000.parquet does not match its manifest \(sha256"):
        warehouse.read("train_steps", iteration=0)
    (warehouse.folder("train_steps", iteration=0) / "manifest.json").chmod(0o644)
    for text in ("[]", "{}", "5", "{", '{"facts": {}, "parts": [5]}'):
        (warehouse.folder("train_steps", iteration=0) / "manifest.json").write_text(text)
        with pytest.raises(Damaged) as refused:
            warehouse.verify("train_steps", iteration=0)
        assert refused.value.path.name == "manifest.json"


def test_what_no_repair_can_make_again_is_not_said_to_be_repaired(tmp_path: Path) -> None:
    root = small_run(tmp_path).root
    (root / "warehouse.json").write_text("")                # a copy whose disk was full
    with pytest.raises(StageError, match="Restore it from a copy of the run") as error:
        open_warehouse(root)
    assert "`warehouse check --fix`" not in str(error.value)


def test_the_warehouse_json_of_another_run_is_damage_and_no_row_is_left_out(tmp_path: Path) -> None:
    run, other = (small_run(tmp_path / name).root for name in ("a", "b"))
    os.replace(other / "warehouse.json", run / "warehouse.json")
    with pytest.raises(Damaged, match=r"it is another run's\). Restore it from a copy") as refused:
        open_warehouse(run)
    assert refused.value.path == run / "warehouse.json"


def test_a_run_without_its_warehouse_json_is_not_made_again(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    begin(run, "rollout", iteration=0, purpose="train")
    (run.root / "warehouse.json").unlink()
    for use in (open_warehouse, lambda root: init_run(root, str(tmp_path / "model"), ("synthetic:3",))):
        with pytest.raises(StageError, match=r"no warehouse.json. Restore that file from a copy, or choose"):
            use(run.root)
    assert run.log.path(1).exists()


def test_a_folder_in_the_place_of_a_document_is_damage(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    (run.policy_dir(0) / "policy.json").unlink()
    (run.policy_dir(0) / "policy.json").mkdir()
    [problem] = check_run(run).problems
    assert "policy.json is damaged (it is a folder)" in problem and "restore the file from a copy" in problem


def test_encoding_of_parts(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    begin(warehouse, "rollout", iteration=0, purpose="train")
    schema = arrow_schema("completions")
    row = dict.fromkeys(schema.names) | {"completion_ids": [1, 2], "behaviour_logprobs": [-0.5, -0.25]}
    warehouse.write_part("completions", 0, pa.Table.from_pylist([row] * 3000, schema=schema), iteration=0,
                         purpose="train")
    file = pq.ParquetFile(warehouse.parts("completions", iteration=0, purpose="train")[0])
    columns = {file.metadata.row_group(0).column(i).path_in_schema: file.metadata.row_group(0).column(i)
               for i in range(file.metadata.num_columns)}
    assert file.metadata.row_group(0).num_rows == 1024
    assert "BYTE_STREAM_SPLIT" in columns["behaviour_logprobs.list.element"].encodings
    assert "RLE_DICTIONARY" not in columns["completion_ids.list.element"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert file.schema_arrow.metadata[b"rollhouse.run_id"].decode() == warehouse.run_id
    assert columns["num_completion_tokens"].statistics and not columns["completion"].statistics


def test_scored_rows_are_stored_by_column(tmp_path: Path) -> None:
    """A thousand files of small row groups would take longer to list than to read."""
    warehouse, schema = small_run(tmp_path), arrow_schema("samples")
    rows = pa.Table.from_pylist([dict.fromkeys(schema.names) | {"code": "pass"}] * 3000, schema=schema)
    begin(warehouse, "rollout", iteration=0, purpose="train")
    begin(warehouse, "score", iteration=0, purpose="train", scorer="s-1")
    warehouse.write_part("samples", 0, rows, iteration=0, purpose="train", scorer="s-1")
    part, = warehouse.parts("samples", iteration=0, purpose="train", scorer="s-1")
    assert pq.read_metadata(part).num_row_groups == 1


def test_a_stage_is_complete_once_its_manifest_exists_and_keeps_its_settings(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    stage = warehouse.stage("train", iteration=0)
    assert stage.manifest() is None
    stage.settle({"learning_rate": 1e-5, "splits": ("a",)})
    stage.settle({"learning_rate": 1e-5, "splits": ("a",)})
    with pytest.raises(SettingChanged) as refused:
        stage.settle({"learning_rate": 0.1, "splits": ("a",)})
    assert vars(refused.value) == {"title": "train of iteration 0", "name": "learning_rate", "before": 1e-5,
                                   "now": 0.1}
    assert "started with learning-rate = 1e-05" in str(refused.value)           # as it is typed
    warehouse.write_part("train_steps", 0, steps(1), iteration=0)
    manifest = stage.complete({"num_steps": 1})
    assert manifest == warehouse.stage("train", iteration=0).manifest()
    assert [part["name"] for part in manifest["parts"]] == ["steps-00000.parquet"]
    assert manifest["settings"]["learning_rate"] == 1e-5


def test_a_policy_appears_whole_and_only_once(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    begin(warehouse, "train", iteration=0)
    for text, won in (("first", True), ("second", False)):
        folder = warehouse.scratch("policy-1")
        (folder / "policy.json").write_text(f'{{"text": "{text}", "policy_version": 1, "sha256": ""}}')
        assert warehouse.commit_policy(0, folder) is won
    assert warehouse.state.versions == [0]           # until its training is complete
    warehouse.stage("train", iteration=0).complete({})
    assert warehouse.policy(1)["text"] == "first"
    assert warehouse.state.versions == [0, 1]
    assert not list(warehouse.root.glob(".tmp-*"))


def test_a_folder_that_is_no_run_and_a_newer_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRun) as refused:
        open_warehouse(tmp_path)
    assert (refused.value.path, refused.value.version) == (tmp_path, None)
    (tmp_path / "warehouse.json").write_text('{"schema_version": 99}')
    with pytest.raises(NoRun) as refused:
        open_warehouse(tmp_path)
    assert (refused.value.path, refused.value.version) == (tmp_path, 99)


def test_rows_of_the_tasks_that_are_asked_for_are_read_alone_be_they_none(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    [name, *others] = warehouse.read("tasks")["task_id"].to_pylist()
    assert others
    for asked in (set(), {name}, {name, "no such task"}):
        rows = warehouse.read("tasks", columns=["task_id", "kind"], task_ids=asked)
        assert rows.schema.names == ["task_id", "kind"] and set(rows["task_id"].to_pylist()) == asked & {name}


def test_a_torn_part_is_named(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    begin(warehouse, "train", iteration=0)
    path = warehouse.part_path("train_steps", 0, iteration=0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(StageError, match=r"steps-00000.parquet cannot be read"):
        warehouse.read("train_steps", iteration=0)


def test_an_output_that_is_a_device_or_a_link_to_one_stays_what_it_is(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    output.symlink_to("/dev/null")
    commit.replace_bytes(output, b"page")
    assert output.is_symlink() and Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    commit.replace_bytes(pipe, b"page")
    assert os.read(reader, 10) == b"page" and pipe.is_fifo()
    os.close(reader)
    with pytest.raises(StageError, match="that is a folder"):
        commit.replace_bytes(tmp_path, b"page")
    with pytest.raises(StageError, match="the name is too long"):
        commit.replace_bytes(tmp_path / ("x" * 300), b"page")


@pytest.mark.parametrize("names", [["adapter_model.safetensors"], ["m-2.safetensors", "m-1.safetensors"]])
def test_a_policy_is_known_by_its_weights_in_order_of_name(tmp_path: Path, names: list[str]) -> None:
    for name in [*names, "optimizer.pt"]:
        (tmp_path / name).write_bytes(name.encode() * 1000)
    hashes = file_hashes(tmp_path)
    assert hashes == {name: hashlib.sha256(name.encode() * 1000).hexdigest()
                      for name in [*names, "optimizer.pt"]}
    together = hashlib.sha256(b"".join(name.encode() * 1000 for name in sorted(names))).hexdigest()
    assert weights_sha256(tmp_path, hashes) == weights_sha256(tmp_path) == together
