"""Many groups in one forward give the logprobs and gradients of rows forwarded one by one."""

import gc
from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig

from tests.train.model.test_shared_prompt import (
    SIZES,
    TEMPERATURE,
    assert_same,
    base,  # noqa: F401
    lora,
    plain_gradients,
    plain_logprobs,
    token_weights,
)
from train.model import flash as flash_module
from train.model.attention import Packed, PackedAttention
from train.model.policy import CACHED_PROMPT, load_full
from train.model.shared_prompt import PromptGroup, backward_pack, pack_groups, pack_logprobs

torch.set_num_threads(1)


def ragged_groups(*shapes, temperature=TEMPERATURE, seed=7):
    generator = torch.Generator().manual_seed(seed)

    def draw(length):
        return torch.randint(0, 97, (length,), generator=generator)
    groups = [PromptGroup(draw(prompt), [draw(length) for length in lengths], temperature)
              for prompt, lengths in shapes]
    groups[0].completions.append(groups[0].completions[-1].clone())     # equal ones are forwarded once
    return groups


SHAPES = (5, (3, 9, 1)), (17, (6, 6, 6, 2)), (2, (11,)), (9, (1, 1))


@pytest.mark.parametrize("token_budget", [1, 30, 64, 10_000])
def test_packs_give_what_rows_forwarded_one_by_one_give(base, token_budget):    # noqa: F811
    policy, groups = lora(base), ragged_groups(*SHAPES)
    rows = [(group.prompt_ids, ids) for group in groups for ids in group.completions]
    weights = token_weights([len(ids) for _, ids in rows])
    starts = [sum(len(group.completions) for group in groups[:number]) for number in range(len(groups))]
    expected = {}
    for group, start in zip(groups, starts, strict=True):
        gradients = plain_gradients(policy, group.prompt_ids, group.completions,
                                    weights[start:start + len(group.completions)])
        expected = {name: expected.get(name, 0) + gradient for name, gradient in gradients.items()}

    policy.model.zero_grad()
    packs = pack_groups(policy, groups, token_budget)
    assert (len(packs) < len(groups)) == (token_budget >= 30)
    for pack in packs:
        members = [groups[number] for number in pack]
        places = [starts[number] + row for number in pack for row in range(len(groups[number].completions))]

        def rows_loss(indices, logprobs, entropy, places=places):
            padded = torch.nn.utils.rnn.pad_sequence([weights[places[index]] for index in indices],
                                                     batch_first=True)
            return (logprobs * padded).sum() - 0.3 * entropy.sum()
        scored = pack_logprobs(policy, members, token_budget=token_budget)
        for place, logprobs, entropies in zip(places, *scored, strict=True):
            with torch.no_grad():
                wanted, wanted_entropy = plain_logprobs(policy, *rows[place])
            torch.testing.assert_close(logprobs, wanted, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(entropies, wanted_entropy, rtol=1e-5, atol=1e-5)
        backward_pack(policy, members, rows_loss, token_budget=token_budget)
    assert_same({name: parameter.grad for name, parameter in policy.trainable().items()}, expected)


def test_packs_hold_every_group_once_within_the_budget_and_only_of_one_temperature(base):    # noqa: F811
    policy = lora(base)
    groups = ragged_groups(*SHAPES) + ragged_groups(*SHAPES, temperature=1.0)
    groups += ragged_groups((1, (4, 4)), (60, (30,)))       # nothing to share, and larger than the budget
    packs = pack_groups(policy, groups, 50)
    assert sorted(number for pack in packs for number in pack) == list(range(10))
    assert packs[0] == [9] and [8] in packs and len(packs) < 8
    for pack in packs:
        assert len(pack) == 1 or sum(groups[number].num_tokens for number in pack) <= 50
        assert len({groups[number].temperature for number in pack}) == 1
    assert sum(len(pack) for pack in packs if len(pack) > 1) >= 6


def test_a_model_with_a_window_takes_its_groups_one_at_a_time(tmp_path):
    AutoModelForCausalLM.from_config(MistralConfig(**SIZES, sliding_window=8)).save_pretrained(tmp_path)
    policy = load_full(str(tmp_path), dtype="float32", device=torch.device("cpu"))
    assert policy.attention == CACHED_PROMPT
    assert pack_groups(policy, ragged_groups(*SHAPES), 10_000) == [[1], [0], [2], [3]]


def visible(packed):
    """Which token attends to which, [T, T]: group, row (0 the prompt) and place of each say it."""
    prompts = [] if packed.prompt_kv else packed.prompts
    owners = [(group, 0, place) for group, length in enumerate(prompts) for place in range(length)]
    owners += [(group, row, place) for group, lengths in enumerate(packed.rows)
               for row, length in enumerate(lengths, start=1) for place in range(length)]
    return torch.tensor([[mine == theirs and ((row == other and at <= place) or (row > 0 and other == 0))
                          for theirs, other, at in owners] for mine, row, place in owners])


def dense(query, key, value, mask, scale):
    groups = query.shape[1] // key.shape[1]
    scores = torch.einsum("thd,shd->hts", query, key.repeat_interleave(groups, dim=1)) * scale
    weights = scores.masked_fill(~mask, -torch.inf)
    normalizer = weights.logsumexp(dim=-1)
    return torch.einsum("hts,shd->thd", weights.softmax(dim=-1), value.repeat_interleave(groups, dim=1)), \
        normalizer


def spans_mask(cumulative_q, cumulative_k, causal):
    mask = torch.zeros(int(cumulative_q[-1]), int(cumulative_k[-1]), dtype=torch.bool)
    for (q, q_end), (k, k_end) in zip(pairwise(cumulative_q), pairwise(cumulative_k), strict=True):
        block = torch.ones(q_end - q, k_end - k, dtype=torch.bool)
        mask[q:q_end, k:k_end] = block.tril() if causal else block
    return mask


def emulated_forward(query, key, value, cumulative_q, cumulative_k, max_q, max_k, dropout, causal, debug, *,
                     scale):
    assert (cumulative_q.dtype, cumulative_k.dtype) == (torch.int32, torch.int32)
    assert max_q == cumulative_q.diff().max() and max_k == cumulative_k.diff().max()
    attended, normalizer = dense(query, key, value, spans_mask(cumulative_q, cumulative_k, causal), scale)
    return attended, normalizer, "seed", "unused", None


def emulated_backward(gradient, query, key, value, attended, normalizer, cumulative_q, cumulative_k, max_q,
                      max_k, dropout, causal, seed, unused, *, scale):
    """As the kernels do it: probabilities from the normalizer given, not from these keys alone."""
    assert (seed, unused) == ("seed", "unused") and normalizer.is_contiguous() and gradient.is_contiguous()
    count = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(count, dim=1), value.repeat_interleave(count, dim=1)
    scores = torch.einsum("thd,shd->hts", query, keys) * scale
    weights = (scores - normalizer[..., None]).exp() * spans_mask(cumulative_q, cumulative_k, causal)
    delta = (gradient * attended).sum(dim=-1).t()[..., None]
    of_scores = weights * (torch.einsum("thd,shd->hts", gradient, values) - delta) * scale

    def add_up(tensor):
        return tensor.unflatten(1, (-1, count)).sum(dim=2)
    return (torch.einsum("hts,shd->thd", of_scores, keys),
            add_up(torch.einsum("hts,thd->shd", of_scores, query)),
            add_up(torch.einsum("hts,thd->shd", weights, gradient)))


@pytest.fixture(params=["a CPU", "a GPU, emulated"])
def kernels(request, monkeypatch):
    """The branch for a GPU runs here too, on slow kernels that take what the real ones take."""
    if request.param == "a CPU":
        return
    monkeypatch.setattr(flash_module, "ON_CPU", ())
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", emulated_forward)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", emulated_backward)


