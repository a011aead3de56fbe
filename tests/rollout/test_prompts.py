"""Prompts: formats, grid encoders, augmentation, and the draw that decides them."""

import hashlib
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AddedToken, PreTrainedTokenizerFast

from rollout.options import RolloutOptions
from rollout.prompts.formats import COLOR_NAMES, FORMATS, find_format, grid_encoder, own_messages
from rollout.prompts.plan import PlanSettings, draw_augmentation, make_plan
from rollout.prompts.prompt_encoder import PromptEncoder
from rollout.settings import format_options
from tests.building.runs import STARTER, TURN
from tests.building.scripted import ScriptedEncoder
from tests.building.texts import THOUGHTS
from warehouse.store.errors import StageError
from warehouse.tasks.augmentation import augment
from warehouse.tasks.task_files import grid_task

GRIDS = st.integers(1, 5).flatmap(lambda width: st.lists(
    st.lists(st.integers(0, 9), min_size=width, max_size=width), min_size=1, max_size=5))
ENCODERS = ["digits", "names"]


def read_back(text: str, name: str) -> list[list[int]]:
    """The grid of an encoded text, by a reader written for the test."""
    numbers = {color: number for number, color in enumerate(COLOR_NAMES)}
    return [list(map(int, line)) if name == "digits" else [numbers[cell] for cell in line.split()]
            for line in text.split("\n")]


@pytest.mark.parametrize("name", ENCODERS)
@given(grid=GRIDS)
def test_an_encoded_grid_can_be_read_back(name: str, grid: list[list[int]]) -> None:
    assert read_back(grid_encoder(name)(grid), name) == grid


def test_unknown_encoders_are_refused() -> None:
    with pytest.raises(StageError, match=r"Unknown grid encoder 'names\+frame'"):
        grid_encoder("names+frame")


def test_compact_prompt_text() -> None:
    pairs = [{"input": [[1, 2]], "output": [[2], [1]]}]
    messages = FORMATS["compact@1"].render(pairs, [[0]], {})
    assert messages == [{"role": "user", "content": "In\n12\nOut\n2\n1\n"}]


def test_chat_prompt_text() -> None:
    options = {**find_format("chat").options, "encoder": "names", "intro": "Look.", "request": "Go."}
    messages = FORMATS["chat@1"].render([{"input": [[1, 2]], "output": [[2], [1]]}], [[0]], options)
    assert [turn["role"] for turn in messages] == ["system", "user"]
    assert messages[1]["content"] == (
        "Look.\nExample 1\nInput:\nBlue Red\n\nOutput:\nRed\nBlue\n\nTest input:\nBlack\n\nGo.")


def test_a_last_assistant_turn_of_a_task_is_continued() -> None:
    messages, prefill = own_messages('[{"role":"user","content":"q"},{"role":"assistant","content":"Let"}]')
    assert (messages, prefill) == ([{"role": "user", "content": "q"}], "Let")


TERSE = """
def terse(pairs, test_input, request="Go.", prefill="So"):
    if request == "fail":
        raise ValueError("no request")
    if request == "nothing":
        return None
    return f"{len(pairs)} pairs, {test_input}: {request}"
"""


def test_a_format_of_the_users_own_shows_what_its_function_says(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TERSE)
    mine = find_format(f"{tmp_path}/mine.py:terse")
    rows = plan_rows(format=mine, format_options={**mine.options, "request": "Now!"})
    digest = hashlib.sha256(TERSE.encode()).hexdigest()[:16]
    assert {row["prompt_format"] for row in rows} == {f"terse@{digest}"}
    assert "2 pairs, [[" in rows[0]["prompt"] and "]]: Now!" in rows[0]["prompt"]
    assert rows[0]["prefill"] == "So" and rows[0]["shown_test"] == 0


@pytest.mark.parametrize(("name", "options", "sentence"), [
    ("terse", {"request": "fail"}, r"terse in .*mine.py raised ValueError: no request \(line 4\)"),
    ("terse", {"request": "nothing"}, "returned 'None', neither a text nor a list of messages"),
    ("lean", {}, "mine.py defines no function 'lean'"),
    ("bare", {}, r"takes \(pairs, test_input\) and options with texts as defaults"),
])
def test_mistakes_in_a_format_are_one_sentence(tmp_path: Path, name: str, options: dict[str, str],
                                               sentence: str) -> None:
    (tmp_path / "mine.py").write_text(TERSE + "\ndef bare(pairs, test, number=3): return ''\n")
    with pytest.raises(StageError, match=sentence):
        mine = find_format(f"{tmp_path}/mine.py:{name}")
        plan_rows(format=mine, format_options={**mine.options, **options})


def settings_of(**values) -> PlanSettings:
    chat = FORMATS["chat@1"]
    options = RolloutOptions(Path("run"), prompts_per_task=8, group_size=2, augmentation="all",
                             shuffle_pairs=True, seed=values.pop("seed", 1))
    settings = {"options": options, "iteration": 0, "purpose": "train", "max_prompt_tokens": 5000,
                "format": chat, "format_options": {**chat.options, "encoder": "digits"}}
    return PlanSettings(**{**settings, **values})


