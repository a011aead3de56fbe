"""The scorer's identity: what keeps it, what changes it, and which files decide verdicts."""

import ast
from pathlib import Path

import pytest

from score.rewards import verdict_version
from score.rewards.scorer import Scorer
from score.rewards.verdict_version import ELSEWHERE, ROOT, SEALED_CODE, code_hash, verdict_files
from score.sandbox.limits import Limits

SOURCE = '''"""A module."""
import math

LIMIT = 3   # of something


class Circle:
    """A circle."""

    def area(self, radius):
        """Its area."""
        return math.pi * radius ** 2


def nothing():
    """Only a docstring."""
'''


def hash_of(tmp_path: Path, source: str, name: str = "code.py") -> str:
    path = tmp_path / name
    path.write_text(source)
    return code_hash([path])


@pytest.mark.parametrize(("old", "new"), [
    ("   # of something", "     # of something else"),
    ("LIMIT = 3   # of something", "# of something\nLIMIT = 3"),
    ("A module.", "The module,\nin two lines."), ("A circle.", "Round."), ("Its area.", "What it covers."),
    ("radius ** 2", "(radius\n                          ** 2)"), ("Only a docstring.", "No code.")])
def test_words_and_layout_keep_the_hash(tmp_path, old, new):
    assert old in SOURCE
    assert hash_of(tmp_path, SOURCE.replace(old, new)) == hash_of(tmp_path, SOURCE)


@pytest.mark.parametrize(("old", "new"), [
    ("LIMIT = 3", "LIMIT = 4"), ("LIMIT = 3", "LIMIT = 3.0"), ("LIMIT = 3", "LIMIT = '3'"), ("** 2", "* 2"),
    ("LIMIT = 3", "LIMIT = None"), ("self, radius", "self, radius=1"),
    ("import math", "import cmath as math")])
def test_code_changes_the_hash(tmp_path, old, new):
    assert hash_of(tmp_path, SOURCE.replace(old, new)) != hash_of(tmp_path, SOURCE)


def test_another_name_of_a_file_changes_the_hash(tmp_path):
    assert hash_of(tmp_path, SOURCE, "other.py") != hash_of(tmp_path, SOURCE)


def test_the_hash_is_that_of_the_code_which_the_version_was_given_to():
    found = code_hash(verdict_files())
    assert found == SEALED_CODE, (
        "code that decides verdicts has changed. In score/rewards/verdict_version.py raise VERDICT_VERSION "
        f"if a completion may get another verdict or reward than before, and put SEALED_CODE = \"{found}\".")


def test_edited_code_has_an_identity_of_its_own(monkeypatch):
    identities = set()
    for sealed in (code_hash(verdict_files()), "other"):
        monkeypatch.setattr(verdict_version, "SEALED_CODE", sealed)
        verdict_version.code_version.cache_clear()
        identities.add(Scorer("arc-v1").identity)
    verdict_version.code_version.cache_clear()
    assert len(identities) == 2
    assert Scorer("arc-v1").identity != Scorer("arc-v1", limits=Limits(cpu_seconds=2.0)).identity


def imported_files(path: Path) -> set[Path]:
    """Files of this repository that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return {file for name in names if (file := ROOT / f"{name.replace('.', '/')}.py").exists()}


def test_whatever_deciding_code_imports_is_part_of_the_identity():
    decisive = set(verdict_files())
    assert {"judging", "rewards", "tasks", "sandbox", "lane", "isolation", "protocol"} <= {
        path.parent.name for path in decisive}
    outside = set.union(*(imported_files(path) for path in decisive)) - decisive
    store = {path for path in outside if path.is_relative_to(ROOT / "warehouse")}
    assert outside - store == {Path(verdict_version.__file__)}
    # They read nothing that a verdict comes from: what is refused, and versions that scorers name themselves.
    refuses = {ROOT / "warehouse" / "tasks" / name for name in ("payloads.py", "graders.py")}
    assert set(ELSEWHERE) <= decisive and {path.parent.name for path in store - refuses} == {"store"}