@pytest.mark.parametrize("packed", [
    Packed([5, 9, 1], [[3, 7], [4, 4, 6], [1]]), Packed([12], [[2, 2]]), Packed([], [[8]]),
    Packed([6], [[3, 1, 4]], [(torch.empty(0), torch.empty(0))])],
    ids=["three groups", "one group", "a prompt alone", "a prompt outside"])
def test_packed_attention_is_attention_under_the_mask_of_groups(packed, kernels):
    generator, scale = torch.Generator().manual_seed(2), 0.3
    total, outside = packed.sequences.total, 6 if packed.prompt_kv else 0

    def draw(*shape):
        return torch.randn(*shape, 8, generator=generator, dtype=torch.float32).requires_grad_()
    tensors = [draw(total, 4), draw(total, 2), draw(total, 2)]
    tensors += [draw(outside, 2), draw(outside, 2)] if outside else []
    attended = PackedAttention.apply(packed, scale, *tensors)
    gradient = torch.randn(attended.shape, generator=generator)
    actual = torch.autograd.grad(attended, tensors, gradient)
    query, key, value, *prompt = exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    if prompt:
        key, value = torch.cat([prompt[0], key]), torch.cat([prompt[1], value])
    mask = torch.cat([torch.ones(total, outside, dtype=torch.bool), visible(packed)], dim=1)
    expected, _ = dense(query, key, value, mask, scale)
    torch.testing.assert_close(attended.double(), expected, rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    for tensor, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(tensor.double(), other, rtol=1e-4, atol=1e-5)


def test_the_graph_is_freed_with_its_last_reference_and_not_by_the_collector(base):    # noqa: F811
    policy, group = lora(base), ragged_groups(*SHAPES)[1]

    def count_tensors():
        return sum(issubclass(type(held), torch.Tensor) for held in gc.get_objects())
    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(3):
            policy.packed_hidden([group.prompt_ids], [list(group.completions)]).sum().backward()
            counts.append(count_tensors())
    finally:
        gc.enable()
    assert counts[1] == counts[2]


def test_positions_count_on_from_the_prompt_of_the_group():
    packed = Packed([2, 3], [[2, 1], [3]])
    assert packed.positions.tolist() == [0, 1, 0, 1, 2, 2, 3, 2, 3, 4, 5]
    assert packed.reach == 3 + 3
    given = Packed([4], [[2, 1]], [(torch.empty(1, 1, 4, 1), torch.empty(1, 1, 4, 1))])
    assert given.positions.tolist() == [4, 5, 4] and given.start == 0
