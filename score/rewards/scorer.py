"""A scorer: a reward with its parameters, shaping and limits, and the identity its rows are stored under."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from score.rewards.from_file import UserReward
from score.rewards.named import reward_named
from score.rewards.shaping import Shaping
from score.rewards.verdict_version import code_version
from score.sandbox.limits import Limits
from score.tasks.measures import Measures
from warehouse.store.errors import StageError


@dataclass(frozen=True)
class Scorer:
    """What `score` computes; equal scorers have equal identities, on every machine."""

    reward: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    imports: tuple[str, ...] = ()
    shaping: Shaping = field(default_factory=Shaping)
    user: UserReward | None = None           # takes the place of the registered reward

    def __post_init__(self) -> None:
        known = reward_named(self.reward).defaults if self.user is None else {}
        unknown = set(self.parameters) - set(known)
        if unknown:
            raise StageError(f"The reward {self.name} has no parameter '{min(unknown)}'. "
                             f"Known: {', '.join(known) or 'none'}.")

    @property
    def name(self) -> str:
        return self.reward if self.user is None else self.user.name

    @property
    def all_parameters(self) -> dict[str, float]:
        """Defaults and what was set."""
        return {**reward_named(self.reward).defaults, **self.parameters} if self.user is None else {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that decides a verdict, as it is stored with the stage."""
        return {"reward": self.name, "parameters": self.all_parameters, "limits": asdict(self.limits),
                "shaping": asdict(self.shaping), "imports": list(self.imports), "code": code_version(),
                "user_code": None if self.user is None else self.user.content_hash}

    @cached_property
    def identity(self) -> str:
        """`<reward>-<10 hex>`: a hash of code, parameters, shaping, limits and allowed imports."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def terms(self, measures: Measures) -> dict[str, float]:
        """Named terms of the registered reward of one completion, before shaping."""
        return reward_named(self.reward).function(measures, self.all_parameters)

    @property
    def full(self) -> float | None:
        """Reward of a perfect answer before shaping; None where the user's function decides."""
        return reward_named(self.reward).full(self.all_parameters) if self.user is None else None

    @property
    def floor(self) -> float | None:
        """Reward of an answer without a program before shaping; None where the user's function decides."""
        return reward_named(self.reward).floor(self.all_parameters) if self.user is None else None
