"""Shared prompts give the logprobs and gradients of rows forwarded one by one, for any micro-batch size."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
)

from train.model.loading import load_full, load_lora
from train.model.packs import PromptGroup, lay_out, micro_batches
from train.model.policy import CACHED_PROMPT, SHARED_PROMPT
from train.model.shared_prompt import backward_pack, pack_logprobs
from train.model.token_logprobs import CHUNK_ELEMENTS, token_logprobs
from train.start import position_limit
from warehouse.store.errors import StageError

torch.set_num_threads(1)
SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
         "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 256}
MODELS = {"qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
          "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES))}
TEMPERATURE = 0.8


@pytest.fixture(params=[*MODELS], scope="module")
def base(request, tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp(request.param)
    model = MODELS[request.param]()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.15)
    model.save_pretrained(folder)
    return str(folder)


def lora(base):
    policy = load_lora(base, None, dtype="float32", device=torch.device("cpu"), seed=3, rank=4, alpha=8,
                       rslora=True,
                       targets="all-linear")
    torch.manual_seed(4)
    for parameter in policy.trainable().values():
        parameter.data.normal_(std=0.2)
    return policy


def group(num_prompt_tokens=23, lengths=(9, 1, 14, 14, 3)):
    generator = torch.Generator().manual_seed(5)
    def draw(length):
        return torch.randint(0, 97, (length,), generator=generator)
    completions = [draw(length) for length in lengths]
    return draw(num_prompt_tokens), [*completions, completions[2].clone(), completions[1].clone()]


def plain_logprobs(policy, prompt_ids, completion_ids):
    logits = policy.full_logits(torch.cat([prompt_ids, completion_ids])[None])[0]
    scores = (logits[len(prompt_ids) - 1:-1] / TEMPERATURE).log_softmax(dim=-1)
    return scores.gather(1, completion_ids[:, None]).squeeze(1), -(scores.exp() * scores).sum(dim=1)


def assert_scored_right(policy, token_budget, prompt_ids, completions):
    logprobs, entropies = pack_logprobs(policy, [PromptGroup(prompt_ids, completions, TEMPERATURE)],
                                        token_budget=token_budget)
    for ids, actual, entropy in zip(completions, logprobs, entropies, strict=True):
        with torch.no_grad():
            expected, expected_entropy = plain_logprobs(policy, prompt_ids, ids)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [
    MistralConfig(**SIZES, sliding_window=8), Gemma2Config(**SIZES, head_dim=8, sliding_window=8),
    Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    GraniteConfig(**SIZES, logits_scaling=4.0)], ids=lambda config: config.model_type)
def test_windows_soft_caps_experts_and_scaled_logits_are_scored_right(config, tmp_path):
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.15)
    model.save_pretrained(tmp_path)
    policy = load_full(str(tmp_path), dtype="float32", device=torch.device("cpu"))
    assert_scored_right(policy, 40, *group())


def test_attention_without_copies_is_used_where_it_can_be(base, tmp_path):
    assert lora(base).attention == SHARED_PROMPT
    window = MistralConfig(**SIZES, sliding_window=256)     # as long as the model's context: no window at all
    AutoModelForCausalLM.from_config(window).save_pretrained(tmp_path)
    policy = load_full(str(tmp_path), dtype="float32", device=torch.device("cpu"))
    assert policy.attention == SHARED_PROMPT
    assert_scored_right(policy, 10_000, *group(100, (140,) * 4))      # longer than it as one packed row


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [
    FalconConfig(vocab_size=97, hidden_size=32, num_hidden_layers=3, num_attention_heads=4),
    DeepseekV3Config(**{**SIZES, "num_key_value_heads": 4}, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8,
                     qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
                     topk_group=1, moe_intermediate_size=16, first_k_dense_replace=1),
    GptOssConfig(**SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8)],
    ids=lambda config: getattr(config, "model_type", config))
def test_attention_of_another_kind_goes_through_a_cache(config, dtype, tmp_path):
    torch.manual_seed(2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)      # transformers' own small weights
    policy = load_full(str(tmp_path), dtype=dtype, device=torch.device("cpu"))
    assert policy.attention == CACHED_PROMPT and policy.why_not_shared
    if dtype == "bfloat16":
        return
    assert_scored_right(policy, 40, *group())


def test_rows_longer_than_the_original_context_of_a_stretched_position_encoding_are_refused():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    phi = Phi3Config(**SIZES, original_max_position_embeddings=32, rope_parameters=rope, pad_token_id=0)
    assert position_limit(phi) == (32, "longrope")
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert position_limit(LlamaConfig(**SIZES, rope_parameters=dynamic)) == (256, "dynamic")
    assert position_limit(LlamaConfig(**SIZES)) == (256, None)


@pytest.mark.parametrize("top", [5.0, 45.0])
def test_entropy_of_peaked_distributions_keeps_its_digits(top):
    scores = torch.randn(6, 500, generator=torch.Generator().manual_seed(3))
    scores[:, 7] = top
    targets = torch.tensor([7, 7, 0, 1, 2, 3])
    logprobs, entropy = token_logprobs(scores, lambda hidden: hidden, targets, temperature=1.0,
                                       vocabulary_size=500)
    exact = scores.double().log_softmax(dim=-1)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(dim=-1), rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(logprobs.double(), exact.gather(1, targets[:, None]).squeeze(1), rtol=1e-5,
                               atol=1e-12)


def test_an_architecture_that_computes_otherwise_is_refused(base, monkeypatch):
    monkeypatch.setattr("train.model.policy.Policy.logits", lambda policy, hidden: policy._head(hidden) * 1.1)
    with pytest.raises(StageError, match="cannot be trained here"):
        lora(base)


def token_weights(lengths):
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(length, generator=generator) for length in lengths]


def plain_gradients(policy, prompt_ids, completions, weights):
    policy.model.zero_grad()
    for ids, weight in zip(completions, weights, strict=True):
        logprobs, entropy = plain_logprobs(policy, prompt_ids, ids)
        ((logprobs * weight).sum() - 0.3 * entropy.sum()).backward()
    return {name: parameter.grad.clone() for name, parameter in policy.trainable().items()}


def shared_gradients(policy, prompt_ids, completions, weights, token_budget):
    policy.model.zero_grad()
    def rows_loss(rows, logprobs, entropy):
        padded = torch.nn.utils.rnn.pad_sequence([weights[row] for row in rows], batch_first=True)
        return (logprobs * padded).sum() - 0.3 * entropy.sum()
    backward_pack(policy, [PromptGroup(prompt_ids, completions, TEMPERATURE)], rows_loss,
                  token_budget=token_budget)
    return {name: parameter.grad.clone() for name, parameter in policy.trainable().items()}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (actual[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


@pytest.mark.parametrize("token_budget", [1, 40, 10_000])
def test_scores_are_those_of_rows_forwarded_one_by_one(base, token_budget):
    assert_scored_right(lora(base), token_budget, *group())


@pytest.mark.parametrize(("token_budget", "num_prompt_tokens"), [
    pytest.param(budget, length, marks=[] if (place + other) % 3 == 0 else pytest.mark.slow("every pair"))
    for place, budget in enumerate((1, 5, 11, 40, 10_000)) for other, length in enumerate((1, 2, 23))])
def test_adapter_gradients_are_those_of_rows_forwarded_one_by_one(base, token_budget, num_prompt_tokens):
    policy = lora(base)
    prompt_ids, completions = group(num_prompt_tokens)
    weights = token_weights([len(ids) for ids in completions])
    expected = plain_gradients(policy, prompt_ids, completions, weights)
    assert_same(shared_gradients(policy, prompt_ids, completions, weights, token_budget), expected)


def test_gradients_of_all_weights_are_those_of_rows_forwarded_one_by_one(base):
    policy = load_full(base, dtype="float32", device=torch.device("cpu"))
    prompt_ids, completions = group()
    weights = token_weights([len(ids) for ids in completions])
    expected = plain_gradients(policy, prompt_ids, completions, weights)
    assert_same(shared_gradients(policy, prompt_ids, completions, weights, 40), expected)


def test_logits_in_chunks_change_neither_logprobs_nor_gradients(base, monkeypatch):
    policy = lora(base)
    prompt_ids, completions = group()
    weights = token_weights([len(ids) for ids in completions])
    whole = shared_gradients(policy, prompt_ids, completions, weights, 10_000)
    widest = []
    original = policy.logits
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 5 * 97)
    monkeypatch.setattr(policy, "logits", lambda hidden: widest.append(len(hidden)) or original(hidden))
    assert_same(shared_gradients(policy, prompt_ids, completions, weights, 10_000), whole)
    assert max(widest) == 5


def test_equal_completions_are_forwarded_once(base, monkeypatch):
    policy = lora(base)
    prompt_ids, completions = group()
    forwarded = []
    original = policy.hidden
    monkeypatch.setattr(policy, "hidden", lambda texts, parents, prompt_kv:
                        forwarded.append(len(texts)) or original(texts, parents, prompt_kv))
    for token_budget, expected in ((40, 5), (10_000, 6)):       # with the prompt, where all fits
        forwarded.clear()
        pack_logprobs(policy, [PromptGroup(prompt_ids, completions, 1.0)], token_budget=token_budget)
        assert len(completions) == 7 and sum(forwarded) == expected


def test_micro_batches_hold_every_row_once_longest_first_within_the_budget():
    lengths = [5, 30, 12, 30, 1, 7]
    rows = [torch.full((length,), number) for number, length in enumerate(lengths)]
    texts = lay_out([PromptGroup(torch.arange(9), rows, 1.0)])
    batches = [[texts[number].rows[0] for number in batch] for batch in micro_batches(texts, 80, 90)]
    assert sorted(row for batch in batches for row in batch) == list(range(6))
    assert batches[0] == [1, 3]
    for batch in batches:
        assert len(batch) == 1 or len(batch) * (lengths[batch[0]] + 10) <= 90
