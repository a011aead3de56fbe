"""The progress bar of `score`: parts, programs per second, and the mix of errors so far."""

from __future__ import annotations

from collections import Counter

from tqdm import tqdm

from score.sandbox.outcomes import Outcome

REDRAW = 50      # programs between updates of the error mix


class Progress:
    """A bar over the programs that were run, on stderr; silent where that is no terminal."""

    def __init__(self, title: str, *, num_parts: int, num_done: int, shown: bool = True) -> None:
        self.num_parts, self.num_done = num_parts, num_done
        self.errors: Counter[str] = Counter()
        self.bar = tqdm(desc=title, unit=" programs", disable=None if shown else True, mininterval=0.5)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def note_outcome(self, outcome: Outcome) -> None:
        """Count one more program that has ended."""
        self.errors[str(outcome.error_class or "ok")] += 1
        self.bar.update()
        if self.bar.n % REDRAW == 0:
            self._describe()

    def note_part(self) -> None:
        """Count one more part that is written."""
        self.num_done += 1
        self._describe()

    def _describe(self) -> None:
        mix = " ".join(f"{name} {count / self.errors.total():.0%}"
                       for name, count in self.errors.most_common(4))
        self.bar.set_postfix_str(f"part {self.num_done}/{self.num_parts} {mix}", refresh=False)
