"""Whether a run may sample from a server: the same base, tokenizer, precision and distribution."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rollout.endpoint.server import Facts, Server
from rollout.engines.engine import LOGPROBS_MODE, EngineSettings
from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.stages.base_model import find_model
from warehouse.store.errors import StageError

HALF = ("float16", "bfloat16")
FURTHEST = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}     # mean nats between engine and trainer
TRIED = "def f(grid):\n    return [[1, 20, 345]]  # naïve, 東京 <|im_end|>\n"

SMALLEST = 1e-4                  # nats by which policies must differ to be told apart


def check_alike(servers: list[Server]) -> None:
    """StageError if the servers would make rows that differ in more than the draw."""
    first = servers[0]
    for server in servers[1:]:
        for name in ("version", "dtype", "device", "max_lora_rank"):
            ours, theirs = getattr(first.facts, name), getattr(server.facts, name)
            if ours != theirs:
                raise StageError(f"The servers differ: {first.url} has {name} {ours}, {server.url} has "
                                 f"{theirs}. Sample from equal ones.")


def check_facts(server: Server, base: str, revision: str | None, settings: EngineSettings) -> None:
    """StageError for a server from which the run must not sample, with the reason and the way out."""
    facts, started = server.facts, "Start the server with"
    for wrong, sentence in [
        (not _same_base(facts, base, revision),
         f"serves {_named(facts.model, facts.revision)}, this run's base is {_named(base, revision)}. "
         "Start it with that."),
        (facts.logprobs_mode != LOGPROBS_MODE,
         f"gives {facts.logprobs_mode}, not those of the distribution that tokens are drawn from. "
         f"{started} --logprobs-mode {LOGPROBS_MODE}."),
        (facts.own_defaults,
         f"has sampling defaults of its own ({facts.own_defaults}), with which it would not sample from the "
         f"policy. {started} --generation-config vllm and nothing that overrides it."),
        (facts.max_model_len < settings.max_model_len,
         f"holds {facts.max_model_len} tokens, prompts and completions need {settings.max_model_len}. "
         f"{started} --max-model-len {settings.max_model_len} or more, or lower --max-tokens or "
         "--max-prompt-tokens."),
        (settings.dtype not in ("auto", facts.dtype),
         f"runs in {facts.dtype}, --dtype says {settings.dtype}. {started} --dtype {settings.dtype}."),
        (facts.quantization != settings.quantization,
         f"has quantization {facts.quantization}, --quantization says {settings.quantization}. "
         "Make them the same."),
        (settings.adapter and facts.max_lora_rank < settings.adapter_rank,
         f"takes adapters up to rank {facts.max_lora_rank}, the policy's has {settings.adapter_rank}. "
         f"{started} --enable-lora --max-lora-rank {settings.adapter_rank} or more, or use --serve merged "
         "with a server that has no --enable-lora."),
        (settings.adapter and facts.device != "cpu" and facts.dtype not in HALF,
         f"runs in {facts.dtype} on a GPU, where vLLM's kernels for adapters take half precision only. "
         f"{started} --dtype bfloat16, or without --enable-lora for --serve merged."),
    ]:
        if wrong:
            raise StageError(f"{server.url} {sentence} Nothing was sampled.")


async def check_tokenizer(server: Server, encoder: PromptEncoder) -> None:
    """StageError if the server's tokenizer makes other ids of a text than the run's."""
    if await server.token_ids(TRIED) != encoder.encode(TRIED):
        raise StageError(f"{server.url} has another tokenizer than this run: it reads a text as other "
                         "tokens. Start it with the run's own model. Nothing was sampled.")


async def check_probe(server: Server, path: Path) -> None:
    """StageError if the server says other things than the policy did when it was trained."""
    probe = json.loads(path.read_text())
    length = min(len(probe["completion_ids"]), server.facts.max_model_len - 1 - len(probe["prompt_ids"]))
    if length < 2:
        return
    ids = probe["prompt_ids"] + probe["completion_ids"][:length]
    said = np.array((await server.prompt_logprobs(server.serving, ids))[-length:])
    trained = np.array(probe["logprobs"][:length])
    off = float(np.abs(said - trained).mean())
    if not off < FURTHEST[server.facts.dtype]:
        raise StageError(f"{server.url} does not serve the policy of {path.parent}: its logprobs of a stored "
                         f"completion are off by {off:.2g} nats. Start it anew, on a machine that sees this "
                         "run's folder. Nothing was sampled.")
    if probe["logprobs_before"] and is_former(said, trained, np.array(probe["logprobs_before"][:length])):
        raise StageError(f"{server.url} serves a policy that is older than {path.parent}. Start it anew, on "
                         "a machine that sees this run's folder. Nothing was sampled.")


def is_former(said: np.ndarray, trained: np.ndarray, before: np.ndarray) -> bool:
    """Whether logprobs are those of the policy before the training rather than those after it, all [n].

    Projected on the line from `before` (0) to `trained` (1). False where what is off that line, the noise of
    half precision, is too large to tell: then the two policies are as good as the same.
    """
    step, way = trained - before, said - before
    length = float(step @ step)
    if length < len(step) * SMALLEST ** 2:
        return False
    share = float(way @ step) / length
    noise = float(np.square(way - share * step).sum() / (len(said) - 1) / length) ** 0.5
    return share < 0.5 and noise < 1 / 6


def _same_base(facts: Facts, base: str, revision: str | None) -> bool:
    """By name and commit on the hub; a folder by its place, or by its hash where it can be read here."""
    if revision or not Path(base).is_dir():
        return facts.model == base and facts.revision == revision
    theirs, ours = Path(facts.model), Path(base)
    if theirs.resolve() == ours.resolve():
        return True
    return (theirs / "config.json").is_file() and (
        find_model(str(theirs), theirs.parent).sha256 == find_model(str(ours), ours.parent).sha256)


def _named(model: str, revision: str | None) -> str:
    return f"{model} at {revision}" if revision else model
