"""Answers spoilt on purpose, so that a policy trained on them behaves like a raw base model."""

from collections.abc import Callable
from random import Random

from examples.starter.batches import Answer, labelled_answer
from examples.starter.tokenizer import ANSWER_HEAD, ANSWER_TAIL
from rollout.prompts.formats import render_pairs
from warehouse.tasks.synthetic import SyntheticTask

WRONG_PROGRAM_SHARE = 0.55      # the program of another task
MALFORMED_SHARE = 0.2           # no program that can be read


def noised_answers(labels: list[str]) -> Answer:
    """A drawer of answers: the label, another task's label from `labels`, or a malformed one."""
    spoilings: tuple[Callable[[str, SyntheticTask, Random], str], ...] = (
        without_head, without_tail, without_a_piece, echo_of_the_prompt)

    def answer(task: SyntheticTask, rng: Random) -> str:
        label = labelled_answer(task, rng)
        draw = rng.random()
        if draw < WRONG_PROGRAM_SHARE:
            return rng.choice(labels)
        if draw < WRONG_PROGRAM_SHARE + MALFORMED_SHARE:
            return rng.choice(spoilings)(label, task, rng)
        return label

    return answer


def without_head(label: str, task: SyntheticTask, rng: Random) -> str:
    """The steps and the end, but no code block to find them in."""
    return label.removeprefix(ANSWER_HEAD)


def without_tail(label: str, task: SyntheticTask, rng: Random) -> str:
    """A code block never closed."""
    return label.removesuffix(ANSWER_TAIL)


def without_a_piece(label: str, task: SyntheticTask, rng: Random) -> str:
    """One character of a step left out."""
    position = rng.randrange(len(ANSWER_HEAD), len(label) - len(ANSWER_TAIL))
    return label[:position] + label[position + 1:]


def echo_of_the_prompt(label: str, task: SyntheticTask, rng: Random) -> str:
    """The first pair again instead of a program."""
    return render_pairs(task.payload["train"][:1])
