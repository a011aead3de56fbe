"""Tasks judged by a number of right or wrong units (tests, calls, cases): what they have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from score.sandbox.outcomes import Outcome
from score.tasks.grid_metrics import SplitScore
from score.tasks.measures import Answer, Measures
from score.wire.error_classes import ErrorClass

NO_CODE = Outcome(error_class=ErrorClass.PARSING, error_message="no closed ```python block")


def unit_measures(answer: Answer, outcome: Outcome, passed: Sequence[bool], num_units: int,
                  outputs: Any = None, fingerprint: str | None = None) -> Measures:
    """Units passed out of `num_units`; none where the program gave no valid outputs."""
    valid = outcome.error_class is None
    share = sum(passed) / num_units if valid and num_units else 0.0
    return Measures(valid_code=answer.code is not None, valid_outputs=valid,
                    test=SplitScore(num_units, share, share), fingerprint=fingerprint if valid else None,
                    outputs=json.dumps({"test": outputs}, separators=(",", ":")) if valid else None)
