"""The isolation that this machine offers, tried by attacks from inside a lane."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from score.isolation import landlock, seccomp
from score.isolation.lockdown import Layer
from score.protocol.frames import FAILS
from score.sandbox.attacks import reached_effects
from score.sandbox.lane_handle import NOT_STARTED, LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from warehouse.store.errors import StageError

UNSAFE = "D"


@dataclass(frozen=True)
class Tier:
    """A tier of isolation: letter, layers, and what this machine has and lacks."""

    name: str
    layers: Layer
    words: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def isolated(self) -> bool:
        """False only for programs that may do whatever this user may."""
        return Layer.SECCOMP in self.layers


TIERS = {
    "A": (Layer.BUBBLEWRAP | Layer.LANDLOCK | Layer.SECCOMP, "bubblewrap, Landlock and seccomp"),
    "B": (Layer.LANDLOCK | Layer.SECCOMP, "Landlock and seccomp"),
    "C": (Layer.SECCOMP, "seccomp"),
    UNSAFE: (Layer(0), "no isolation, limits only"),
}


def missing_for(layers: Layer) -> str | None:
    """What this machine lacks for the layers; None if only a trial can tell."""
    if Layer.SECCOMP in layers and not seccomp.is_known_machine():
        return f"no system call table for {platform.system()} on {platform.machine()}"
    if Layer.LANDLOCK in layers and landlock.version() == 0:
        return f"the kernel ({platform.release()}) has no Landlock, or it is switched off"
    if Layer.BUBBLEWRAP in layers and shutil.which("bwrap") is None:
        return "bwrap is not installed (package bubblewrap)"
    return None


def open_lanes(wanted: str | None, *, unsafe: bool, limits: Limits, num_lanes: int,
               **loads: tuple[str, ...]) -> tuple[LanePool, Tier]:
    """Running lanes of the best tier that holds, or of the tier asked for, and that tier.

    What the lanes load is given as in LaneConfig. Raises StageError when none holds, unless `unsafe` says
    that none is wanted.
    """
    reasons: dict[str, str] = {}
    for name in [UNSAFE] if unsafe else [wanted] if wanted else ["A", "B", "C"]:
        layers, words = TIERS[name]
        pool = try_tier(LaneConfig(layers, **loads), limits, num_lanes)
        if isinstance(pool, LanePool):
            facts = {"kernel": platform.release(), "landlock": landlock.version(), "uid": os.getuid(),
                     "not_available": reasons}
            return pool, Tier(name, Layer(pool.lanes[0].layers), words, facts)
        reasons[name] = reason = pool
    if reason.startswith(NOT_STARTED) and re.search("ImportError|ModuleNotFoundError", reason):
        # The last tier failed for a module that is missing or fails, not for isolation.
        way_out = "Correct it." if FAILS in reason else (
            "A module of your own is found in a folder that --import-path names.")
        raise StageError(f"{reason} {way_out}")
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise StageError(f"Foreign programs cannot be isolated on this machine ({told}). Run `warehouse doctor` "
                     "for what would help, or, if every program is your own, use --unsafe-no-sandbox.")


_kept: dict[Any, tuple[LanePool, Tier]] = {}         # of the last command of a process that stays


@contextmanager
def lanes_of(scorer: str, wanted: str | None, *, stays: bool, unsafe: bool, limits: Limits, num_lanes: int,
             **loads: tuple[str, ...]) -> Iterator[tuple[LanePool, Tier]]:
    """Lanes as `open_lanes` gives them; a process that `stays` keeps those of its last command if they fit.

    `scorer` stands for what the lanes have imported of graders. Modules of the user are imported anew.
    """
    key = scorer, wanted, unsafe, limits, *sorted(loads.items())
    kept = _kept.pop(key, None)
    for other, _tier in _kept.values():
        other.close()
    _kept.clear()
    pool, tier = kept or open_lanes(wanted, unsafe=unsafe, limits=limits, num_lanes=num_lanes, **loads)
    try:
        pool.resize(num_lanes)
        yield pool, tier
    except BaseException:
        pool.close()
        raise
    if stays and not loads.get("import_paths"):
        _kept[key] = pool, tier
    else:
        pool.close()


def try_tier(config: LaneConfig, limits: Limits, num_lanes: int) -> LanePool | str:
    """Lanes that withstood every attack, or the reason why there are none."""
    if reason := missing_for(Layer(config.layers)):
        return reason
    try:
        pool = LanePool(config, limits, num_lanes)
    except StageError as error:
        if config.layers:
            return str(error)
        raise
    reached = reached_effects(pool) if config.layers & Layer.SECCOMP else []
    if reached:
        pool.close()
        return f"a program could {', '.join(reached)}"
    return pool
