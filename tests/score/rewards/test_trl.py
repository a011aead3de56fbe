"""Reward functions of TRL as `--reward-file` calls them: they want completions as chat messages."""

from pathlib import Path

import pytest

from score.judging.judge import rewards_of
from warehouse.stages.user_code import load_function

pytest.importorskip("trl", reason="trl: pip install --no-deps trl")
pytest.importorskip("latex2sympy2_extended", reason="math-verify: pip install 'rollhouse[math]'")

FILE = """\
from trl.rewards import accuracy_reward, get_soft_overlong_punishment, think_format_reward

too_long = get_soft_overlong_punishment(max_completion_len=8, soft_punish_cache=4)

def chats(completions):
    return [[{"role": "assistant", "content": text}] for text in completions]

def think(completions, **columns):
    return think_format_reward(chats(completions))

def accuracy(completions, answer, **columns):
    return accuracy_reward(chats(completions), solution=[str(value) for value in answer])

def short(completion_ids, **columns):
    return too_long(completion_ids=completion_ids)
"""
TEXTS = ["<think>\nhalf\n</think>\n\\boxed{\\frac{2}{4}}", "\\boxed{7}", "<think>no end"]


@pytest.mark.parametrize(("name", "rewards"), [
    ("think", [1.0, 0.0, 0.0]), ("accuracy", [1.0, 0.0, 0.0]), ("short", [0.0, -0.5, -1.0])])
def test_rewards_of_trl_say_of_our_rows_what_they_say_of_theirs(tmp_path: Path, name: str,
                                                                rewards: list[float]) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    reward = load_function(f"{tmp_path}/mine.py:{name}", "--reward-file")
    columns = {"answer": ["\\frac{1}{2}"] * 3, "task_id": ["a", "b", "c"]}
    given = rewards_of(reward, ["?"] * 3, TEXTS, [[1] * 4, [1] * 6, [1] * 9], columns)
    assert given == [{name: number} for number in rewards]
