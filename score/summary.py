"""What `score` prints at the end of a rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from score.wire.error_classes import INFRASTRUCTURE


def summary_lines(samples: pa.Table, where: str, seconds: Mapping[str, float], num_run: int) -> list[str]:
    """Rewards, correctness, errors and time of one scored rollout."""
    num_rows = samples.num_rows
    running = seconds.get("running", 0.0)
    lines = [f"{where}: {num_rows} completions, {num_run} distinct programs run"
             + (f" ({num_run / running:.0f}/s)" if running and num_run else "")]
    if not num_rows:
        return lines
    means = {name: pc.mean(samples.column(column).cast(pa.float64())).as_py() for name, column in
             (("reward", "reward"), ("correct", "correct"), ("valid outputs", "valid_outputs"),
              ("valid code", "valid_code"), ("truncated", "truncated"))}
    lines.append("  " + "  ".join(f"{name} {value:.3f}" for name, value in means.items()
                                  if value is not None))
    errors = Counter(name for name in samples.column("error_class").to_pylist() if name)
    if errors:
        lines.append("  errors: " + ", ".join(f"{name} {count}" for name, count in errors.most_common()))
    classes = samples.filter(pc.is_null(samples.column("reward"))).column("error_class").to_pylist()
    failed = sum(name in INFRASTRUCTURE for name in classes)
    if failed:
        lines.append(f"  {failed} completions have no reward: the machine failed, not the program. "
                     "Training leaves them out.")
    if len(classes) > failed:
        lines.append(f"  {len(classes) - failed} completions have no reward: it does not apply to them. "
                     "Training leaves them out.")
    lines.append("  seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
    return lines
