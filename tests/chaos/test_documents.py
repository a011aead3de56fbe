"""JSON files of a run with another content: a sentence or a finding, no traceback, no row lost unsaid."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.chaos.care import SAMPLES, whole_run
from warehouse.cli import cli

DOCUMENTS = ("completions/iteration=0/purpose=train/manifest.json", f"{SAMPLES}/manifest.json",
             "completions/iteration=1/purpose=train/settings.json", "train/iteration=0/manifest.json",
             "policies/1/policy.json", "warehouse.json", "intent.json")
CONTENTS = ("[]", "{}", "5", '{"facts": {}, "parts": [{"name": 5}]}', "{", "", "\x00\xff")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("documents") / "run")


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_another_type_is_said_and_put_aside(whole: Path, tmp_path: Path, name: str,
                                                          content: str) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    path = run / name
    if path.exists():
        path.chmod(0o644)
    path.write_text(content)
    query = "SELECT count(*) FROM samples"
    for words in (["check", "--quick"], ["summary"], ["repair", "--yes"], ["sql", query]):
        done = CliRunner().invoke(cli, [words[0], str(run), *words[1:]])
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        if words[0] == "check":
            assert done.exit_code == 1 and path.name in done.output and name.split("/")[0] in done.output
