"""What isolation this machine offers, and what would raise it."""

import os
import platform
import sys

from score.isolation import landlock
from score.isolation.lockdown import Layer
from score.judging.golden import check_golden
from score.rewards.scorer import Scorer
from score.sandbox.attacks import BODIES
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool, usable_cores
from score.sandbox.tiers import TIERS, UNSAFE, try_tier
from warehouse.start.finding import Finding
from warehouse.store.errors import StageError

ADVICE = {
    "A": "install bubblewrap (apt, dnf and conda-forge have it) and allow user namespaces, or run as root "
         "with CAP_SYS_ADMIN",
    "B": "a kernel from 5.13 on with landlock in /sys/kernel/security/lsm",
    "C": "Linux on x86-64 or aarch64, with seccomp filters in the kernel",
}


def examine() -> Finding:
    """Report on machine and tiers; the finding refuses if no tier holds or a golden answer is misjudged."""
    found = Finding(lines=[
        f"{platform.system()} {platform.release()} on {platform.machine()}, Python "
        f"{platform.python_version()} ({sys.executable}), uid {os.getuid()}, {usable_cores()} usable cores"])
    best, wrong = None, ""
    for name, (layers, words) in TIERS.items():
        if name == UNSAFE:
            continue
        trial = try_tier(LaneConfig(layers), Limits(), 1)
        if isinstance(trial, LanePool):
            with trial:
                if not best:
                    best = name
                    try:
                        check_golden(Executor(trial), Scorer("exact"), ("grid", "function", "stdio"))
                    except StageError as error:
                        wrong = str(error)
                dropped = Layer.UNPRIVILEGED in Layer(trial.lanes[0].layers)
                found.lines.append(f"tier {name} ({words}): holds, {len(BODIES)} attacks contained"
                                   f"{'' if dropped else ', but as root'}")
        else:
            lacking = "B" if name == "A" and landlock.version() == 0 else name
            found.lines.append(f"tier {name} ({words}): not here: {trial}; it takes {ADVICE[lacking]}")
    found.facts["tier"] = best
    if best is None:
        return found.refuse("no tier holds: foreign programs are refused here, unless --unsafe-no-sandbox is "
                            "given", "apt-get install bubblewrap")
    found.lines.append(f"uses tier {best}")
    return found.refuse(wrong) if wrong else found
