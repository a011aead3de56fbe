"""The prompts for tasks of published benchmarks, and the entry point found in their texts."""

import re

from warehouse.store.errors import StageError

# Changed wording makes other prompts, and rows of different runs would differ.
ASK = {"program": "Answer with one self-contained Python program in a single ```python block.",
       "number": "Think step by step and end with the answer, a number, in \\boxed{}.",
       "expression": "Think step by step and end with the answer in \\boxed{}.",
       "tag": "Write the final answer, and nothing else, between <answer> and </answer>.",
       "answer": "End with a line that reads `Answer:` and the answer."}


def ask(question: str, form: str, more: str = "") -> list[dict[str, str]]:
    """A question as chat messages, with the requested form of the answer (a key of ASK)."""
    content = f"{question}\n{ASK[form]}" + (f" {more}" if more else "")
    return [{"role": "user", "content": content}]


def mbpp_entry_point(code: str, test: str, where: str) -> str:
    """The last function of a program that its first test calls; StageError if there is none."""
    called = [name for name in re.findall(r"def\s+(\w+)\s*\(", code) if re.search(rf"\b{name}\s*\(", test)]
    if not called:
        raise StageError(f"{where}: the first test calls no function of the program. Correct it.")
    return called[-1]
