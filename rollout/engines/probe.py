"""Whether an engine serves its policy: its logprobs are compared with those that `train` stored."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rollout.engines.engine import EngineSettings
from warehouse.store.errors import StageError

# Mean nats between engine and trainer: in float32 1e-5 on a CPU, and .0018 on an H200, because its
# attention rounds more.
FURTHEST = {"float32": 0.02, "float16": 0.05, "bfloat16": 0.2}
ROUNDING = 0.05                  # of FURTHEST: policies that differ by less on average count as the same
FALSE_ONE_IN = 10 ** 6           # checks that say "the engine serves the previous policy"


class Probe(NamedTuple):
    """A stored completion: its ids, and the policy's logprobs of the last n of them, nats."""

    policy: Path
    ids: list[int]
    trained: np.ndarray
    before: np.ndarray | None    # the same under the previous policy
    dtype: str = "float32"       # of that training


def read_probe(path: Path, max_model_len: int) -> Probe | None:
    """A policy's probe, cut to the engine's context; None if nothing is left."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    length = min(len(stored["completion_ids"]), max_model_len - 1 - len(stored["prompt_ids"]))
    if length < 2:
        return None
    before = stored["logprobs_before"]
    settings = json.loads((path.parent / "policy.json").read_text(encoding="utf-8")).get("settings", {})
    return Probe(path.parent, stored["prompt_ids"] + stored["completion_ids"][:length],
                 np.array(stored["logprobs"][:length]), np.array(before[:length]) if before else None,
                 settings.get("dtype", "float32"))


def check_engine(engine: Any, settings: EngineSettings, who: str = "The engine") -> None:
    """StageError, before anything is sampled, if an engine of this process serves another policy.

    Quantized engines are not checked: their logprobs differ from those of training.
    """
    probe = read_probe(settings.probe, settings.max_model_len) if settings.probe else None
    if probe and not settings.quantization:
        engine.probe_gap = check_said(probe, engine.prompt_logprobs(probe.ids), engine.dtype, who)


def check_said(probe: Probe, prompt_logprobs: list[float], dtype: str, who: str) -> float:
    """Mean difference in nats of a probe's logprobs between an engine, named `who`, and the trainer.

    StageError if it is larger than rounding explains.
    """
    said = np.array(prompt_logprobs[-len(probe.trained):])
    off = mean_gap(said, probe.trained)
    if not off < max(FURTHEST[dtype], FURTHEST[probe.dtype]):
        raise StageError(f"{who} does not serve the policy of {probe.policy}: its logprobs of a stored "
                         f"completion are off by {off:.2g} nats. Restart it on a machine that sees this "
                         "run's folder. Nothing was sampled.")
    smallest = ROUNDING * max(FURTHEST[dtype], FURTHEST[probe.dtype])
    if probe.before is not None and is_former(said, probe.trained, probe.before, smallest):
        raise StageError(f"{who} serves a policy that is older than {probe.policy}. Restart it on "
                         "a machine that sees this run's folder. Nothing was sampled.")
    return off


def mean_gap(some: ArrayLike, other: ArrayLike) -> float:
    """Mean absolute difference of logprobs, in nats."""
    return float(np.abs(np.subtract(some, other)).mean())


def is_former(said: np.ndarray, trained: np.ndarray, before: np.ndarray, smallest: float) -> bool:
    """Whether logprobs, all [n] in nats, are those of the policy before the training: a sign test.

    Rounding has heavy tails, so tokens are counted, not averaged: if the engine serves the trained policy,
    a token is at most as likely to be nearer to the former one as to the trained one. False if the policies
    differ by less than `smallest` on average, which a bias of the engine could bridge, and for fewer than
    20 tokens.
    """
    if mean_gap(trained, before) < smallest:
        return False
    nearer = np.sign(np.abs(said - trained) - np.abs(said - before))
    num, former = int((nearer != 0).sum()), int((nearer > 0).sum())
    return sum(math.comb(num, count) for count in range(former, num + 1)) * FALSE_ONE_IN < 2 ** num
