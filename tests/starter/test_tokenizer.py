"""The starter's tokenizer: remade it equals the committed one, loses nothing, spends one token per cell."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from examples.starter.batches import labelled_answer, prompt_text
from examples.starter.measure import MAX_TOKENS
from examples.starter.tokenizer import IM_END, build_tokenizer
from rollout.prompts.formats import render_pairs
from warehouse.tasks.synthetic import synthetic_tasks

STARTER = Path(__file__).parents[2] / "examples" / "starter"
TOKENIZER = build_tokenizer()


@pytest.mark.parametrize("model", ["model", "model-noised"])
def test_remade_equals_the_committed_one(model, tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (STARTER / model / name).read_text()


@given(st.text())
def test_any_text_comes_back(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_every_answer_comes_back_and_is_short():
    for task in synthetic_tasks(1000, seed=5):
        answer = labelled_answer(task)
        ids = TOKENIZER.encode(answer + IM_END, add_special_tokens=False)
        assert TOKENIZER.decode(ids, skip_special_tokens=True) == answer
        assert len(ids) <= MAX_TOKENS


def test_a_grid_costs_one_token_per_cell_and_line():
    pair = {"input": [[1, 2, 3], [4, 5, 6]], "output": [[0, 7]]}
    assert len(TOKENIZER.encode(render_pairs([pair]), add_special_tokens=False)) == (1 + 8) + (1 + 3)


def test_the_loaded_chat_template_gives_the_training_prompt():
    payload = next(synthetic_tasks(1, seed=5)).payload
    loaded = AutoTokenizer.from_pretrained(STARTER / "model")
    text = prompt_text(loaded, payload)
    assert text.startswith("<|im_start|>user\nIn\n") and text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    message = {"role": "user", "content": text.removeprefix("<|im_start|>user\n").split(IM_END)[0]}
    assert TOKENIZER.encode(text, add_special_tokens=False) == loaded.apply_chat_template(
        [message], add_generation_prompt=True, return_dict=False)
    assert loaded.eos_token == IM_END
