"""What can be done to any reward: weights, nothing for the truncated, less for repetition, a tie-break."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Parts = dict[str, float] | None


@dataclass(frozen=True)
class Shaping:
    """What is done to the parts of a reward, in this order."""

    weights: dict[str, float] = field(default_factory=dict)    # factor of a part, by its name
    truncated_zero: bool = False                               # a completion that was cut off gets 0
    ngram_penalty: float = 0.0          # times the share of 4-grams that repeat an earlier one, taken off
    length_tie_break: float = 0.0       # up to this much for the shortest of a group's equally right ones

    def apply(self, parts: Sequence[Parts], *, truncated: np.ndarray, ngram4_unique_ratio: np.ndarray,
              correct: Sequence[bool], groups: Sequence[str], lengths: np.ndarray) -> list[Parts]:
        """The parts of every completion after shaping; None (nothing could be measured) stays None."""
        shaped: list[Parts] = [None if each is None else self._weighted(each) for each in parts]
        for index, each in enumerate(shaped):
            if each is None:
                continue
            if self.truncated_zero and truncated[index]:
                each["truncated"] = -sum(each.values())
            if self.ngram_penalty:
                each["repetition"] = -self.ngram_penalty * float(1.0 - ngram4_unique_ratio[index])
        if self.length_tie_break:
            self._break_ties(shaped, correct, groups, lengths)
        return shaped

    def _weighted(self, parts: dict[str, float]) -> dict[str, float]:
        return {name: value * self.weights.get(name, 1.0) for name, value in parts.items()}

    def _break_ties(self, shaped: list[Parts], correct: Sequence[bool], groups: Sequence[str],
                    lengths: np.ndarray) -> None:
        """Among the right answers of a group, the shorter the more; a single right answer gets all of it."""
        members: dict[str, list[int]] = defaultdict(list)
        for index, each in enumerate(shaped):
            if each is not None and correct[index]:
                members[groups[index]].append(index)
        for indices in members.values():
            longest, shortest = max(lengths[indices]), min(lengths[indices])
            for index in indices:
                share = (longest - lengths[index]) / (longest - shortest) if longest > shortest else 1.0
                each = shaped[index]
                assert each is not None
                each["length_tie_break"] = self.length_tie_break * float(share)
