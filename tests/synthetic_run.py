"""Another name of tests.building."""

from tests.building.runs import *  # noqa: F403
from tests.building.weather import *  # noqa: F403
from tests.building.weather import empty_run as new_run  # noqa: F401
