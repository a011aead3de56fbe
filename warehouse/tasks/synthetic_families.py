"""The families of synthetic grid tasks: each a template of one or two numpy steps, and its inputs."""

from random import Random
from typing import NamedTuple

LEFT, RIGHT = "(g[:, :g.shape[1] // 2] > 0)", "(g[:, -(g.shape[1] // 2):] > 0)"
TOP, BOTTOM = "(g[:g.shape[0] // 2] > 0)", "(g[-(g.shape[0] // 2):] > 0)"
MODE = "np.bincount(g.ravel()).argmax()"
SECOND_STEP_SHARE = 0.2
COLORED_MODE = "np.bincount(g[g > 0]).argmax()"


def logic_steps(first: str, second: str) -> tuple[str, ...]:
    """The six ways two boolean masks become one, as numpy expressions."""
    return (f"{first} & {second}", f"{first} | {second}", f"{first} ^ {second}",
            f"~({first} | {second})", f"{first} & ~{second}", f"~{first} & {second}")


class Family(NamedTuple):
    """A kind of task; {a} and {c} become colours of the inputs, {b} any other colour."""

    name: str
    steps: tuple[str, ...]
    inputs: str = "any"     # 'any', or the only kind of input that makes sense
    weight: int = 1


CHOICES: dict[str, tuple[str, ...]] = {     # what the other placeholders of the templates may become
    "n": ("2", "3"),
    "shift": ("-2", "-1", "1", "2"),
    "axis": ("0", "1"),
    "tiles": ("(1, 2)", "(1, 3)", "(2, 1)", "(2, 2)", "(2, 3)", "(3, 1)", "(3, 2)", "(3, 3)"),
    "corner": (":{n}, :{n}", ":{n}, -{n}:", "-{n}:, :{n}", "-{n}:, -{n}:"),
    "columns_logic": logic_steps(LEFT, RIGHT),
    "rows_logic": logic_steps(TOP, BOTTOM),
}

