"""A scorer: a reward with its parameters and limits, and the identity under which its rows are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from score.limits import Limits
from score.measures import Measures
from score.rewards import reward_named
from warehouse.errors import StageError

# Files that can change no verdict; every other file of the package is part of the identity.
PRESENTATION = {"__init__.py", "cli.py", "diff.py", "doctor.py", "explain.py", "progress.py", "summary.py"}


@dataclass(frozen=True)
class Scorer:
    """What `score` computes; equal scorers have equal identities, on every machine."""

    reward: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = set(self.parameters) - set(reward_named(self.reward).defaults)
        if unknown:
            known = ", ".join(reward_named(self.reward).defaults) or "none"
            raise StageError(f"The reward {self.reward} has no parameter '{min(unknown)}'. Known: {known}.")

    @property
    def all_parameters(self) -> dict[str, float]:
        return {**reward_named(self.reward).defaults, **self.parameters}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that decides a verdict, as it is stored with the stage."""
        return {"reward": self.reward, "parameters": self.all_parameters, "limits": asdict(self.limits),
                "imports": list(self.imports), "code": code_hash()}

    @cached_property
    def identity(self) -> str:
        """`<reward>-<10 hex>`: a hash of code, parameters, limits and allowed imports."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"{self.reward}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def parts(self, measures: Measures) -> dict[str, float]:
        """Named parts of the reward of one completion."""
        return reward_named(self.reward).function(measures, self.all_parameters)

    @property
    def full(self) -> float:
        """Reward of a perfect answer."""
        return reward_named(self.reward).full(self.all_parameters)

    @property
    def floor(self) -> float:
        """Reward of an answer without a program."""
        return reward_named(self.reward).floor(self.all_parameters)


def code_hash() -> str:
    """Hash over the source files that verdicts depend on."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in [*sorted(here.glob("*.py")), here.parent / "warehouse" / "grids.py"]:
        if path.name not in PRESENTATION:
            content = path.read_bytes()
            digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
