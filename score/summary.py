"""What `score` prints at the end of a rollout."""

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from score.wire.error_classes import INFRASTRUCTURE, ErrorClass
from warehouse.store.errors import counted

# What a user can do about errors that tell of tasks more than of programs.
WHAT_IT_MEANS = {
    ErrorClass.CANNOT_CROSS: "answers that are no plain data, all that tests in another process can see. "
                             "Where right programs answer so, run them together (docs/tasks.md).",
    ErrorClass.UNEARNED: "programs that pass wrong tests too. Look at them: the policy may be learning to "
                         "cheat."}


def summary_lines(samples: pa.Table, where: str, seconds: Mapping[str, float], num_run: int) -> list[str]:
    """Rewards, correctness, errors and time of one scored rollout."""
    num_rows = samples.num_rows
    running = seconds.get("running", 0.0)
    lines = [f"{where}: {counted(num_rows, 'completion')}, {counted(num_run, 'distinct program')} run"
             + (f" ({num_run / running:.0f}/s)" if running and num_run else "")]
    if not num_rows:
        return lines
    # As iteration_stats has it: right or wrong are those that have a reward.
    measured = samples.filter(pc.is_valid(samples.column("reward")))
    means = {name: pc.mean(rows.column(column).cast(pa.float64())).as_py() for name, rows, column in
             (("reward", measured, "reward"), ("correct", measured, "correct"),
              ("valid outputs", samples, "valid_outputs"), ("valid code", samples, "valid_code"),
              ("truncated", samples, "truncated"))}
    lines.append("  " + "  ".join(f"{name} {value:.3f}" for name, value in means.items()
                                  if value is not None))
    errors = Counter(name for name in samples.column("error_class").to_pylist() if name)
    if errors:
        lines.append("  errors: " + ", ".join(f"{name} {count}" for name, count in errors.most_common()))
    lines += [f"  {name}: {words}" for name, words in WHAT_IT_MEANS.items() if name in errors]
    unscored = samples.filter(pc.is_null(samples.column("reward")))
    pairs = zip(*(unscored.column(name).to_pylist() for name in ("error_class", "task_id")), strict=True)
    for reason, count in Counter(reason_for_none(*pair) for pair in pairs).items():
        lines.append(f"  {counted(count, 'completion')} without reward: {reason}. Not trained on.")
    lines.append("  seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
    return lines


def reason_for_none(error_class: str | None, task_id: str) -> str:
    """Why a completion has no reward."""
    if error_class == ErrorClass.UNTESTABLE:
        return f"the tests of {task_id} cannot be run (`warehouse tasks replace` corrects them)"
    if error_class in INFRASTRUCTURE:
        return "the machine failed, not the program"
    return "it does not apply to them"
