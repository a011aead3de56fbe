"""A run that blows up, served once for what only reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from reports.viewer.app import make_app
from reports.viewer.serve import named_sessions
from tests.building.weather import build_run
from warehouse.store.run_folder import Warehouse

TOKEN = "the-token-of-this-test"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("served") / "blow-up"
    return build_run(folder, shape="blow-up", iterations=8, evals=(0, 7))


def client_of(*runs: Path | str) -> TestClient:
    """A client that has the token, of a site of these runs."""
    app = make_app(named_sessions([str(run) for run in runs]), TOKEN)
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    client.get(f"/?token={TOKEN}")
    return client


@pytest.fixture(scope="session")
def client(run: Warehouse) -> Iterator[TestClient]:
    with client_of(run.root) as made:
        yield made
