"""One vLLM server: what it reports about itself, and the requests that a run sends it."""

import asyncio
import json
import platform
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from rollout.endpoint.failures import Refused, Unavailable, message_of, seconds_to_wait
from rollout.endpoint.gate import LOCAL
from rollout.engines.engine import EngineSettings, Request, Sampling
from rollout.engines.stopping import REASONS, Drawn, draw_parameters, likely, next_draw
from warehouse.store.errors import StageError

MOST_BYTES = 32 * 2**20          # of an unpacked answer: a server may be anyone's, and may send without end
TOKEN_BYTES = 512                # more for each token with its logprob
IMPOSSIBLE = -9999.0             # a server's value for the logprob -inf, which JSON cannot hold
SHORTEST_KEY = 8                 # characters; a shorter key may be an ordinary word
PATIENCE = 20.0                  # seconds to wait for a small answer


class Server:
    """A server at `url`; any request may be repeated."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session
        host = urlsplit(url).hostname or url
        self.host = platform.node() if host in LOCAL else host
        self.sleeps = False              # whether it can give up its GPU for a while
        self.base = self.serving = ""    # model names of the base, and of the policy to sample
        self.life, self.lost = 0, ""     # number of restarts; why the server is given up
        self.recovering = asyncio.Lock()
        self.under_way: set[asyncio.Task[Any]] = set()

    async def ask(self, path: str, body: Any = None, *, seconds: float | None = None,
                  most: int = MOST_BYTES) -> Any:
        """The answer to GET or, with a body, POST. Unavailable, or StageError if the server refuses.

        At most `most` bytes are read; the key is removed from the text.
        """
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=PATIENCE)
        method = "GET" if body is None else "POST"
        try:
            async with self.session.request(method, self.url + path, json=body, timeout=timeout,
                                            allow_redirects=False) as answer:
                text = self._without_key(await read_text(answer.content.iter_any(), most))
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(_unreachable(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError) as error:
            raise Unavailable(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if answer.status >= 500 or answer.status in (404, 408, 429):
            raise Unavailable(f"{answer.status} for {path}: {message_of(text)}", status=answer.status,
                              after=seconds_to_wait(answer.headers.get("Retry-After")))
        if 300 <= answer.status < 400:
            raise Refused(f"{self.url} sends {path} elsewhere, to {answer.headers.get('Location')}. Name "
                          "that address.", answer.status)
        if answer.status >= 400:
            raise Refused(f"{self.url} refuses {path}: {message_of(text)}", answer.status)
        try:
            is_json = answer.content_type == "application/json" or text.startswith("{")  # some send no type
            return json.loads(text) if is_json else text
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"its answer to {path} is not JSON, or half of one: {text[:100]}") from error

    def _without_key(self, text: str) -> str:
        key = self.session.headers.get("Authorization", "").removeprefix("Bearer ")
        return text.replace(key, "***") if len(key) >= SHORTEST_KEY else text

    async def introduce(self) -> None:
        """Read what the server reports about itself; StageError if it does not report it."""
        try:
            info = await self.ask("/server_info?config_format=json", seconds=120)  # slow on the first call
        except Unavailable as error:
            raise StageError(f"{self.url} does not say how it samples ({error}). Start it with "
                             "VLLM_SERVER_DEV_MODE=1 in its environment.") from error
        config = info["vllm_config"]
        model, lora = config["model_config"], config.get("lora_config") or {}
        own = {name: model[name] for name in ("generation_config", "logits_processors")
               if model.get(name) not in (None, [], "vllm")} | (model.get("override_generation_config") or {})
        gpus = (info.get("system_env") or {}).get("nvidia_gpu_models") or ""
        device = config["device_config"]["device"]
        self.model, self.revision = str(model["model"]), model.get("revision")
        self.dtype: str = model["dtype"].removeprefix("torch.")
        self.device = gpus.splitlines()[0].partition(": ")[2] if gpus and device != "cpu" else device
        self.quantization, self.logprobs_mode = model.get("quantization"), model["logprobs_mode"]
        self.own_defaults = ", ".join(f"{name}={value}" for name, value in own.items())    # of sampling
        self.max_model_len: int = model["max_model_len"]
        self.max_lora_rank: int = lora.get("max_lora_rank", 0)      # 0 if it takes no adapters
        self.sleeps = bool(model.get("enable_sleep_mode"))

    async def wake(self) -> None:
        """Wake the server if it sleeps; StageError if it is not a vLLM server."""
        version, state = [await self._look_for(path) for path in ("/version", "/is_sleeping")]
        if not isinstance(version, dict):
            raise StageError(f"{self.url} is not a vLLM server: it answers with {version[:40]!a}. Correct "
                             "the address. A model behind another API is named with --api-model.")
        self.version = version["version"]
        if isinstance(state, dict) and state.get("is_sleeping"):    # exists only in development mode
            await self.ask("/wake_up", {})

    async def _look_for(self, path: str) -> Any:
        try:
            return await self.ask(path, seconds=PATIENCE)
        except Unavailable as error:
            if error.status != 404:
                raise
            return str(error)

    async def load(self, settings: EngineSettings) -> None:
        """Have it serve base, adapter or other weights of the same shape, under a name derived from them.

        A server that takes adapters keeps its base weights; any other server gets the weights.
        """
        models = (await self.ask("/v1/models", seconds=PATIENCE))["data"]
        self.serving = self.base = next(card["id"] for card in models if not card.get("parent"))
        if settings.adapter:
            policy = json.loads(Path(settings.adapter, "policy.json").read_text(encoding="utf-8"))
            self.serving = f"policy-{policy['policy_version']}-{policy['sha256'][:12]}"
            loaded = {card["id"]: card["root"] for card in models if card.get("parent")}
            if loaded.get(self.serving) != settings.adapter:     # a copy of the run may have loaded another
                await self._change("/v1/load_lora_adapter",
                                   {"lora_name": self.serving, "lora_path": settings.adapter,
                                    "load_inplace": self.serving in loaded},
                                   "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", settings.adapter)
        elif not self.max_lora_rank:
            await self._change("/collective_rpc", {
                "method": "reload_weights", "kwargs": {"weights_path": settings.model}},
                "VLLM_SERVER_DEV_MODE=1", settings.model)
            await self.ask("/reset_prefix_cache", {})

    async def _change(self, path: str, body: dict[str, Any], variable: str, folder: str) -> None:
        try:
            await self.ask(path, body)
        except Unavailable as error:
            raise StageError(f"{self.url} could not load {folder}: {error}. It needs {variable} in its "
                             "environment and must see the folder under the same path.") from error

    async def prompt_logprobs(self, name: str, prompt_ids: list[int]) -> list[float]:
        """Logprobs of a prompt's tokens after the first, under the model `name`."""
        answer = await self.ask("/v1/completions", {
            "model": name, "prompt": prompt_ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0})
        rows = answer["choices"][0].get("prompt_logprobs") or []
        if len(rows) != len(prompt_ids):
            raise StageError(f"{self.url} gives no logprobs of a prompt. Start it as docs/endpoint.md says.")
        return [row[str(token)]["logprob"] for token, row in zip(prompt_ids[1:], rows[1:], strict=True)]

    async def complete(self, request: Request, sampling: Sampling) -> Drawn:
        """The result of one draw; Unavailable if it was aborted."""
        token_ids, seed, max_tokens = next_draw(request, sampling)
        task = asyncio.create_task(self.ask("/inference/v1/generate", {
            "model": self.serving, "token_ids": token_ids,
            "sampling_params": draw_parameters(sampling, seed, max_tokens)},
            most=MOST_BYTES + max_tokens * (1 + sampling.num_likely()) * TOKEN_BYTES))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        try:
            await asyncio.wait({task})       # unlike `await task`, this tells its end from the caller's
        finally:
            task.cancel()
        if task.cancelled():
            raise Unavailable("it no longer answers")
        [choice] = task.result()["choices"]
        ids, tokens = choice.get("token_ids") or [], (choice.get("logprobs") or {}).get("content") or []
        if choice["finish_reason"] not in REASONS:
            raise Unavailable(f"it aborted a completion ({choice['finish_reason']})")
        if not ids or len(ids) != len(tokens):
            raise StageError(f"{self.url} gives no token ids with their logprobs. It must be vLLM 0.20 or "
                             "newer.")
        logprobs = [token["logprob"] for token in tokens]
        if not sampling.num_likely():
            return Drawn(ids, logprobs, choice["finish_reason"], [])
        if "token_id" not in tokens[0]["top_logprobs"][0]:
            raise StageError(f"{self.url} returns no token ids of the --top-k candidates. It must be vLLM "
                             "0.32 or newer.")
        left = [likely(((each["token_id"], each["logprob"]) for each in [token, *token["top_logprobs"]]),
                       IMPOSSIBLE) for token in tokens]
        return Drawn(ids, [logprob - whole for logprob, (_, whole) in zip(logprobs, left, strict=True)],
                     choice["finish_reason"], [kept for kept, _ in left])


async def open_session(key: str) -> aiohttp.ClientSession:
    """Connections to any number of servers, with the key that they require, if any."""
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))


async def read_text(chunks: AsyncIterator[bytes], most: int) -> str:
    """The whole text of an answer; Unavailable if it is longer than `most` bytes."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > most:
            raise Unavailable(f"its answer is longer than {most / 2**20:.3g} MiB")
    return content.decode("utf-8", "replace")


def _unreachable(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no machine has that name"
    if isinstance(error.os_error, ConnectionRefusedError):
        return "nothing listens at that port"
    return f"{type(error).__name__}: {error}"
