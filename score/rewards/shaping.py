"""What can be done to any reward: weights, nothing for the truncated, less for repetition, a tie-break."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Terms = dict[str, float] | None


@dataclass(frozen=True)
class Shaping:
    """What is done to the terms of a reward, in this order."""

    weights: dict[str, float] = field(default_factory=dict)    # factor of a term, by its name
    truncated_zero: bool = False                               # a completion that was cut off gets 0
    ngram_penalty: float = 0.0          # times the share of 4-grams that repeat an earlier 4-gram, taken off
    length_tie_break: float = 0.0       # up to this much for the shortest of a group's right answers

    def apply(self, rewards: Sequence[Terms], *, truncated: np.ndarray, ngram4_unique_ratio: np.ndarray,
              correct: Sequence[bool], groups: Sequence[str], lengths: np.ndarray) -> list[Terms]:
        """The terms of every reward after shaping; None (nothing could be measured) stays None."""
        shaped: list[Terms] = [None if terms is None else {
            name: value * self.weights.get(name, 1.0) for name, value in terms.items()} for terms in rewards]
        for index, terms in enumerate(shaped):
            if terms is None:
                continue
            if self.truncated_zero and truncated[index]:
                terms["truncated"] = -sum(terms.values())
            if self.ngram_penalty:
                terms["repetition"] = -self.ngram_penalty * float(1.0 - ngram4_unique_ratio[index])
        if self.length_tie_break:
            self._break_ties(shaped, correct, groups, lengths)
        return shaped

    def _break_ties(self, shaped: list[Terms], correct: Sequence[bool], groups: Sequence[str],
                    lengths: np.ndarray) -> None:
        """Among the right answers of a group, the shorter the more; a single right answer gets all of it."""
        members: dict[str, list[int]] = defaultdict(list)
        for index, terms in enumerate(shaped):
            if terms is not None and correct[index]:
                members[groups[index]].append(index)
        for indices in members.values():
            longest, shortest = max(lengths[indices]), min(lengths[indices])
            for index in indices:
                share = (longest - lengths[index]) / (longest - shortest) if longest > shortest else 1.0
                terms = shaped[index]
                assert terms is not None
                terms["length_tie_break"] = self.length_tie_break * float(share)
