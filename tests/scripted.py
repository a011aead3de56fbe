"""Another name of tests.building.scripted."""

from tests.building.scripted import *  # noqa: F403
