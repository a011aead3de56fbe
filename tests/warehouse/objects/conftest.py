"""The S3 server that the tests of this folder share."""

import itertools
from collections.abc import Iterator

import pytest

from tests.building.object_server import object_server

NUMBERS = itertools.count()


@pytest.fixture(scope="package")
def server() -> Iterator[str]:
    with object_server() as url:
        yield url


@pytest.fixture
def address(server: str) -> str:
    """The address of a run that does not exist yet."""
    return f"s3://runs/run-{next(NUMBERS)}"
