"""Chat messages to a prompt's text and token ids, by the model's chat template; ids to text."""

import copy
import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rollout.prompts.formats import Messages
from warehouse.stages.base_model import download
from warehouse.store.errors import StageError
from warehouse.tasks.answers import MARK

LENGTHS = ("max_position_embeddings", "model_max_length", "max_sequence_length", "max_seq_len", "n_positions",
           "seq_length")
UNLIMITED = 1 << 20     # for a purely recurrent model
RENDERING = 60          # seconds for one prompt; a template is foreign code and may loop


@contextmanager
def at_most(seconds: int, what: str) -> Iterator[None]:
    """StageError if the body takes longer; outside of the main thread there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise StageError(f"{what} for more than {seconds} seconds. Fix it, or use another model.")
    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class PromptEncoder:
    """Encodes with a transformers tokenizer; `model_length` is the model's context length."""

    def __init__(self, tokenizer: Any, config: dict[str, Any]) -> None:
        self.tokenizer, self.switches = tokenizer, dict[str, Any]()
        known = config.get("text_config") or config
        self.model_length: int = next((known[name] for name in LENGTHS if known.get(name)), UNLIMITED)

    @cached_property
    def end_id(self) -> int | None:
        """The token that ends a turn of the model: the template's, else the tokenizer's, None without one.

        Gemma's template ends turns with another token than its tokenizer ends texts with.
        """
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "@42@"}]
        behind = self.encode(self.render(turns, ask=False).partition("@42@")[2])
        return next(filter(self._is_special, behind), self.tokenizer.eos_token_id)

    def reads(self, name: str) -> bool:
        """True if the chat template mentions a variable such as `enable_thinking`."""
        return bool(re.search(rf"\b{re.escape(name)}\b", str(self.tokenizer.chat_template or "")))

    def switched(self, switches: dict[str, Any]) -> "PromptEncoder":
        """A copy of the encoder that passes these values to the chat template."""
        other = copy.copy(self)
        other.switches = {**self.switches, **switches}
        return other

    def __call__(self, messages: Messages, prefill: str) -> tuple[str, list[int]]:
        """Prompt text and ids; a prefill is an open assistant turn. No token is added twice."""
        turns = [*messages, {"role": "assistant", "content": prefill}] if prefill else messages
        prompt = self.render(turns, ask=not prefill, go_on=bool(prefill))
        return prompt, self.encode(prompt)

    def render(self, messages: Messages, *, ask: bool, go_on: bool = False) -> str:
        """Render the messages: `ask` opens an assistant turn, `go_on` leaves the last one open."""
        turns: list[Any] = [*messages]
        try:
            with at_most(RENDERING, "The model's chat template renders a prompt"):
                return str(self.tokenizer.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=ask, continue_final_message=go_on,
                    **self.switches))
        except (ValueError, TemplateError) as error:
            raise StageError(f"The model's chat template cannot render the prompt: {error}. If it takes no "
                             "system turn, leave it out with --format-option system=; a model without a "
                             "chat template needs one.") from error

    def encode(self, text: str) -> list[int]:
        """Ids of a text. A template writes its special tokens (also BOS) as text; none may be added again.

        Not `verbose`, which would warn about prompts that are too long: these are left out and counted.
        """
        return self.tokenizer.encode(text, add_special_tokens=False, verbose=False)

    def encode_places(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a text, and the character position where each begins."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded["input_ids"], [first for first, _ in encoded["offset_mapping"]]

    @cached_property
    def marks(self) -> dict[int, str]:
        """Special tokens that tell thoughts from the answer."""
        return {number: token for token, number in self.tokenizer.get_vocab().items()
                if token[:1] in "<[" and MARK.fullmatch(token) and self._is_special(number)}

    def _is_special(self, number: int) -> bool:
        return not self.tokenizer.decode([number], skip_special_tokens=True)

    def decode(self, ids: list[int]) -> str:
        """Text of ids, of special tokens only the marks."""
        pieces, start = list[str](), 0
        for place in [place for place, number in enumerate(ids) if number in self.marks] + [len(ids)]:
            pieces += [self.tokenizer.decode(ids[start:place], skip_special_tokens=True),
                       *(self.marks[number] for number in ids[place:place + 1])]
            start = place + 1
        return "".join(pieces)


def load_encoder(model: str, revision: str | None) -> PromptEncoder:
    """The encoder of a model folder, or of a hub model at its commit."""
    folder = Path(model) if Path(model).is_dir() else download(model, revision)
    if (folder / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast as Tokenizer
    else:
        from transformers import AutoTokenizer as Tokenizer  # converts; imports torch
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return PromptEncoder(Tokenizer.from_pretrained(folder), config)
