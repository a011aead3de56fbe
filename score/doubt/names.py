"""What the names in a test stand for, as far as its text shows."""

import ast
from collections import Counter
from collections.abc import Iterator

from score.doubt.literals import last_name

Way = tuple[int, ...]        # to a value in what is unpacked: columns, and -1 for each row
CLOSE_CALLS = frozenset({"isclose", "allclose", "assert_allclose", "assert_almost_equal", "assertAlmostEqual",
                         "assert_array_almost_equal"})
EQUAL_CALLS = CLOSE_CALLS | {
    "array_equal", "assert_array_equal", "assert_equal", "assertEqual", "assertEquals", "assertListEqual",
    "assertDictEqual", "assertSetEqual", "assertTupleEqual", "assertSequenceEqual", "assertCountEqual",
    "assertMultiLineEqual"}


class Names:
    """The names of a test: what each is bound to, and what reads it."""

    def __init__(self, tree: ast.AST) -> None:
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        self.loads = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
        stores = Counter(node.id for node in names if not isinstance(node.ctx, ast.Load))
        self.bindings = {name: bound for name, bound in bindings_in(tree).items()
                         if stores[name] == len(bound)}
        self.expected = Counter(side.id for node in ast.walk(tree) for side in expected_sides(node)
                                if isinstance(side, ast.Name))

    def values_behind(self, side: ast.expr) -> list[ast.expr]:
        """What a name stands for, one time or another, where nothing but comparisons reads it."""
        if not isinstance(side, ast.Name) or self.loads[side.id] != self.expected[side.id]:
            return []
        sources = self.bindings.get(side.id, [])
        return self.literals_of(*sources[0]) if len(sources) == 1 else []

    def literals_of(self, value: ast.expr, path: Way) -> list[ast.expr]:
        """The literals that a name is bound to: `path` leads through rows (-1: all of them) and columns."""
        if not path:
            return [value]
        if isinstance(value, ast.Name) and len(self.bindings.get(value.id, [])) == 1:
            source, way = self.bindings[value.id][0]
            return self.literals_of(source, (*way, *path))
        if isinstance(value, ast.Call) and path[0] == -1 and len(path) > 1:
            if last_name(value.func) == "zip" and path[1] < len(value.args):
                return self.literals_of(value.args[path[1]], (-1, *path[2:]))
            if last_name(value.func) == "enumerate" and path[1] == 1:
                return self.literals_of(value.args[0], (-1, *path[2:]))
            if last_name(value.func) == "items" and path[1] == 1 and isinstance(value.func, ast.Attribute):
                return self.literals_of(value.func.value, path[1:])
        if isinstance(value, ast.Dict) and path[0] == 1:
            return [each for item in value.values for each in self.literals_of(item, path[1:])]
        if not isinstance(value, (ast.List, ast.Tuple)):
            return []
        items = value.elts if path[0] == -1 else value.elts[path[0]:path[0] + 1]
        return [each for item in items for each in self.literals_of(item, path[1:])]

    def has_items(self, value: ast.expr) -> bool:
        """True of what is evidently not empty."""
        if isinstance(value, ast.Name):
            sources = self.bindings.get(value.id, [])
            return len(sources) == 1 and not sources[0][1] and self.has_items(sources[0][0])
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            if name == "items" and isinstance(value.func, ast.Attribute):
                return self.has_items(value.func.value)
            if name == "range":
                numbers = [each.value for each in value.args if isinstance(each, ast.Constant)]
                return len(numbers) == len(value.args) and bool(range(*numbers))  # type: ignore[arg-type]
            return name in ("zip", "enumerate") and all(map(self.has_items, value.args))
        return bool(getattr(value, "elts", None) or getattr(value, "keys", None))


def expected_sides(node: ast.AST) -> list[ast.expr]:
    """What is compared for equality directly below a node."""
    if isinstance(node, ast.Compare) and all(isinstance(each, ast.Eq) for each in node.ops):
        return [node.left, *node.comparators]
    return node.args[:2] if isinstance(node, ast.Call) and last_name(node.func) in EQUAL_CALLS else []


def bindings_in(tree: ast.AST) -> dict[str, list[tuple[ast.expr, Way]]]:
    """What each name is bound to: an expression, and the way to its value in there (-1: of each row)."""
    sources: dict[str, list[tuple[ast.expr, Way]]] = {}
    for node in ast.walk(tree):
        places: list[tuple[ast.expr, ast.expr, Way]]
        if isinstance(node, ast.Assign):
            places = [(target, node.value, ()) for target in node.targets]
        elif isinstance(node, (ast.For, ast.comprehension)):
            places = [(node.target, node.iter, (-1,))]
        elif isinstance(node, ast.arg):
            sources.setdefault(node.arg, []).append((ast.Constant(...), ()))     # what callers choose
            continue
        else:
            continue
        for target, value, path in places:
            for name, way in names_bound(target):
                sources.setdefault(name, []).append((value, (*path, *way)))
    return sources


def names_bound(target: ast.expr, path: Way = ()) -> Iterator[tuple[str, Way]]:
    """Names in a target and the place of each in what is unpacked."""
    if isinstance(target, ast.Name):
        yield target.id, path
    elif isinstance(target, (ast.Tuple, ast.List)):
        for index, item in enumerate(target.elts):
            yield from names_bound(item, (*path, index))