def plan_rows(**values) -> list[dict]:
    task = grid_task("t", TURN, where="here")
    row = {"task_id": "t", "split": "train", "messages": None, "payload": task.payload}
    return make_plan([row], settings_of(**values), ScriptedEncoder("")).rows


def test_stored_columns_say_exactly_what_was_shown() -> None:
    for row in plan_rows():
        shown = re.findall(r"Input:\n(.*?)\n\nOutput:\n(.*?)\n\n", row["prompt"], flags=re.DOTALL)
        assert len(shown) == 2
        for position, texts in zip(row["pair_order"], shown, strict=True):
            for side, text in zip(("input", "output"), texts, strict=True):
                grid = [list(map(int, line)) for line in text.split("\n")]
                original = np.array(TURN["train"][position][side])
                assert grid == augment(original, row["flip"], row["rotations"], row["color_map"]).tolist()


def test_the_draw_depends_on_seed_iteration_and_index_alone() -> None:
    assert plan_rows() == plan_rows()
    assert plan_rows()[3]["prompt_ids"] != plan_rows(seed=2)[3]["prompt_ids"]
    assert plan_rows()[3]["seed"] != plan_rows(iteration=1)[3]["seed"]


def test_evaluations_of_all_policies_draw_alike() -> None:
    first, later = (plan_rows(purpose="eval-heldout", iteration=iteration) for iteration in (0, 10))
    assert [row["seed"] for row in first] == [row["seed"] for row in later]
    assert [row["prompt_ids"] for row in first] == [row["prompt_ids"] for row in later]
    assert {row["group_id"] for row in first}.isdisjoint(row["group_id"] for row in later)
    assert first[3]["seed"] != plan_rows(purpose="eval-again")[3]["seed"]


def test_colour_permutations_keep_black_nine_times_in_ten() -> None:
    draw = random.Random(0)
    maps = [draw_augmentation(draw, "colors")["color_map"] for _ in range(2000)]
    assert all(sorted(color_map) == list(range(10)) for color_map in maps)
    assert 0.89 < np.mean([color_map[0] == 0 for color_map in maps]) < 0.93   # .9 + .1/10


def test_no_augmentation_is_the_identity() -> None:
    assert draw_augmentation(random.Random(0), "none") == {
        "flip": False, "rotations": 0, "color_map": list(range(10))}


def test_a_switch_of_the_chat_template_reaches_it_and_is_stored() -> None:
    template = ("{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% endfor %}<assistant>"
                "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(STARTER)
    tokenizer.chat_template = template
    encoder = PromptEncoder(tokenizer, {"max_position_embeddings": 1024})
    assert encoder.reads("enable_thinking") and not encoder.reads("thinking") and not encoder.reads("colour")
    task = {"task_id": "a", "split": "train", "messages": json.dumps([{"role": "user", "content": "1"}])}
    plan = make_plan([task], settings_of(chat_options={"enable_thinking": False}),
                     encoder.switched({"enable_thinking": False}))
    assert plan.rows[0]["prompt"] == "<user>1<assistant><think></think>"
    assert json.loads(plan.rows[0]["format_options"]) == {"chat_template": {"enable_thinking": False}}
    assert make_plan([task], settings_of(), encoder).rows[0]["prompt"] == "<user>1<assistant>"


def test_format_options_are_told_apart_from_those_of_the_template() -> None:
    given = ("encoder=names", "enable_thinking=false", "effort=low")
    options = SimpleNamespace(prompt_format="chat", format_options=given)
    own, switches = format_options(options)
    assert own["encoder"] == "names" and switches == {"enable_thinking": False, "effort": "low"}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(("start", "end"), THOUGHTS.values(), ids=THOUGHTS)
def test_marks_of_thoughts_stay_in_the_text_although_they_are_special_tokens(start: str, end: str,
                                                                             special: bool) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(STARTER)
    tokens = re.findall(r"<.+?>|\[.+?\]", start + end)
    tokenizer.add_tokens([AddedToken(token, special=special) for token in tokens], special_tokens=special)
    encoder = PromptEncoder(tokenizer, {})
    text = f"{start}grid = 1{end}```python\ngrid\n```"
    ids = encoder.encode(f"{text}<|im_end|>")
    assert encoder.decode(ids) == text and encoder.decode(ids[:3]) == text[:len(encoder.decode(ids[:3]))]
    assert encoder.decode(encoder.encode("<|im_end|>grid")) == "grid" and encoder.decode([]) == ""


@pytest.mark.parametrize(("behind", "end"), [
    ("<|im_end|>\n", "<|im_end|>"), (" \n", "<|endoftext|>"), ("", "<|endoftext|>")])
def test_a_turn_ends_with_the_templates_token_else_with_the_tokenizers(behind: str, end: str) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(STARTER, eos_token="<|endoftext|>")    # as Gemma's
    tokenizer.chat_template = ("{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}"
                               f"{behind}{{% endfor %}}")
    assert PromptEncoder(tokenizer, {}).end_id == tokenizer.convert_tokens_to_ids(end)
