"""Another name of tests.building."""

from tests.building.runs import *  # noqa: F403
from tests.building.runs import new_run
from tests.building.texts import *  # noqa: F403


def make_run(root, tasks):
    return new_run(root, {name: payload if kind == "grid" else (kind, payload)
                          for name, (kind, payload) in tasks.items()})
