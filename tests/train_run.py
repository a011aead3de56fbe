"""Another name of tests.building."""

from tests.building.runs import copy_run  # noqa: F401
from tests.building.sampled import *  # noqa: F403
from tests.building.sampled import tiny_run as make_run  # noqa: F401
