"""The real engine: how it starts, and the tokens that truncation left."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.building.engine import OFF_BY
from train.model.loading import load_lora
from train.model.packs import PromptGroup
from train.model.shared_prompt import pack_logprobs
from train.model.token_logprobs import Support

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "examples" / "starter" / "model"
SCRIPT = """
import dataclasses, json, sys
from rollout.engines.environment import prepare_environment
prepare_environment()
from rollout.engines.engine import EngineSettings, Request, Sampling
from rollout.engines.vllm_engine import VllmEngine
engine = VllmEngine(EngineSettings(sys.argv[1], None, 0, 400, dtype="float32", max_num_seqs=16,
                                   gpu_memory_utilization=0.2))
ways = {"truncated": Sampling(40, top_k=8, top_p=0.9)}
requests = [Request(index, [(index + 7) * place % 250 for place in range(8)], index) for index in range(16)]
told = {name: [dataclasses.asdict(each) for each in sorted(
    filter(None, engine.sample(requests, way)), key=lambda sampled: sampled.index)]
    for name, way in ways.items()} | {"prompts": [request.prompt_ids for request in requests]}

import os
from types import SimpleNamespace
from typing import Annotated
from pydantic import AfterValidator, TypeAdapter
from rollout.engines import vllm_engine
asked = []

def refuse(**options):
    asked.append(os.environ.get(vllm_engine.RUNNER))
    raise ValueError("Model Runner V2 does not yet support: this" if asked[-1] else "nor does the first")

def refuse_as_a_config_does(**options):
    def check(value):
        raise ValueError("Unknown method: nonsense.")
    return TypeAdapter(Annotated[int, AfterValidator(check)]).validate_python(1)

vllm_engine.current_platform = SimpleNamespace(is_cpu=lambda: False)
refused = []
for rank, engine in ((0, refuse), (8, refuse), (0, refuse_as_a_config_does)):
    vllm_engine.LLM = engine
    try:
        vllm_engine._start(EngineSettings(sys.argv[1], None, rank, 400), {})
    except Exception as error:
        refused.append(error.reason)
print(json.dumps(told | {"refused": refused, "asked": asked}))
"""


@pytest.fixture(scope="module")
def sampled() -> dict[str, Any]:
    """What one engine says to prompts that the starter cannot know, with truncated sampling."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(STARTER)], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.engine
def test_an_engine_starts_with_the_second_runner_but_where_vllm_has_to_choose(
        sampled: dict[str, Any]) -> None:
    assert sampled["asked"] == ["1", None, None]        # refused, so without; with adapters at once so
    assert sampled["refused"] == ["nor does the first", "nor does the first", "Unknown method: nonsense"]


@pytest.mark.engine
def test_the_trainer_has_the_engines_probabilities_over_what_truncation_left(sampled: dict[str, Any]) -> None:
    policy = load_lora(str(STARTER), None, dtype="float32", device=torch.device("cpu"), seed=0, rank=4,
                       alpha=8, rslora=False, targets="all-linear")
    gaps: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for prompt, row in zip(sampled["prompts"], sampled["truncated"], strict=True):
        ids, support = torch.tensor(row["completion_ids"]), row["support"]
        assert all(token == left[0] for token, left in zip(row["completion_ids"], support, strict=True))
        stored = Support(torch.tensor([token for left in support for token in left]),
                         torch.tensor([len(left) for left in support]))
        for corrected, gap in gaps.items():
            group = PromptGroup(torch.tensor(prompt), [ids], 1.0, supports=[stored] if corrected else ())
            (logprobs,), _ = pack_logprobs(policy, [group], token_budget=1024)
            gap.append(logprobs - torch.tensor(row["logprobs"]))
    ratios = {corrected: torch.cat(gap).exp() for corrected, gap in gaps.items()}
    assert float((ratios[True] - 1).abs().max()) < OFF_BY
    assert float(ratios[False].mean()) < 0.97, "without it every ratio lacks what was cut"
    assert max(len(left) for row in sampled["truncated"] for left in row["support"]) > 1
