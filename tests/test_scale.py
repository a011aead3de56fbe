"""The simulation behind docs/jobs.md: shares by hand."""

import math

import numpy as np
import pytest

from benchmarks.scale import Fleet, sample_share

CALM = Fleet(slots=2, slot_speed=1.0, mtbf=math.inf, restart=10.0, spill=4.0)


class Dies:
    """Random numbers that are known: seconds to live."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)

    def exponential(self, _mean: float) -> float:
        return self.seconds.pop(0)


def test_slots_take_the_next_completion_when_they_are_free() -> None:
    share = sample_share(np.array([5.0, 2.0, 1.0, 4.0]), CALM, Dies(math.inf))
    assert share.ends.tolist() == [5, 2, 3, 7] and share.seconds == 7 and share.lost == share.kills == 0


def test_what_was_saved_before_a_preemption_is_kept_and_the_rest_sampled_again() -> None:
    share = sample_share(np.array([5.0, 2.0, 1.0, 4.0]), CALM, Dies(5.5, math.inf))
    # Saved at 4: the second and the third. Lost: 5 s of the first, which ended unsaved, 2.5 s of the last.
    assert share.kills == 1 and share.lost == pytest.approx(7.5)
    assert share.ends.tolist() == [15.5 + 5, 2, 3, 15.5 + 4]
