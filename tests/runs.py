"""Another name of tests.building.runs."""

from tests.building.runs import *  # noqa: F403
from tests.building.runs import TURN as GRID_TASK  # noqa: F401
