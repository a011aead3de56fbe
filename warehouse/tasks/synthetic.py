"""Synthetic grid tasks with the programs that solve them, drawn from a seed: no data set needed."""

from collections.abc import Iterator
from functools import lru_cache
from random import Random
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from warehouse.tasks.synthetic_families import draw_steps
from warehouse.tasks.synthetic_inputs import Grid, InputStyle, draw_colors, draw_grid, draw_style

MAX_SIDE = 16               # of an output; inputs have at most 13
MAX_PAIR_DRAWS = 12         # inputs tried for a pair before the whole task is drawn again
PROGRAM_HEAD = "import numpy as np\n\ndef transform(grid):\n    g = np.array(grid)\n"


class SyntheticTask(NamedTuple):
    """A grid task and the steps of the program that made its outputs."""

    task_id: str
    payload: dict[str, list[dict[str, Any]]]    # {train: [{input, output}..], test: [..]}, grids as lists
    family: str
    steps: tuple[str, ...]                      # numpy expressions in g, one per line of the program

    @property
    def program(self) -> str:
        """Python source of `transform(grid)`: one line per step."""
        return PROGRAM_HEAD + "".join(f"    g = {step}\n" for step in self.steps) + "    return g"


def synthetic_tasks(num_tasks: int, seed: int) -> Iterator[SyntheticTask]:
    """Tasks 0..num_tasks-1 of the seed; task i does not depend on num_tasks."""
    for index in range(num_tasks):
        yield synthetic_task(index, seed)


def synthetic_task(index: int, seed: int) -> SyntheticTask:
    """Task `index` of the seed: two to four train pairs and one test pair."""
    rng = Random(f"synthetic task {index} of seed {seed}")
    while True:
        colors = draw_colors(rng)
        family, steps = draw_steps(rng, colors)
        style = draw_style(rng, family.inputs, colors)
        num_pairs = rng.randint(2, 4) + 1
        pairs = [pair for _ in range(num_pairs) if (pair := draw_pair(rng, style, steps))]
        if len(pairs) == num_pairs and not is_trivial(pairs, steps):
            payload = {"train": pairs[:-1], "test": pairs[-1:]}
            return SyntheticTask(f"synthetic-{seed}-{index:06d}", payload, family.name, steps)


def is_trivial(pairs: list[dict[str, Any]], steps: tuple[str, ...]) -> bool:
    """Whether one constant grid, or the program without its last step, would do as well."""
    if all(pair["output"] == pairs[0]["output"] for pair in pairs):
        return True
    shorter = steps[:-1]        # a single step is never the identity: draw_pair ensures it
    return bool(shorter) and all(
        (output := apply_steps(shorter, np.array(pair["input"]))) is not None
        and output.tolist() == pair["output"] for pair in pairs)


def draw_pair(rng: Random, style: InputStyle, steps: tuple[str, ...]) -> dict[str, Any] | None:
    """An input and its output as lists, or None if the steps do not fit this style's inputs."""
    for _ in range(MAX_PAIR_DRAWS):
        grid = draw_grid(rng, style)
        output = apply_steps(steps, grid)
        if output is not None and not np.array_equal(grid, output):
            return {"input": grid.tolist(), "output": output.tolist()}
    return None


def apply_steps(steps: tuple[str, ...], grid: Grid) -> Grid | None:
    """The grid after every step, or None if a step fails or the result is not a legal grid."""
    for step in steps:
        try:
            grid = eval(compiled_step(step), {"np": np, "g": grid})     # the text comes from our own families
        except (ValueError, IndexError):                               # shapes that do not fit the step
            return None
        if grid.ndim != 2 or grid.size == 0 or max(grid.shape) > MAX_SIDE:
            return None
    return grid


@lru_cache(maxsize=4096)
def compiled_step(step: str) -> CodeType:
    return compile(step, "<step>", "eval")
