"""Whether an engine serves its policy: its logprobs are compared with those that `train` stored."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollout.engines.engine import EngineSettings
from warehouse.store.errors import StageError

# Mean nats between engine and trainer: in float32 1e-5 on a CPU, and .0018 on an H200, because its
# attention rounds more.
FURTHEST = {"float32": 0.02, "float16": 0.05, "bfloat16": 0.2}
SMALLEST = 1e-4                  # smallest difference of policies, in nats, that can be seen
SURE = 5                         # standard errors for "the engine serves the previous policy"


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
    off = float(np.abs(said - probe.trained).mean())
    if not off < max(FURTHEST[dtype], FURTHEST[probe.dtype]):
        raise StageError(f"{who} does not serve the policy of {probe.policy}: its logprobs of a stored "
                         f"completion are off by {off:.2g} nats. Restart it on a machine that sees this "
                         "run's folder. Nothing was sampled.")
    if probe.before is not None and is_former(said, probe.trained, probe.before):
        raise StageError(f"{who} serves a policy that is older than {probe.policy}. Restart it on "
                         "a machine that sees this run's folder. Nothing was sampled.")
    return off


def is_former(said: np.ndarray, trained: np.ndarray, before: np.ndarray) -> bool:
    """Whether logprobs match the policy before the training better than the one after it, all [n].

    They are projected on the line from `before` (0) to `trained` (1); the remainder is noise of half
    precision, which all three have. If the policies differ by less than the noise, the share is 1/2 whichever
    is served, and the result is False: they are practically the same.
    """
    step, way = trained - before, said - before
    length = float(step @ step)
    if length < len(step) * SMALLEST ** 2:
        return False
    share = float(way @ step) / length
    error = float(np.square(way - share * step).sum() / (len(said) - 1) / length) ** 0.5
    return share + SURE * error < 0.5
