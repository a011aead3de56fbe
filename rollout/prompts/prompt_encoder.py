"""Chat messages to a prompt's text and token ids, by the model's own chat template; ids to text."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from rollout.prompts.formats import Messages
from warehouse.store.errors import StageError


class PromptEncoder:
    """Encodes with a tokenizer of transformers' kind; `model_length` is how many tokens the model holds."""

    def __init__(self, tokenizer: Any, config: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.model_length: int = (config.get("text_config") or config)["max_position_embeddings"]

    def __call__(self, messages: Messages, prefill: str) -> tuple[str, list[int]]:
        """Prompt text and ids; a prefill is an assistant turn left open. No token is added twice."""
        turns: list[Any] = [*messages, {"role": "assistant", "content": prefill}] if prefill else [*messages]
        try:
            prompt = str(self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=not prefill,
                continue_final_message=bool(prefill)))
        except (ValueError, TemplateError) as error:
            raise StageError(f"The model's chat template cannot render the prompt: {error}. If it takes no "
                             "system turn, leave it out with --format-option system=; a model without a "
                             "chat template needs one.") from error
        return prompt, self.encode(prompt)

    def encode(self, text: str) -> list[int]:
        """Ids of a text. A template writes its special tokens (BOS too) as text; none may be added again."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: list[int]) -> str:
        """Text of a completion, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)
