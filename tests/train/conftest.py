"""The runs that many tests of `train` start from, sampled once."""

import pytest

from tests.building.runs import copy_run
from tests.building.sampled import run_train, sample_rows, tiny_run


@pytest.fixture(scope="session")
def scored(tmp_path_factory):
    """Iteration 0, scored; never to be written to."""
    warehouse = tiny_run(tmp_path_factory.mktemp("runs") / "demo")
    sample_rows(warehouse, 0)
    return warehouse


@pytest.fixture
def run(scored, tmp_path):
    """A copy of it."""
    return copy_run(scored, tmp_path / "demo")


@pytest.fixture(scope="session")
def trained(scored, tmp_path_factory):
    """With policy 1; never to be written to."""
    warehouse = copy_run(scored, tmp_path_factory.mktemp("runs") / "demo")
    assert run_train(warehouse).exit_code == 0
    return warehouse


@pytest.fixture(scope="session")
def stale(trained, tmp_path_factory):
    """With iteration 1 sampled by policy 0 as well, so that no ratio is 1; never to be written to."""
    warehouse = copy_run(trained, tmp_path_factory.mktemp("runs") / "demo")
    sample_rows(warehouse, 1, num_groups=7, sampled_by=0)
    return warehouse


@pytest.fixture
def stale_run(stale, tmp_path):
    """A copy of that."""
    return copy_run(stale, tmp_path / "demo")
