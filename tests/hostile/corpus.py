"""All hostile programs."""

from tests.hostile import answers_and_sources, channel, files_and_kernel, processes, time_and_crashes
from tests.hostile.attack import Attack

ATTACKS: list[Attack] = [
    attack
    for module in (time_and_crashes, processes, channel, files_and_kernel, answers_and_sources)
    for attack in module.ATTACKS
]
