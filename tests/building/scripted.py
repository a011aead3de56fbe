"""A scripted engine and prompt encoder, for tests of everything around vLLM."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling


class ScriptedEncoder:
    """One token per byte of '<role>content' for each turn; 1,024 tokens at most."""

    def __init__(self, model: str) -> None:
        self.model_length = 1024

    def __call__(self, messages: list[dict[str, str]], prefill: str) -> tuple[str, list[int]]:
        prompt = self.render(messages, ask=True) + prefill
        return prompt, list(prompt.encode())

    def render(self, messages: list[dict[str, str]], *, ask: bool) -> str:
        return "".join(f"<{turn['role']}>{turn['content']}" for turn in messages) + "<assistant>" * ask

    def encode_places(self, text: str) -> tuple[list[int], list[int]]:
        return list(text.encode()), list(range(len(text)))


class ScriptedEngine:
    """Answers depend on the request's seed alone; completions finish in an order of their own."""

    engine, dtype, device, logprobs_mode = "scripted 1", "float32", "cpu", "processed_logprobs"
    started: list[EngineSettings]
    served: list[Request]

    def __init__(self, stop_after: int | None = None) -> None:
        self.started, self.served, self.stop_after = [], [], stop_after

    def start(self, settings: EngineSettings) -> ScriptedEngine:
        self.started.append(settings)
        return self

    def moves(self, prompt_ids: list[int]) -> bool:
        return True

    def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Sampled]:
        waiting = list(requests)
        random.Random(len(waiting)).shuffle(waiting)
        for count, request in enumerate(waiting):
            if count == self.stop_after:
                raise KeyboardInterrupt
            self.served.append(request)
            draw = random.Random(request.seed)
            length = draw.randint(1, sampling.max_tokens)
            ids = [draw.randrange(97, 123) for _ in range(length)]
            yield Sampled(request.index, ids, [-draw.random() for _ in ids], bytes(ids).decode(),
                          "length" if length == sampling.max_tokens else "stop")
