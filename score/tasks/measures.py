"""What was measured about one completion, whatever the kind of its task: what rewards are computed from."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from score.protocol.error_classes import ErrorClass
from score.sandbox.program import Outcome, Program


@dataclass(frozen=True, slots=True)
class SplitScore:
    """Scores over the pairs of one split (train or test) of a task; all 0 when no valid output exists."""

    num_pairs: int
    pixel_score: float
    correct_grids: float

    @property
    def is_correct(self) -> bool:
        """Every grid is right; False for a split without pairs."""
        return self.num_pairs > 0 and self.correct_grids == 1.0


NOTHING = SplitScore(0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion to judge: the text, the program in it, and how its prompt was augmented."""

    text: str                        # prefill and completion
    code: str | None                 # None: no closed code block
    flip: bool | None = None
    rotations: int | None = None
    color_map: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """Units are grids, tests or answers; a kind without train units leaves `train` empty."""

    valid_code: bool
    valid_outputs: bool
    train: SplitScore = NOTHING
    test: SplitScore = NOTHING
    hidden: bool = False             # expected outputs are unknown: no verdict, no reward
    fingerprint: str | None = None
    outputs: str | None = None       # JSON
    rewards: dict[str, float] | None = None                      # what the task's own grader gives, by name
    metrics: dict[str, float] = field(default_factory=dict)      # further values of the grader

    @property
    def num_units(self) -> int:
        return self.train.num_pairs + self.test.num_pairs

    @property
    def correct_share(self) -> float:
        """Share of exact units over train and test together."""
        return self._over_all(self.train.correct_grids, self.test.correct_grids)

    @property
    def pixel_score(self) -> float:
        """Mean pixel score over train and test together."""
        return self._over_all(self.train.pixel_score, self.test.pixel_score)

    @property
    def correct(self) -> bool:
        """Every unit of both splits is right."""
        return self.num_units > 0 and self.correct_share == 1.0

    def _over_all(self, train: float, test: float) -> float:
        total = train * self.train.num_pairs + test * self.test.num_pairs
        return total / self.num_units if self.num_units else 0.0


NO_CODE = Outcome(error_class=ErrorClass.PARSING, error_message="no closed ```python block")


def digest(text: str) -> str:
    """A hash that tells answers apart."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def unit_measures(answer: Answer, outcome: Outcome, passed: Sequence[float], num_units: int,
                  outputs: Any = None, fingerprint: str | None = None) -> Measures:
    """Units (tests, calls, cases) passed out of `num_units`; none where the program gave no valid outputs."""
    valid = outcome.error_class is None
    share = sum(passed) / num_units if valid and num_units else 0.0
    text = json.dumps({"test": outputs}, ensure_ascii=False, separators=(",", ":")) if valid else None
    return Measures(valid_code=answer.code is not None, valid_outputs=valid,
                    test=SplitScore(num_units, share, share), fingerprint=fingerprint if valid else None,
                    outputs=text and text.encode("utf-8", "replace").decode())       # no lone surrogates


class TaskKind(Protocol):
    """One kind of task: how its payload is read, what is run, and what the outcome is worth."""

    def load(self, payload: dict[str, Any]) -> Any:
        """Read a checked payload."""

    def programs(self, task: Any, answer: Answer) -> list[Program] | Outcome:
        """The programs to run for an answer, or its Outcome if there are none."""

    def measure(self, task: Any, answer: Answer, outcomes: list[Outcome]) -> Measures:
        """Compare outcomes with what was expected."""
