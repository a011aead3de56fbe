"""Commands that care for a run, killed at some of the calls that change a file; `make chaos` kills at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.care import CASES, Case, kill_everywhere, whole_run

EVERY = 11


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("care") / "run")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_killed_command_leaves_what_the_next_one_finishes(case: Case, whole: Path, tmp_path: Path) -> None:
    told = list(kill_everywhere(case, whole, tmp_path, first=2, every=EVERY))
    assert told and not any(told), told
