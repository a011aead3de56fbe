"""A scripted engine and prompt encoder, for tests of everything around vLLM."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rollout.cli import default_options
from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling
from rollout.prompts.prompt_encoder import PromptEncoder
from rollout.run import run_rollout
from rollout.start import Sampler
from warehouse.store.run_folder import Warehouse


class ScriptedEncoder:
    """One token per byte of '<role>content' for each turn; 1,024 tokens at most."""

    def __init__(self, model: str) -> None:
        self.model_length = 1024

    def reads(self, _name: str) -> bool:
        """It has no template."""
        return False

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
        self.at_once, self.num_drawn = 1000, 0

    def prompt_logprobs(self, ids: list[int]) -> list[float]:
        """What the probe of the policy says, as an engine that serves it would: [len(ids) - 1] nats."""
        stored = json.loads(Path(str(self.started[-1].probe)).read_text(encoding="utf-8"))
        before = len(stored["prompt_ids"]) - 1
        return [0.0] * before + stored["logprobs"][:len(ids) - 1 - before]

    def start(self, settings: EngineSettings) -> ScriptedEngine:
        self.started.append(settings)
        return self

    def moves(self, prompt_ids: list[int]) -> bool:
        return True

    def sample(self, requests: Iterable[Request], sampling: Sampling,
               over: Callable[[], bool] | None = None) -> Iterator[Sampled | Request | None]:
        if over:
            yield from self._sample_together(requests, sampling, over)
            return
        waiting = list(requests)
        random.Random(len(waiting)).shuffle(waiting)
        for count, request in enumerate(waiting):
            if count == self.stop_after:
                raise KeyboardInterrupt
            self.served.append(request)
            yield self.finished(request, sampling)

    def finished(self, request: Request, sampling: Sampling) -> Sampled:
        """The whole completion: the same wherever it was broken off."""
        draw = random.Random(request.seed)
        length = draw.randint(1, sampling.max_tokens)
        ids = [draw.randrange(97, 123) for _ in range(length)]
        logprobs = [-draw.random() for _ in ids]
        assert ids[:len(request.drawn_ids)] == request.drawn_ids
        return Sampled(request.index, ids, logprobs, bytes(ids).decode(),
                       "length" if length == sampling.max_tokens else "stop")

    def _sample_together(self, requests: Iterable[Request], sampling: Sampling,
                         over: Callable[[], bool]) -> Iterator[Sampled | Request | None]:
        """A token of each of `at_once` completions per step."""
        waiting, inside = list(requests)[::-1], list[list[Any]]()
        while waiting or inside:
            while waiting and len(inside) < self.at_once:
                self.served.append(waiting.pop())
                inside.append([self.served[-1], self.finished(self.served[-1], sampling),
                               len(self.served[-1].drawn_ids)])
            if over():
                for request, whole, drawn in inside:
                    yield replace(request, drawn_ids=whole.completion_ids[:drawn],
                                  drawn_logprobs=whole.logprobs[:drawn])
                return
            for each in inside:
                each[2] += 1
                self.num_drawn += 1
                if each[2] == len(each[1].completion_ids):
                    yield each[1]
            inside = [each for each in inside if each[2] < len(each[1].completion_ids)]
            yield None


def sample(warehouse: Warehouse, engine: ScriptedEngine | None = None, **options: Any) -> list[str]:
    """Roll out the iteration that is due, in groups of four, two to a part; what was said of it."""
    small = {"sampling": Sampling(max_tokens=20), "group_size": 4, "prompt_format": "compact", "part_size": 8}
    return list(run_rollout(default_options(warehouse.root).replace(**{**small, **options}),
                            scripted_sampler(engine or ScriptedEngine())))


def scripted_sampler(engine: ScriptedEngine) -> Sampler:
    return Sampler(cast(PromptEncoder, ScriptedEncoder("")), engine.start)
