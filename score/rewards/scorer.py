"""A scorer: a reward with its limits, and the identity its rows are stored under."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from score.rewards.named import BY_KIND, DEFAULTS, reward_of
from score.rewards.verdict_version import code_version
from score.sandbox.limits import Limits
from score.tasks.measures import Measures
from warehouse.stages.user_code import UserFunction


@dataclass(frozen=True)
class Scorer:
    """What `score` computes; equal scorers have equal identities, on every machine."""

    reward: str                              # by-kind: the default of each kind of task
    limits: Limits = field(default_factory=Limits)
    imports: tuple[str, ...] = ()
    user: UserFunction | None = None           # takes the place of the registered reward
    graders: Mapping[str, str] = field(default_factory=dict)     # version of each library that grades
    replaced: Mapping[str, str] = field(default_factory=dict)    # hash of each task put in another's place

    @property
    def name(self) -> str:
        return self.reward if self.user is None else self.user.name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that decides a verdict, as it is stored with the stage."""
        by_kind = {"rewards": DEFAULTS} if self.name == BY_KIND else {}
        named = {"graders": dict(self.graders), "replaced": dict(self.replaced)}
        optional = {name: facts for name, facts in named.items() if facts}
        return {"reward": self.name, **by_kind, **optional, "limits": asdict(self.limits),
                "imports": list(self.imports), "code": code_version(),
                "user_code": None if self.user is None else self.user.content_hash}

    @cached_property
    def identity(self) -> str:
        """`<reward>-<10 hex>`: a hash of code, limits and allowed imports."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def terms(self, kind: str, measures: Measures) -> dict[str, float]:
        """Named terms of the registered reward of one completion."""
        return {} if self.user is not None else reward_of(self.reward, kind).function(measures)

    def bounds(self, kind: str) -> tuple[float, float] | None:
        """Reward of an answer without a program and of a perfect one; None for the user's."""
        reward = reward_of(self.reward, kind)
        return None if self.user is not None else (reward.floor, reward.full)
