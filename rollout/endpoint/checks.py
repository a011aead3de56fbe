"""Whether a run may sample from a server: the same base, tokenizer, precision and distribution."""

from pathlib import Path

from rollout.endpoint.server import PATIENCE, Server
from rollout.engines.engine import LOGPROBS_MODE, EngineSettings
from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.stages.base_model import find_model
from warehouse.store.errors import StageError

HALF = ("float16", "bfloat16")
TRIED = "def f(grid):\n    return [[1, 20, 345]]  # naïve, 東京 <|im_end|>\n"


def check_alike(servers: list[Server]) -> None:
    """StageError if the servers would sample rows that differ in more than the random draw."""
    first = servers[0]
    for server in servers[1:]:
        for name in ("version", "dtype", "device", "max_lora_rank"):
            ours, theirs = getattr(first, name), getattr(server, name)
            if ours != theirs:
                raise StageError(f"The servers differ: {first.url} has {name} {ours}, {server.url} has "
                                 f"{theirs}. Sample from equal ones.")


def check_facts(server: Server, base: str, revision: str | None, settings: EngineSettings) -> None:
    """StageError if the run must not sample from a server, with the reason and the way out."""
    started = "Start the server with"
    for wrong, sentence in [
        (not _same_base(server, base, revision),
         f"serves {_named(server.model, server.revision)}, this run's base is {_named(base, revision)}. "
         "Start it with that."),
        (server.logprobs_mode != LOGPROBS_MODE,
         f"gives {server.logprobs_mode}, not those of the distribution that tokens are drawn from. "
         f"{started} --logprobs-mode {LOGPROBS_MODE}."),
        (server.own_defaults,
         f"has sampling defaults of its own ({server.own_defaults}), with which it would not sample from the "
         f"policy. {started} --generation-config vllm and nothing that overrides it."),
        (server.max_model_len < settings.max_model_len,
         f"holds {server.max_model_len} tokens, prompts and completions need {settings.max_model_len}. "
         f"{started} --max-model-len {settings.max_model_len} or more, or lower --max-tokens or "
         "--max-prompt-tokens."),
        (settings.dtype not in ("auto", server.dtype),
         f"runs in {server.dtype}, --dtype says {settings.dtype}. {started} --dtype {settings.dtype}."),
        (server.quantization != settings.quantization,
         f"has quantization {server.quantization}, --quantization says {settings.quantization}. "
         "Make them the same."),
        (settings.adapter and server.max_lora_rank < settings.adapter_rank,
         f"takes adapters up to rank {server.max_lora_rank}, the policy's has {settings.adapter_rank}. "
         f"{started} --enable-lora --max-lora-rank {settings.adapter_rank} or more, or use --serve merged "
         "with a server that has no --enable-lora."),
        (settings.adapter and server.device != "cpu" and server.dtype not in HALF,
         f"runs in {server.dtype} on a GPU, where vLLM's kernels for adapters take half precision only. "
         f"{started} --dtype bfloat16, or without --enable-lora for --serve merged."),
    ]:
        if wrong:
            raise StageError(f"{server.url} {sentence} Nothing was sampled.")


async def check_tokenizer(server: Server, encoder: PromptEncoder) -> None:
    """StageError if the server's tokenizer encodes a text differently from the run's."""
    body = {"model": server.base, "prompt": TRIED, "add_special_tokens": False}
    if (await server.ask("/tokenize", body, seconds=PATIENCE))["tokens"] != encoder.encode(TRIED):
        raise StageError(f"{server.url} has another tokenizer than this run: it reads a text as other "
                         "tokens. Start it with the run's own model. Nothing was sampled.")


def _same_base(server: Server, base: str, revision: str | None) -> bool:
    """Compare by name and commit on the hub; a folder by its path, or by its hash if it can be read here."""
    if revision or not Path(base).is_dir():
        return server.model == base and server.revision == revision
    theirs, ours = Path(server.model), Path(base)
    if theirs.resolve() == ours.resolve():
        return True
    return (theirs / "config.json").is_file() and (
        find_model(str(theirs), theirs.parent).sha256 == find_model(str(ours), ours.parent).sha256)


def _named(model: str, revision: str | None) -> str:
    return f"{model} at {revision}" if revision else model
