"""Families with several end tokens: the engine stops at each, and trained and merged weights keep them."""

import json
from pathlib import Path

import pytest

from benchmarks.model_checks import make_model, open_policy
from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling
from rollout.engines.environment import prepare_environment
from rollout.engines.merged import merge
from train.model.saving import save_policy

ENDS, OWN_END = [5, 60, 80], 258        # of generation_config.json, and of the tokenizer


@pytest.fixture(params=["llama", *(pytest.param(name, marks=pytest.mark.slow("two more engines"))
                                   for name in ("gemma3_text", "glm4"))])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As Llama 3, Gemma 3 and GLM-4 are published: the ends stand in generation_config.json."""
    make_model(request.param, tmp_path / "base")
    path = tmp_path / "base" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": ENDS}))
    return tmp_path / "base"


@pytest.mark.engine
def test_every_end_token_ends_a_completion_and_none_stands_within_one(base: Path) -> None:
    prepare_environment()
    from rollout.engines.vllm_engine import VllmEngine
    engine = VllmEngine(EngineSettings(model=str(base), adapter=None, adapter_rank=0, max_model_len=128,
                                       dtype="float32", max_num_seqs=64, gpu_memory_utilization=0.2))
    requests = [Request(number, [10, 11, 12], seed=number) for number in range(128)]
    last = set()
    for each in engine.sample(requests, Sampling(max_tokens=100)):
        if isinstance(each, Sampled):
            assert not {*ENDS, OWN_END} & {*each.completion_ids[:-1]}
            assert (each.completion_ids[-1] in (*ENDS, OWN_END)) == (each.finish_reason == "stop")
            last.add(each.completion_ids[-1])
    assert last >= {*ENDS}


def test_trained_and_merged_weights_have_the_end_tokens_of_their_base(base: Path, tmp_path: Path) -> None:
    for name, write in (
            ("full", lambda to: save_policy(open_policy(base, "full"), to, base=str(base))),
            ("adapter", lambda to: save_policy(open_policy(base, "lora"), to, base=str(base))),
            ("merged", lambda to: merge(base, tmp_path / "adapter", to, "float32"))):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    for name in ("full", "merged"):
        stored = json.loads((tmp_path / name / "generation_config.json").read_text())
        assert stored["eos_token_id"] == ENDS
