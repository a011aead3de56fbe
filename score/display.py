"""What `score` shows: a bar with the mix of errors so far, and the lines at the end of a rollout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from score.protocol.error_classes import INFRASTRUCTURE, ErrorClass
from score.sandbox.program import Outcome
from score.tasks.function import IN_PLACE
from warehouse.store.errors import counted

SHOWN = 5         # tasks in a line
REDRAW = 50      # programs between updates of the error mix


class Progress:
    """A progress bar over the programs, on stderr; silent without a terminal."""

    def __init__(self, title: str, *, num_parts: int, num_done: int, shown: bool = True) -> None:
        self.num_parts, self.num_done = num_parts, num_done
        self.errors: Counter[str] = Counter()
        self.bar = tqdm(desc=title, unit=" programs", disable=None if shown else True, mininterval=0.5)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def note_outcome(self, outcome: Outcome) -> None:
        self.errors[str(outcome.error_class or "ok")] += 1
        self.bar.update()
        if self.bar.n % REDRAW == 0:
            self._describe()

    def note_part(self) -> None:
        self.num_done += 1
        self._describe()

    def _describe(self) -> None:
        mix = " ".join(f"{name} {count / self.errors.total():.0%}"
                       for name, count in self.errors.most_common(4))
        self.bar.set_postfix_str(f"part {self.num_done}/{self.num_parts} {mix}", refresh=False)


def summary_lines(samples: pa.Table, where: str, seconds: Mapping[str, float], num_run: int) -> list[str]:
    """Rewards, correctness, errors and time of one scored rollout."""
    num_rows = samples.num_rows
    running = seconds.get("running", 0.0)
    lines = [f"{where}: {counted(num_rows, 'completion')}, {counted(num_run, 'program run')}"
             + (f" ({num_run / running:.0f}/s)" if running and num_run else "")]
    if not num_rows:
        return lines
    # As iteration_stats has it: right or wrong are those that have a reward.
    measured = samples.filter(pc.is_valid(samples.column("reward")))
    means = {name: pc.mean(rows.column(column).cast(pa.float64())).as_py() for name, rows, column in
             (("reward", measured, "reward"), ("correct", measured, "correct"),
              ("valid outputs", samples, "valid_outputs"), ("code blocks", samples, "valid_code"),
              ("truncated", samples, "truncated"))}
    lines.append("  " + "  ".join(f"{name} {value:.3f}" for name, value in means.items()
                                  if value is not None))
    parts: Counter[str] = Counter()
    for text in filter(None, measured.column("reward_parts").to_pylist()):
        parts.update(json.loads(text))
    if len(parts) > 1:
        lines.append("  reward = " + " + ".join(f"{name} {total / measured.num_rows:.3f}"
                                                for name, total in sorted(parts.items())))
    errors = Counter(name for name in samples.column("error_class").to_pylist() if name)
    if errors:
        lines.append("  errors: " + ", ".join(f"{name} {count}" for name, count in errors.most_common()))
    changing = pa.concat_arrays([samples.filter(pc.match_substring(samples.column(name), IN_PLACE)).column(
        "task_id").combine_chunks() for name in ("outputs", "error_message")])
    if len(changing):
        names = ", ".join(changing.unique().to_pylist()[:SHOWN])
        lines.append("  completions with a test that fails only because they change an argument: "
                     f"{len(changing)} ({names}). Where a task asks for that, its payload needs "
                     '"in_place": true.')
    unscored = samples.filter(pc.is_null(samples.column("reward")))
    pairs = zip(*(unscored.column(name).to_pylist() for name in ("error_class", "task_id")), strict=True)
    for reason, count in Counter(reason_for_none(*pair) for pair in pairs).items():
        lines.append(f"  {counted(count, 'completion')} without reward: {reason}. Not trained on.")
    lines.append("  seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
    return lines


def reason_for_none(error_class: str | None, task_id: str) -> str:
    if error_class == ErrorClass.UNTESTABLE:
        return (f"the tests of {task_id} cannot be run (correct them with `warehouse tasks replace`, or the "
                "task's grader)")
    if error_class in INFRASTRUCTURE:
        return "the machine failed, not the program"
    return "it does not apply to them"
