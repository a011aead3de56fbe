"""The real engine: how it starts, and the tokens that truncation left."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch
from pydantic import AfterValidator, TypeAdapter

from rollout.engines.engine import EngineSettings, Request, Sampling
from rollout.engines.environment import prepare_environment
from tests.building.engine import OFF_BY
from train.model.loading import load_lora
from train.model.packs import PromptGroup
from train.model.shared_prompt import pack_logprobs
from train.model.token_logprobs import Support

STARTER = Path(__file__).parents[2] / "examples" / "starter" / "model"


@pytest.mark.engine
def test_an_engine_starts_with_the_second_runner_but_where_vllm_has_to_choose(
        monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_environment()
    from rollout.engines import vllm_engine
    asked: list[str | None] = []

    def refuse(**_: Any) -> None:
        asked.append(os.environ.get(vllm_engine.RUNNER))
        raise ValueError("Model Runner V2 does not yet support: this" if asked[-1] else "nor does the first")

    def refuse_as_a_config_does(**_: Any) -> None:
        def check(_: Any) -> None:
            raise ValueError("Unknown method: nonsense.")
        TypeAdapter(Annotated[int, AfterValidator(check)]).validate_python(1)
    monkeypatch.setenv(vllm_engine.RUNNER, "")      # so that it is as it was afterwards
    monkeypatch.setattr(vllm_engine, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    refused = []
    for rank, engine in ((0, refuse), (8, refuse), (0, refuse_as_a_config_does)):
        monkeypatch.setattr(vllm_engine, "LLM", engine)
        with pytest.raises(vllm_engine.NotServed) as error:
            vllm_engine._start(EngineSettings(str(STARTER), None, rank, 400), {})
        refused.append(error.value.reason)
    assert asked == ["1", None, None]       # refused, so without; with adapters at once so
    assert refused == ["nor does the first", "nor does the first", "Unknown method: nonsense"]


@pytest.mark.engine
def test_the_trainer_has_the_engines_probabilities_over_what_truncation_left() -> None:
    """Of prompts that the starter cannot know."""
    prepare_environment()
    from rollout.engines.vllm_engine import VllmEngine
    engine = VllmEngine(EngineSettings(str(STARTER), None, 0, 400, dtype="float32", max_num_seqs=16,
                                       gpu_memory_utilization=0.2))
    requests = [Request(index, [(index + 7) * place % 250 for place in range(8)], index)
                for index in range(16)]
    drawn = engine.sample(requests, Sampling(40, top_k=8, top_p=0.9))
    sampled = sorted(filter(None, drawn), key=lambda each: each.index)
    policy = load_lora(str(STARTER), None, dtype="float32", device=torch.device("cpu"), seed=0, rank=4,
                       alpha=8, rslora=False, targets="all-linear")
    gaps: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for request, row in zip(requests, sampled, strict=True):
        ids, support = torch.tensor(row.completion_ids), row.support
        assert all(token == left[0] for token, left in zip(row.completion_ids, support, strict=True))
        stored = Support(torch.tensor([token for left in support for token in left]),
                         torch.tensor([len(left) for left in support]))
        for corrected, gap in gaps.items():
            group = PromptGroup(torch.tensor(request.prompt_ids), [ids], 1.0,
                                supports=[stored] if corrected else ())
            (logprobs,), _ = pack_logprobs(policy, [group], token_budget=1024)
            gap.append(logprobs - torch.tensor(row.logprobs))
    ratios = {corrected: torch.cat(gap).exp() for corrected, gap in gaps.items()}
    assert float((ratios[True] - 1).abs().max()) < OFF_BY
    assert float(ratios[False].mean()) < 0.97, "without it every ratio lacks what was cut"
    assert max(len(left) for row in sampled for left in row.support) > 1
