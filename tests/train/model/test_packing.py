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
from train.model.loading import load_full
from train.model.packs import PromptGroup, pack_groups
from train.model.policy import CACHED_PROMPT
from train.model.shared_prompt import backward_pack, pack_logprobs

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


def test_packs_give_what_rows_forwarded_one_by_one_give(base):    # noqa: F811
    policy, groups = lora(base), ragged_groups(*SHAPES)
    rows = by_rows(policy, groups)
    for token_budget in (1, 30, 64, 10_000):
        packs = assert_packs_give_what_rows_give(policy, groups, token_budget, rows)
        assert (len(packs) < len(groups)) == (token_budget >= 30)


def by_rows(policy, groups):
    """Weights of the tokens of all rows; their logprobs and entropies by themselves; the summed gradients."""
    rows = [(group.prompt_ids, ids) for group in groups for ids in group.completions]
    weights = token_weights([len(ids) for _, ids in rows])
    gradients = {}
    for (prompt_ids, ids), weight in zip(rows, weights, strict=True):
        of_row = plain_gradients(policy, prompt_ids, [ids], [weight])
        gradients = {name: gradients.get(name, 0) + gradient for name, gradient in of_row.items()}
    with torch.no_grad():
        return weights, [plain_logprobs(policy, *row) for row in rows], gradients


def assert_packs_give_what_rows_give(policy, groups, token_budget, rows):
    weights, scores, expected = rows
    starts = [sum(len(group.completions) for group in groups[:number]) for number in range(len(groups))]
    policy.model.zero_grad()
    packs = pack_groups(policy, groups, token_budget)
    for pack in packs:
        members = [groups[number] for number in pack]
        places = [starts[number] + row for number in pack for row in range(len(groups[number].completions))]

        def rows_loss(indices, logprobs, entropy, places=places):
            padded = torch.nn.utils.rnn.pad_sequence([weights[places[index]] for index in indices],
                                                     batch_first=True)
            return (logprobs * padded).sum() - 0.3 * entropy.sum()
        scored = pack_logprobs(policy, members, token_budget=token_budget)
        for place, logprobs, entropies in zip(places, *scored, strict=True):
            torch.testing.assert_close((logprobs, entropies), tuple(scores[place]), rtol=1e-5, atol=1e-5)
        backward_pack(policy, members, rows_loss, token_budget=token_budget)
    assert_same({name: parameter.grad for name, parameter in policy.trainable().items()}, expected)
    return packs


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


def visible(lengths, parents, outside):
    """Which token attends to which, [T, outside + T]: to the outside, and to what its text goes on from."""
    paths = [[] for _ in parents]
    for text, parent in enumerate(parents):
        paths[text] = [text] if parent is None else [*paths[parent], text]
    owners = [(text, place) for text, length in enumerate(lengths) for place in range(length)]
    inside = [[other in paths[text] and (other != text or at <= place) for other, at in owners]
              for text, place in owners]
    return torch.cat([torch.ones(len(owners), outside, dtype=torch.bool), torch.tensor(inside)], dim=1)


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


LAYOUTS = {
    "three groups": ([5, 9, 1, 3, 7, 4, 4, 6, 1], [None, None, None, 0, 0, 1, 1, 1, 2], 0),
    "one group": ([12, 2, 2], [None, 0, 0], 0), "a prompt alone": ([8], [None], 0),
    "a prompt outside": ([3, 1, 4], [None] * 3, 6),
    "mixed": ([5, 3, 9, 7, 4, 4], [None, 0, None, 0, 2, 2], 0)}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_packed_attention_is_attention_to_what_each_text_goes_on_from(layout, kernels):
    (lengths, parents, outside), generator, scale = layout, torch.Generator().manual_seed(2), 0.3
    before = torch.empty(1, 1, outside, 1)
    packed, total = Packed(lengths, parents, [(before, before)] if outside else []), sum(lengths)

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
    expected, _ = dense(query, key, value, visible(*layout), scale)
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
            policy.hidden([group.prompt_ids, *group.completions], [None, 0, 0, 0, 0], []).sum().backward()
            counts.append(count_tensors())
    finally:
        gc.enable()
    assert counts[1] == counts[2]


def test_positions_count_on_from_what_a_text_goes_on_from():
    packed = Packed([2, 3, 2, 1, 3], [None, None, 0, 0, 1])
    assert packed.positions.tolist() == [0, 1, 0, 1, 2, 2, 3, 2, 3, 4, 5]
    assert packed.reach == 3 + 3
    given = Packed([2, 1, 2], [None, None, 0], [(torch.empty(1, 1, 4, 1), torch.empty(1, 1, 4, 1))])
    assert given.positions.tolist() == [4, 5, 4, 6, 7]
