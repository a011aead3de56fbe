"""A policy that stays from training to training is the one that would have been loaded."""

import pytest

import train.resident
from tests.building.runs import copy_run
from tests.building.sampled import run_train, sample_rows
from warehouse.maintain.rollback import roll_back
from warehouse.stages import warm


@pytest.fixture
def loads(monkeypatch):
    """The versions of the policies that are loaded, in a process that stays."""
    versions, load = [], train.resident.load_policy
    monkeypatch.setattr(train.resident, "load_policy", lambda warehouse, parent, *rest: (
        versions.append(parent["policy_version"]), load(warehouse, parent, *rest))[1])
    monkeypatch.setattr(train.resident, "_kept", None)
    monkeypatch.setattr(warm, "stays", True)
    monkeypatch.setattr(warm, "sound", True)
    return versions


def go_on(warehouse, iteration, *options):
    sample_rows(warehouse, iteration)
    done = run_train(warehouse, *options)
    assert done.exit_code == 0, done.output


def weights(warehouse, version):
    [file] = warehouse.policy_dir(version).glob("*.safetensors")
    return file.read_bytes()


@pytest.mark.parametrize("rolled_back", [
    True, pytest.param(False, marks=pytest.mark.slow("the first half of the other"))])
def test_the_policy_that_is_kept_is_trained_on_as_if_it_were_loaded(scored, tmp_path, loads, monkeypatch,
                                                                    rolled_back):
    made = []
    for name in ("kept", "cold"):
        run = copy_run(scored, tmp_path / name)
        assert run_train(run).exit_code == 0
        go_on(run, 1)
        if rolled_back:         # policy 2 is policy 1 again
            roll_back(run, 1, "a test")
            go_on(run, 2)
        made.append((weights(run, run.log.refresh().newest), loads[:]))
        monkeypatch.setattr(warm, "stays", False)
    assert made[0][0] == made[1][0] and made[0][1] == [0]
    assert made[1][1][1:] == ([0, 1, 2] if rolled_back else [0, 1])


def test_what_is_loaded_otherwise_or_was_not_trained_here_is_loaded_anew(scored, tmp_path, loads):
    run, other = copy_run(scored, tmp_path / "run"), copy_run(scored, tmp_path / "other")
    assert run_train(run).exit_code == 0
    assert run_train(other).exit_code == 0                      # from the base, which is kept no more
    go_on(run, 1, "--dtype", "bfloat16", "--max-mismatch", "9")
    assert loads == [0, 0, 1]


def test_a_training_that_fails_midway_ends_the_process_that_keeps_the_policy(scored, tmp_path, loads):
    run = copy_run(scored, tmp_path / "run")
    assert run_train(run, "--learning-rate", "1e38").exit_code == 1 and not warm.sound
