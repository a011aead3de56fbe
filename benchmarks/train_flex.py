"""The other way to share a prompt: FlexAttention over packed rows of the prompt and completions behind it."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from train.model.packs import PromptGroup
from train.model.policy import Policy
from train.model.shared_prompt import RowsLoss
from train.model.token_logprobs import token_logprobs

BLOCK = 128


def backward_packed(policy: Policy, groups: Sequence[PromptGroup], rows_loss: RowsLoss, *, token_budget: int
                    ) -> None:
    """Add the gradients of a group's loss, in packed rows of at most the budget or one completion.

    Every row repeats the prompt; with the budget above the whole group, it is forwarded once.
    """
    prompt_ids, temperature = groups[0].prompt_ids.to(policy.device), groups[0].temperature
    completions = [ids.to(policy.device) for ids in groups[0].completions]
    size = max(1, (token_budget - len(prompt_ids)) // len(completions[0]))
    for start in range(0, len(completions), size):
        rows = list(range(start, min(start + size, len(completions))))
        chosen = [completions[row] for row in rows]
        logprobs, entropy = _row_logprobs(policy, prompt_ids, chosen, temperature)
        policy.backward(rows_loss(rows, logprobs, entropy))


def _row_logprobs(policy: Policy, prompt_ids: Tensor, completions: list[Tensor], temperature: float
                  ) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [B, T] of completions of the same length."""
    count, length, start = len(completions), len(completions[0]), len(prompt_ids)
    behind = (length - 1) * count
    filled = (start + behind + BLOCK - 1) // BLOCK * BLOCK
    ids = torch.zeros(1, filled, dtype=torch.long, device=policy.device)
    ids[0, :start + behind] = torch.cat([prompt_ids, *(row[:-1] for row in completions)])
    positions = torch.zeros_like(ids)
    positions[0, :start] = torch.arange(start)
    positions[0, start:start + behind] = torch.arange(start, start + length - 1).repeat(count)
    with policy._precision():
        hidden = policy._decoder(input_ids=ids, position_ids=positions, use_cache=False,
                                 attention_mask=_mask(start, length - 1, filled, str(policy.device))
                                 ).last_hidden_state[0]
    first = hidden[start - 1].expand(count, 1, -1)
    rest = hidden[start:start + behind].view(count, length - 1, -1)
    flat, entropy = token_logprobs(torch.cat([first, rest], dim=1).flatten(0, 1), policy.logits,
                                   torch.cat(completions), temperature=temperature,
                                   vocabulary_size=policy.vocabulary_size)
    return flat.view(count, length), entropy.view(count, length)


def _mask(start: int, length: int, filled: int, device: str) -> BlockMask:
    def allowed(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = (query - start) // length == (key - start) // length
        return (query >= key) & ((key < start) | ((query >= start) & same))

    build = torch.compile(partial(create_block_mask, allowed, None, None, filled, filled, device=device))
    return build()
