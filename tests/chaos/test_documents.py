"""JSON files of a run with another content: a sentence or a finding, no traceback, no row lost unsaid."""

import json
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.building.runs import change_document
from tests.chaos.care import SAMPLES, whole_run
from warehouse.cli import cli
from warehouse.store.errors import Damaged
from warehouse.store.json_files import json_bytes, read_json

DOCUMENTS = ("completions/iteration=0/purpose=train/*/manifest.json", f"{SAMPLES}/*/manifest.json",
             "train/iteration=0/*/manifest.json", "policies/1/*/policy.json", "warehouse.json",
             "_log/00000003.json")
CONTENTS = ("[]", "{}", '{"facts": {}, "parts": [{"name": 5}]}', "{", "\x00\xff", "5", "")
ANY_OTHER = pytest.mark.slow("the same contents in every document")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("documents") / "run")


@pytest.mark.parametrize(("name", "content"), [
    pytest.param(name, content, id=f"{name}-{number}",
                 marks=[] if (place - number) % len(CONTENTS) < 2 else ANY_OTHER)
    for place, name in enumerate(DOCUMENTS) for number, content in enumerate(CONTENTS)])
def test_a_document_of_another_type_is_said_and_left_out(whole: Path, tmp_path: Path, name: str,
                                                          content: str) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    path, = run.glob(name)
    path.chmod(0o644)
    path.write_text(content)
    query = "SELECT count(*) FROM samples"
    for words in (["check", "--quick"], ["summary"], ["check", "--fix"], ["sql", query]):
        done = CliRunner().invoke(cli, [words[0], str(run), *words[1:]])
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        if words == ["check", "--quick"]:
            assert done.exit_code == 1 and path.name in done.output and name.split("/")[0] in done.output


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_digit_that_flips_in_a_document_is_noticed(whole: Path, tmp_path: Path, name: str) -> None:
    path, draw = tmp_path / "document.json", random.Random(name)
    stored, = whole.glob(name)
    text, before = stored.read_text(), read_json(stored)
    places = [place for place, letter in enumerate(text) if letter in "0123456789"]
    for place in draw.sample(places, min(len(places), 40)):
        changed = f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1:]}"
        if _same_value(changed, text):                      # the last digit of a float can be without meaning
            continue
        path.write_text(changed)
        with pytest.raises(Damaged):
            read_json(path)
    path.write_text(json.dumps(json.loads(text)))           # written anew by another program
    assert read_json(path) == before


def _same_value(changed: str, text: str) -> bool:
    try:
        return json.loads(changed) == json.loads(text)
    except json.JSONDecodeError:
        return False


@pytest.mark.parametrize(("name", "said"), [
    ("train/iteration=0/*/manifest.json", "manifest.json is damaged"),
    ("tasks/part-00000.parquet", "is torn or not Parquet (Parquet file size is 1 bytes, smaller than the "
                                 "minimum file footer (8 bytes)). Restore it from a copy of the run."),
    ("policies/0/policy.json", None)])
def test_check_says_the_way_out_of_what_it_cannot_read(whole: Path, tmp_path: Path, name: str,
                                                       said: str | None) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    path, = run.glob(name)
    path.unlink()
    if said:
        path.write_text("{")
    done = CliRunner().invoke(cli, ["check", str(run)])
    assert done.exit_code == 1
    assert (said or "policies/0 has no policy.json: policy 0 is missing. Restore it from a copy of the "
                    "run.") in done.output
    fixed = CliRunner().invoke(cli, ["check", str(run), "--fix"])
    if name.startswith("train"):        # a manifest has a copy
        assert fixed.exit_code == 0 and ", 0 left\n" in fixed.output
    else:
        assert fixed.exit_code == 1 and "from a copy" in fixed.output


def test_a_damaged_manifest_that_still_is_one_is_found_by_check(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    path, = run.glob(DOCUMENTS[1])
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"num_', '"nun_'))
    done = CliRunner().invoke(cli, ["check", str(run), "--quick"])
    assert done.exit_code == 1 and "checksum says that something in it was changed" in done.output
    CliRunner().invoke(cli, ["check", str(run), "--fix"])
    done = CliRunner().invoke(cli, ["check", str(run), "--quick"])
    assert "checksum says that something in it was changed" not in done.output


def test_a_document_that_a_person_changed_goes_without_its_line(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(json_bytes({"sha256": "0", 5: {"b": 1e-5, "a": None}, "text": "\ud800"}))
    assert read_json(path) == {"sha256": "0", "5": {"b": 1e-5, "a": None}, "text": "\ud800"}
    facts = json.loads(path.read_text())
    del facts["checksum"]
    path.write_text(json.dumps({**facts, "text": "mine"}))
    assert (read_json(path) or {})["text"] == "mine"
    change_document(path, text="ours")
    assert (read_json(path) or {})["text"] == "ours"