FAMILIES = (
    Family("flip_columns", ("np.fliplr(g)",), weight=2),
    Family("flip_rows", ("np.flipud(g)",), weight=2),
    Family("rotate_quarter", ("np.rot90(g)",), weight=2),
    Family("rotate_half", ("np.rot90(g, 2)",), weight=2),
    Family("rotate_three_quarters", ("np.rot90(g, 3)",), weight=2),
    Family("transpose", ("g.T",), weight=2),
    Family("beside_itself", ("np.hstack([g, g])",)),
    Family("beside_mirror", ("np.hstack([g, np.fliplr(g)])",)),
    Family("mirror_beside", ("np.hstack([np.fliplr(g), g])",)),
    Family("beside_flip", ("np.hstack([g, np.flipud(g)])",)),
    Family("beside_half_turn", ("np.hstack([g, np.rot90(g, 2)])",)),
    Family("above_itself", ("np.vstack([g, g])",)),
    Family("above_mirror", ("np.vstack([g, np.flipud(g)])",)),
    Family("mirror_above", ("np.vstack([np.flipud(g), g])",)),
    Family("above_flip", ("np.vstack([g, np.fliplr(g)])",)),
    Family("above_half_turn", ("np.vstack([g, np.rot90(g, 2)])",)),
    Family("mirror_quad", ("np.hstack([g, np.fliplr(g)])", "np.vstack([g, np.flipud(g)])")),
    Family("mirror_quad_inward", ("np.hstack([np.fliplr(g), g])", "np.vstack([np.flipud(g), g])")),
    Family("half_turn_quad", ("np.hstack([g, np.fliplr(g)])", "np.vstack([g, np.rot90(g, 2)])")),
    Family("tile", ("np.tile(g, {tiles})",), weight=2),
    Family("enlarge", ("np.kron(g, np.ones(({n}, {n}), int))",), weight=2),
    Family("stretch", ("g.repeat({n}, axis={axis})",)),
    Family("fractal", ("np.kron(g > 0, g)",), weight=2),
    Family("fractal_of_color", ("np.kron(g == {a}, g)",)),
    Family("recolor", ("np.where(g == {a}, {b}, g)",), weight=2),
    Family("swap_colors", ("np.where(g == {a}, {c}, np.where(g == {c}, {a}, g))",), weight=2),
    Family("paint_all", ("np.where(g > 0, {b}, g)",)),
    Family("fill_background", ("np.where(g > 0, g, {b})",)),
    Family("keep_color", ("np.where(g == {a}, g, 0)",)),
    Family("remove_color", ("np.where(g == {a}, 0, g)",)),
    Family("crop_colored", ("g[np.ix_((g > 0).any(1), (g > 0).any(0))]",), inputs="blob", weight=2),
    Family("crop_color", ("g[np.ix_((g == {a}).any(1), (g == {a}).any(0))]",)),
    Family("corner", ("g[{corner}]",), weight=2),
    Family("left_half", ("g[:, :g.shape[1] // 2]",)),
    Family("right_half", ("g[:, -(g.shape[1] // 2):]",)),
    Family("top_half", ("g[:g.shape[0] // 2]",)),
    Family("bottom_half", ("g[-(g.shape[0] // 2):]",)),
    Family("fall_down", ("np.take_along_axis(g, np.argsort(g > 0, axis=0, kind='stable'), 0)",), "sparse"),
    Family("rise_up", ("np.take_along_axis(g, np.argsort(g == 0, axis=0, kind='stable'), 0)",), "sparse"),
    Family("slide_right", ("np.take_along_axis(g, np.argsort(g > 0, axis=1, kind='stable'), 1)",), "sparse"),
    Family("slide_left", ("np.take_along_axis(g, np.argsort(g == 0, axis=1, kind='stable'), 1)",), "sparse"),
    Family("roll", ("np.roll(g, {shift}, {axis})",), weight=2),
    Family("combine_columns", ("np.where({columns_logic}, {b}, 0)",), inputs="columns", weight=4),
    Family("combine_rows", ("np.where({rows_logic}, {b}, 0)",), inputs="rows", weight=4),
    Family("replace_border", ("np.pad(g[1:-1, 1:-1], 1, constant_values={b})",)),
    Family("inner", ("g[1:-1, 1:-1]",)),
    Family("frame", ("np.pad(g, 1, constant_values={b})",)),
    Family("pad_edge", ("np.pad(g, 1, mode='edge')",)),
    Family("fill_with_mode", (f"np.full_like(g, {MODE})",)),
    Family("keep_mode", (f"np.where(g == {MODE}, g, 0)",)),
    Family("mode_cell", (f"np.array([[{MODE}]])",)),
    Family("colored_mode_cell", (f"np.array([[{COLORED_MODE}]])",), inputs="sparse"),
    Family("every_second", ("g[::2, ::2]",)),
    Family("symmetric_columns", ("np.maximum(g, np.fliplr(g))",), inputs="sparse"),
    Family("symmetric_rows", ("np.maximum(g, np.flipud(g))",), inputs="sparse"),
    Family("draw_columns", ("np.where(g > 0, g, g.max(0))",), inputs="sparse"),
    Family("draw_rows", ("np.where(g > 0, g, g.max(1, keepdims=True))",), inputs="sparse"),
    Family("shoot_down", ("np.maximum.accumulate(g, 0)",), inputs="sparse"),
    Family("shoot_right", ("np.maximum.accumulate(g, 1)",), inputs="sparse"),
)
WEIGHTS = tuple(family.weight for family in FAMILIES)
SECOND_FAMILIES = tuple(family for family in FAMILIES if family.inputs == "any" and len(family.steps) == 1)
SECOND_WEIGHTS = tuple(family.weight for family in SECOND_FAMILIES)


def draw_steps(rng: Random, colors: tuple[int, ...]) -> tuple[Family, tuple[str, ...]]:
    """A family and its steps with every placeholder filled; sometimes one more step follows."""
    family = rng.choices(FAMILIES, WEIGHTS)[0]
    steps = fill_placeholders(rng, family.steps, colors)
    if len(steps) == 1 and rng.random() < SECOND_STEP_SHARE:
        second = rng.choices(SECOND_FAMILIES, SECOND_WEIGHTS)[0]
        steps += fill_placeholders(rng, second.steps, colors)
    return family, steps


def fill_placeholders(rng: Random, steps: tuple[str, ...], colors: tuple[int, ...]) -> tuple[str, ...]:
    """Replace each placeholder by a draw; one draw serves all the steps of a family."""
    text = "\n".join(steps)
    for name, choices in CHOICES.items():
        if f"{{{name}}}" in text:
            text = text.replace(f"{{{name}}}", rng.choice(choices))
    if "{n}" in text:                           # {corner} brings its own {n}
        text = text.replace("{n}", rng.choice(CHOICES["n"]))
    first, other = rng.sample(colors, 2)
    outside = rng.choice([color for color in range(1, 10) if color != first])
    return tuple(text.format(a=first, c=other, b=outside).split("\n"))
