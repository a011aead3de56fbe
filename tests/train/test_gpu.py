"""On a GPU, training computes what it computes on a CPU in float32, up to the rounding of its dtype."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.building.runs import copy_run
from tests.building.sampled import OPTIONS, sample_rows, tiny_run
from tests.train.model.test_packing import dense, visible
from train.cli import train as train_command
from train.model.attention import Packed, PackedAttention
from train.model.loading import load_full, load_lora
from train.model.packs import PromptGroup, pack_groups
from train.model.policy import SHARED_PROMPT
from train.model.shared_prompt import backward_pack, pack_logprobs
from train.steps.budget import MOST, choose_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
CONFIG = Qwen2Config(vocab_size=997, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
                     num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=512)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("base")
    Qwen2ForCausalLM(CONFIG).save_pretrained(folder)
    return str(folder)


def lora(base, dtype, device, **options):
    policy = load_lora(base, None, dtype=dtype, device=torch.device(device), seed=3, rank=4, alpha=8,
                       rslora=True, targets="all-linear", **options)
    generator = torch.Generator().manual_seed(4)
    for parameter in policy.trainable().values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return policy


def groups():
    generator = torch.Generator().manual_seed(5)
    def draw(length):
        return torch.randint(0, 997, (length,), generator=generator)
    shapes = (150, (40, 1, 90, 90, 17)), (20, (12, 30)), (33, (5,)), (7, (3, 3, 60))
    return [PromptGroup(draw(prompt), [draw(length) for length in lengths], 0.8)
            for prompt, lengths in shapes]


def results(policy, token_budget=200, together=True):
    """Logprobs of all rows, and the gradients of a loss that weighs each row by its number."""
    everything, logprobs = groups(), {}
    packs = pack_groups(policy, everything, token_budget) if together else [[0], [1], [2], [3]]
    for pack in packs:
        members = [everything[number] for number in pack]
        places = [(number, row) for number in pack for row in range(len(everything[number].completions))]
        def rows_loss(rows, row_logprobs, entropy, places=places):
            weighted = sum((row_logprobs[place] * (places[row][1] - 2 + places[row][0])).sum()
                           for place, row in enumerate(rows))
            return (weighted - 0.1 * entropy.sum()) / 351
        scored = pack_logprobs(policy, members, token_budget=token_budget)[0]
        logprobs |= dict(zip(places, scored, strict=True))
        backward_pack(policy, members, rows_loss, token_budget=token_budget)
    gradients = torch.cat([parameter.grad.float().flatten().cpu() / policy.loss_scale
                           for parameter in policy.trainable().values()])
    policy.model.zero_grad()
    return torch.cat([logprobs[place] for place in sorted(logprobs)]), gradients


def assert_near(actual, expected, tolerance):
    for tensor, other in zip(actual, expected, strict=True):
        assert (tensor - other).norm() <= tolerance * other.norm()


LAYOUTS = {
    "three groups": ([5, 300, 64, 3, 70, 129, 40, 1, 17], [None, None, None, 0, 0, 1, 1, 1, 2], 0),
    "a prompt outside": ([40, 40, 130], [None] * 3, 260), "a prompt alone": ([333], [None], 0)}


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_packed_attention_is_attention_to_what_each_text_goes_on_from(layout, head_dim):
    lengths, parents, outside = layout
    before = torch.empty(1, 1, outside, 1)
    packed = Packed(lengths, parents, [(before, before)] if outside else [], torch.device("cuda"))
    torch.manual_seed(0)
    total = packed.sequences.total
    shapes = [(total, 8), (total, 2), (total, 2)] + [(outside, 2)] * (2 if outside else 0)
    tensors = [torch.randn(*shape, head_dim, device="cuda", dtype=torch.bfloat16).requires_grad_()
               for shape in shapes]
    attended = PackedAttention.apply(packed, head_dim**-0.5, *tensors)
    gradient = torch.randn_like(attended)
    actual = torch.autograd.grad(attended, tensors, gradient)
    query, key, value, *prompt = exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    if prompt:
        key, value = torch.cat([prompt[0], key]), torch.cat([prompt[1], value])
    expected, _ = dense(query, key, value, visible(*layout).cuda(), head_dim**-0.5)
    assert_near([attended.double()], [expected], 5e-3)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    assert_near([tensor.double() for tensor in actual], wanted, 1e-2)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 3e-3)])
def test_groups_in_one_forward_give_what_each_gives_alone(base, dtype, tolerance):
    policy = lora(base, dtype, "cuda")
    assert len(pack_groups(policy, groups(), 10_000)) == 1
    assert_near(results(policy, 10_000), results(policy, 10_000, together=False), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 3e-2), ("float16", 5e-3)])
@pytest.mark.parametrize("token_budget", [64, 200, 10_000])
def test_adapter_scores_and_gradients_are_those_of_a_cpu(base, dtype, tolerance, token_budget):
    policy = lora(base, dtype, "cuda")
    assert (policy.attention == SHARED_PROMPT) == (dtype != "float32")
    assert_near(results(policy, token_budget), results(lora(base, "float32", "cpu")), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_gradients_of_all_weights_are_those_of_a_cpu(base, dtype, tolerance):
    expected = results(load_full(base, dtype="float32", device=torch.device("cpu")))
    assert_near(results(load_full(base, dtype=dtype, device=torch.device("cuda"))), expected, tolerance)


def test_the_budget_that_a_gpu_chooses_fits_its_memory_and_leaves_no_gradient(base, monkeypatch):
    policy = lora(base, "bfloat16", "cuda")
    rollouts = [SimpleNamespace(completion_ids=range(60))] * 4
    stored = [SimpleNamespace(prompt_ids=range(100), rollouts=rollouts)]
    assert choose_tokens(policy, stored) == MOST
    assert all(parameter.grad is None for parameter in policy.trainable().values())
    torch.cuda.reset_peak_memory_stats()
    used = torch.cuda.memory_allocated()
    room = 2**28        # bytes that seem to be free
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (room, 2 * room))
    monkeypatch.setattr("train.steps.budget.LEAST", 1)
    tokens = choose_tokens(policy, stored)
    assert 500 < tokens < MOST
    ids = torch.arange(tokens).split(40)
    torch.cuda.reset_peak_memory_stats()
    backward_pack(policy, [PromptGroup(ids[0] % 997, [row % 997 for row in ids[1:]], 1.0)],
                  lambda rows, logprobs, entropy: logprobs.sum(), token_budget=tokens)
    assert 0.4 * room < torch.cuda.max_memory_allocated() - used < room


def test_an_adapter_trains_over_a_4_bit_base(base):
    pytest.importorskip("bitsandbytes")
    actual = results(lora(base, "bfloat16", "cuda", load_in_4bit=True))
    assert_near(actual, results(lora(base, "float32", "cpu")), 0.4)
    assert actual[1].norm() > 0


def adapter(folder):
    return load_file(str(folder / "policies" / "1" / "adapter_model.safetensors"))


def test_a_stage_on_gpus_gives_the_adapter_of_a_stage_on_a_cpu(tmp_path):
    """With two GPUs or more, also when they share the groups."""
    run = tiny_run(tmp_path / "run")
    sample_rows(run, 0)
    options = [option for option in OPTIONS if option not in ("--device", "cpu")]
    configs = sorted(Path("examples/many-gpus").glob("*.yaml"))
    launches = [[], *(["--config_file", str(config)] for config in configs)]
    folders = [copy_run(run, tmp_path / str(place)).root for place in range(2 + len(launches))]
    CliRunner().invoke(train_command, [str(folders[0]), *OPTIONS], catch_exceptions=False)
    CliRunner().invoke(train_command, [str(folders[1]), *options], catch_exceptions=False)
    expected, actual = adapter(folders[0]), adapter(folders[1])
    assert expected.keys() == actual.keys()
    for name, values in expected.items():
        torch.testing.assert_close(actual[name], values, rtol=2e-3, atol=2e-4)
    if torch.cuda.device_count() < 2:
        return
    for launch, folder in zip(launches, folders[2:], strict=True):
        subprocess.run([sys.executable, "-m", "accelerate.commands.launch", *launch, "--num_processes", "2",
                        "-m", "train.cli", str(folder), *options], check=True)
        for name, values in adapter(folder).items():
            torch.testing.assert_close(actual[name], values, rtol=2e-3, atol=2e-4)
