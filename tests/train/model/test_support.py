"""Tokens drawn from what truncated sampling left: probabilities, entropies and gradients over that alone."""

import pytest
import torch

from tests.train.model.test_shared_prompt import TEMPERATURE, base, lora  # noqa: F401
from train.model import token_logprobs as scoring
from train.model.packs import PromptGroup, lay_out, pack_groups
from train.model.shared_prompt import backward_pack, pack_logprobs
from train.model.token_logprobs import Support, token_logprobs

torch.set_num_threads(1)
VOCABULARY = 97


def draw_support(generator, targets):
    """Of every second token a few ids, its own among them; of the others all."""
    left = [torch.unique(torch.cat([target[None], torch.randint(0, VOCABULARY, (5,), generator=generator)]))
            if place % 2 else targets[:0] for place, target in enumerate(targets)]
    return Support(torch.cat(left), torch.tensor([len(ids) for ids in left]))


def brute_force(logits, targets, support, temperature):
    """Logprobs and entropies in float64, token by token, over the ids that are left alone."""
    values = []
    for scores, target, ids in zip(logits.double() / temperature, targets,
                                   support.ids.split(support.sizes.tolist()), strict=True):
        ids = ids if len(ids) else torch.arange(len(scores))
        log_p = scores[ids] - scores[ids].logsumexp(0)
        values.append(torch.stack([log_p[ids == target][0], -(log_p.exp() * log_p).sum()]))
    return torch.stack(values).unbind(1)


@pytest.mark.parametrize(("frozen", "of_entropy"), [(True, 0.0), (False, 0.0), (False, 0.7)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_entropies_and_gradients_are_those_over_what_is_left(frozen, of_entropy, temperature,
                                                                      monkeypatch):
    monkeypatch.setitem(scoring.CHUNK_ELEMENTS, "cpu", 4 * VOCABULARY)      # chunks of four tokens
    generator = torch.Generator().manual_seed(5)
    head = torch.randn(VOCABULARY, 8, generator=generator)
    hidden = torch.randn(11, 8, generator=generator)
    targets = torch.randint(0, VOCABULARY, (11,), generator=generator)
    support, weights = draw_support(generator, targets), torch.randn(11, generator=generator)
    results = []
    for score in (
        lambda states: token_logprobs(states, lambda chunk: chunk @ head.t(), targets, support=support,
                                      temperature=temperature, vocabulary_size=VOCABULARY,
                                      head_is_frozen=frozen),
        lambda states: brute_force(states @ head.t(), targets, support, temperature)):
        states = hidden.clone().requires_grad_()
        logprobs, entropies = score(states)
        loss = (logprobs * weights).sum() + (of_entropy * entropies.sum() if of_entropy else 0)
        loss.backward()
        results.append([logprobs.double(), entropies.double(), states.grad.double()])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("token_budget", [1, 10_000])
def test_equal_completions_are_forwarded_once_unless_other_tokens_were_left(base, token_budget):    # noqa: F811
    generator = torch.Generator().manual_seed(6)
    policy = lora(base)
    prompt, ids = (torch.randint(0, VOCABULARY, (length,), generator=generator) for length in (5, 6))
    few, others = draw_support(generator, ids), draw_support(generator, ids)
    group = PromptGroup(prompt, [ids, ids, ids, ids], TEMPERATURE, supports=[few, None, few, others])
    second = PromptGroup(torch.cat([prompt, ids]), [ids[:2]], TEMPERATURE, [None])
    assert sorted(text.rows for text in lay_out([group]) if text.rows) == [[0, 2], [1], [3]]
    assert len([text for text in lay_out([group, second]) if not text.rows]) == 2, "two prompts, no more"
    groups, weights = [group, second], torch.randn(6, generator=generator)
    all_left = Support(ids[:0], torch.zeros_like(ids))

    wanted, sums = [], 0
    for support in (few, None, few, others):
        logits = policy.full_logits(torch.cat([prompt, ids])[None])[0, 4:-1]
        logprobs, _ = brute_force(logits, ids, support or all_left, TEMPERATURE)
        wanted.append(logprobs.detach().float())
        sums = sums + (logprobs * weights).sum()
    sums.backward()
    expected = {name: parameter.grad.clone() for name, parameter in policy.trainable().items()}
    policy.model.zero_grad()
    for pack in pack_groups(policy, groups, token_budget):
        members = [groups[number] for number in pack]
        logprobs, _ = pack_logprobs(policy, members, token_budget=token_budget)
        if 0 in pack:
            torch.testing.assert_close(logprobs[:4], wanted, rtol=1e-5, atol=1e-5)
            backward_pack(policy, members, lambda rows, values, _: sum(
                (value[:6] * weights).sum() for row, value in zip(rows, values, strict=True) if row < 4),
                token_budget=token_budget)
    for name, parameter in policy.trainable().items():
        torch.testing.assert_close(parameter.grad, expected[name].float(), rtol=1e-4, atol=1e-5)
