"""The S3 server that the tests of this folder share."""

import uuid
from collections.abc import Iterator

import pytest

from tests.building.object_server import STORE, object_server


@pytest.fixture(scope="package")
def server() -> Iterator[str]:
    with object_server() as url:
        yield url


@pytest.fixture
def address(server: str) -> str:
    """The address of a run that does not exist yet."""
    return f"{STORE}/run-{uuid.uuid4().hex[:12]}"
