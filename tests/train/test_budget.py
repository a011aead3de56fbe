"""The budget of tokens where nobody names one: small on a CPU, by the free memory on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from train.steps import budget
from train.steps.budget import LEAST, MOST, ON_CPU, choose_tokens, tokens_that_fit
from warehouse.store.errors import StageError


@pytest.mark.parametrize(("room", "largest", "prompt", "expected"), [
    (20_000, 3_000, 200, 20_000),               # every group goes through with others
    (20_000, 17_000, 4_096, 20_000),
    (15_000, 17_000, 4_096, 15_000 - 4_096),    # its prompt and a micro-batch hold activations at once
    (15_000, 40_000, 9_000, 7_500),             # a prompt in pieces and a micro-batch do
    (1e6, 3_000, 200, MOST), (1e6, 60_000, 200, MOST), (40, 3_000, 200, LEAST), (-3e4, 3_000, 200, LEAST)])
def test_a_prompt_and_a_micro_batch_fit_the_room_together(room, largest, prompt, expected):
    assert tokens_that_fit(room, largest, prompt) == expected
    if room > LEAST:
        assert expected <= room and (largest <= expected or min(prompt, expected) + expected <= room)


def test_on_a_gpu_two_probes_tell_what_a_token_takes(monkeypatch):
    """Memory of 1 GB beside 1 MB a token, and 8 bytes for each of 1,000 parameters: of 12 GB, 9 may go."""
    policy = SimpleNamespace(device=torch.device("cuda"), shards=None,
                             trainable=lambda: {"w": torch.empty(1000)})
    group = SimpleNamespace(prompt_ids=range(90), rollouts=[SimpleNamespace(completion_ids=range(100))] * 8)
    monkeypatch.setattr(budget, "_peak", lambda policy, tokens: 10**9 + tokens * 10**6)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12 * 10**9, 0))
    assert choose_tokens(policy, [group]) == 7_999

    def full(policy, tokens):
        raise torch.OutOfMemoryError("no")
    monkeypatch.setattr(budget, "_peak", full)
    assert choose_tokens(policy, [group]) == LEAST
    policy.shards = SimpleNamespace(sharding=SimpleNamespace(num_processes=1, offload=False))
    assert choose_tokens(policy, [group]) == LEAST
    policy.shards.sharding.num_processes = 2    # another may not be full, and waits for the next layer
    with pytest.raises(StageError, match="Start with --tokens-per-batch 512"):
        choose_tokens(policy, [group])
    policy.device = torch.device("cpu")
    assert choose_tokens(policy, [group]) == ON_CPU
