"""Whether an engine serves its policy: what it says is held against what `train` wrote down."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollout.engines.engine import EngineSettings
from warehouse.store.errors import StageError

# Mean nats between engine and trainer; in float32 1e-5 on a CPU, and .0018 seen on an H200, whose attention
# rounds more.
FURTHEST = {"float32": 0.02, "float16": 0.05, "bfloat16": 0.2}
SMALLEST = 1e-4                  # nats by which policies must differ to be told apart
SURE = 5                         # standard errors by which an engine must be nearer to the policy before


class Probe(NamedTuple):
    """A stored completion: the ids to ask about, and what the policy said to the last of them, nats, [n]."""

    policy: Path
    ids: list[int]
    trained: np.ndarray
    before: np.ndarray | None    # the same by the policy before that training
    dtype: str = "float32"       # of that training


def read_probe(path: Path, max_model_len: int) -> Probe | None:
    """A policy's probe, cut to what the engine holds; None where nothing of it would be left."""
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

    Of a quantized one nothing is asked: it says other things than what was trained.
    """
    probe = read_probe(settings.probe, settings.max_model_len) if settings.probe else None
    if probe and not settings.quantization:
        engine.probe_gap = check_said(probe, engine.prompt_logprobs(probe.ids), engine.dtype, who)


def check_said(probe: Probe, prompt_logprobs: list[float], dtype: str, who: str) -> float:
    """How far an engine, `who`, is from what the policy said to a probe's ids when trained, mean nats.

    StageError if that is further than rounding explains.
    """
    said = np.array(prompt_logprobs[-len(probe.trained):])
    off = float(np.abs(said - probe.trained).mean())
    if not off < max(FURTHEST[dtype], FURTHEST[probe.dtype]):
        raise StageError(f"{who} does not serve the policy of {probe.policy}: its logprobs of a stored "
                         f"completion are off by {off:.2g} nats. Start it anew, on a machine that sees this "
                         "run's folder. Nothing was sampled.")
    if probe.before is not None and is_former(said, probe.trained, probe.before):
        raise StageError(f"{who} serves a policy that is older than {probe.policy}. Start it anew, on "
                         "a machine that sees this run's folder. Nothing was sampled.")
    return off


def is_former(said: np.ndarray, trained: np.ndarray, before: np.ndarray) -> bool:
    """Whether logprobs are those of the policy before the training rather than those after it, all [n].

    Projected on the line from `before` (0) to `trained` (1); what is off that line is the noise of half
    precision, which all three have. Of policies that differ by less than it the share is 1/2, whichever is
    served: False, they are as good as the same.
    """
    step, way = trained - before, said - before
    length = float(step @ step)
    if length < len(step) * SMALLEST ** 2:
        return False
    share = float(way @ step) / length
    error = float(np.square(way - share * step).sum() / (len(said) - 1) / length) ** 0.5
    return share + SURE * error < 0.5
