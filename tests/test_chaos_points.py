"""Kill -9 at every named instant of every stage, in a chain; the end must be that of an undisturbed run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.loop import STAGES, chaos, contents, leftovers, new_run, whole
from warehouse.store import Warehouse


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, dict[str, list[str]]]:
    """One iteration without kills, and the instants each stage passed."""
    warehouse = new_run(tmp_path_factory.mktemp("chaos") / "undisturbed")
    return warehouse, {stage: whole(stage, warehouse, 0) for stage in STAGES}


def test_stages_pass_the_instants_that_the_promise_names(
        undisturbed: tuple[Warehouse, dict[str, list[str]]]) -> None:
    _, instants = undisturbed
    for stage in STAGES:
        for point in ("before write", "before link", "after link"):
            assert f"{point} manifest.json" in instants[stage]
            assert f"{point} settings.json" in instants[stage]
    assert "before rename 1" in instants["train"] and "after rename 1" in instants["train"]   # the policy


def test_killed_at_every_instant_a_run_ends_like_an_undisturbed_one(
        undisturbed: tuple[Warehouse, dict[str, list[str]]], tmp_path: Path) -> None:
    reference, instants = undisturbed
    killed = new_run(tmp_path / "killed")
    kills = 0
    for stage in STAGES:
        # Train starts in seconds, not tenths: every third instant here, all of them in `make chaos`.
        for number in range(1, len(instants[stage]) + 1, 3 if stage == "train" else 1):
            done = chaos(["--die-at", str(number)], stage, killed, "--iteration", "0")
            kills += done.returncode == -signal.SIGKILL
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
        whole(stage, killed, 0)
    assert kills >= 15
    assert contents(killed) == contents(reference)
    assert leftovers(killed) == []
