"""The tokens of a next turn, against what the chat template gives for the whole conversation."""

import itertools

import pytest

from rollout.prompts.next_turn import label, next_prompt
from rollout.prompts.prompt_encoder import PromptEncoder
from tests.building.runs import STARTER
from tests.building.texts import THOUGHTS
from warehouse.store.errors import StageError

QUESTION, ANSWER, FEEDBACK = "In\n12\nOut\n21\n", "```python\ng = 1\n```", "Wrong: expected\n21"
FORGETS = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
           "{{ m['content'].split('</think>')[-1] }}{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n"
           "{% endfor %}"
           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
RENAMES = ("{% for m in messages %}<|im_start|>{{ messages | length }}{{ m['content'] }}{% endfor %}"
           "{% if add_generation_prompt %}<|im_start|>{% endif %}")


@pytest.fixture
def encoder() -> PromptEncoder:
    from transformers import PreTrainedTokenizerFast
    return PromptEncoder(PreTrainedTokenizerFast.from_pretrained(STARTER), {"max_position_embeddings": 1024})


def parent_of(encoder: PromptEncoder, answer: str, *, prefill: str = "", ended: bool = True,
              segments: list | None = None) -> dict:
    """A first turn as it is stored."""
    prompt, ids = encoder([{"role": "user", "content": QUESTION}], prefill)
    sampled = encoder.encode(answer) + (encoder.encode("<|im_end|>") if ended else [])
    return {"prompt": prompt, "prompt_ids": ids, "prefill": prefill, "completion": answer,
            "completion_ids": sampled, "segments": segments}


@pytest.mark.parametrize(("prefill", "ended"), [
    ("", True), ("", False), ("```python\n", True), ("```python\n", False)])
def test_the_conversation_is_the_parents_tokens_and_then_what_the_template_adds(
        encoder: PromptEncoder, prefill: str, ended: bool) -> None:
    parent = parent_of(encoder, ANSWER, prefill=prefill, ended=ended)
    following = next_prompt(parent, FEEDBACK, encoder)
    sampled = [*parent["prompt_ids"], *parent["completion_ids"]]
    assert following["verbatim_prefix"] and following["prompt_ids"][:len(sampled)] == sampled
    whole = encoder.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": prefill + ANSWER},
         {"role": "user", "content": FEEDBACK}], tokenize=False, add_generation_prompt=True)
    assert following["prompt"] == whole and following["prompt_ids"] == encoder.encode(whole)


def test_segments_cover_the_prompt_and_say_whose_tokens_they_are(encoder: PromptEncoder) -> None:
    parent = parent_of(encoder, ANSWER)
    second = next_prompt(parent, FEEDBACK, encoder)
    kinds = [each["kind"] for each in second["segments"]]
    assert kinds == ["task", "policy", "template", "feedback", "template"]
    assert pieces(encoder, second)[1] == f"{ANSWER}<|im_end|>" and pieces(encoder, second)[3] == FEEDBACK
    sampled = encoder.encode("g<|im_end|>")
    third = next_prompt({"prompt": second["prompt"], "prompt_ids": second["prompt_ids"], "prefill": "",
                         "completion": "g", "completion_ids": sampled, "segments": second["segments"]},
                        "Again.", encoder)
    assert [each["kind"] for each in third["segments"]][5:] == ["policy", "template", "feedback", "template"]
    assert "".join(pieces(encoder, third)) == third["prompt"]


def pieces(encoder: PromptEncoder, following) -> list[str]:
    """The text of each segment; they follow each other without a gap."""
    ends = [each["start"] + each["length"] for each in following["segments"]]
    assert [0, *ends[:-1]] == [each["start"] for each in following["segments"]]
    assert ends[-1] == len(following["prompt_ids"])
    return [encoder.tokenizer.decode(following["prompt_ids"][start:end])
            for start, end in itertools.pairwise([0, *ends])]


def test_a_template_that_forgets_thoughts_gives_another_conversation_and_the_row_says_so(
        encoder: PromptEncoder) -> None:
    encoder.tokenizer.chat_template = FORGETS
    kept = next_prompt(parent_of(encoder, ANSWER), FEEDBACK, encoder)
    forgotten = next_prompt(parent_of(encoder, f"<think>hm</think>{ANSWER}"), FEEDBACK, encoder)
    assert kept["verbatim_prefix"] and not forgotten["verbatim_prefix"]
    assert forgotten["prompt"] == kept["prompt"] and forgotten["prompt_ids"] == kept["prompt_ids"]
    assert "".join(pieces(encoder, forgotten)) == forgotten["prompt"]


def test_a_template_that_refuses_thoughts_gets_the_answer(encoder: PromptEncoder) -> None:
    """As that of GPT-OSS."""
    start, end = THOUGHTS["GPT-OSS"]
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}"
        "{% if '<|channel|>' in m['content'] %}{{ raise_exception('tags') }}{% endif %}"
        "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    kept = next_prompt(parent_of(encoder, ANSWER), FEEDBACK, encoder)
    answered = next_prompt(parent_of(encoder, f"{start}hm{end}{ANSWER}"), FEEDBACK, encoder)
    assert kept["verbatim_prefix"] and not answered["verbatim_prefix"]
    assert answered["prompt"] == kept["prompt"] and answered["prompt_ids"] == kept["prompt_ids"]
    with pytest.raises(StageError, match="tags"):
        next_prompt(parent_of(encoder, "<|channel|>commentary"), FEEDBACK, encoder)


def test_a_template_that_rewrites_the_question_is_refused(encoder: PromptEncoder) -> None:
    encoder.tokenizer.chat_template = RENAMES
    with pytest.raises(StageError, match="writes a question differently once it is answered"):
        next_prompt(parent_of(encoder, ANSWER), FEEDBACK, encoder)


def test_blanks_that_a_template_strips_stay_as_they_were_sampled(encoder: PromptEncoder) -> None:
    encoder.tokenizer.chat_template = FORGETS.replace("split('</think>')[-1]", "strip()")
    parent = parent_of(encoder, f"{ANSWER}\n\n")
    following = next_prompt(parent, FEEDBACK, encoder)
    sampled = [*parent["prompt_ids"], *parent["completion_ids"]]
    assert following["verbatim_prefix"] and following["prompt_ids"][:len(sampled)] == sampled


def test_tokens_are_labelled_by_where_they_begin() -> None:
    segments = label("ab cd ab", [0, 1, 3, 4, 6, 7], [("task", "cd"), ("feedback", " ab ")])
    assert [(each["start"], each["length"], each["kind"]) for each in segments] == [
        (0, 2, "template"), (2, 2, "task"), (4, 2, "feedback")]
