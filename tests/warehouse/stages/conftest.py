"""What the tests of `warehouse warm` run."""

from pathlib import Path

import pytest

from tests.warehouse.stages.warm_rooms import make_rooms


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two rooms, commands of theirs that can be typed, and a server of them."""
    return make_rooms(tmp_path)
