"""Tests as they are run apart from the program: what calls them, and arguments that a program may alter."""

import ast
import builtins
import datetime
import decimal
import fractions
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PLACES = (ast.Name, ast.Attribute, ast.Subscript)
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
SEVERAL = (ast.Tuple, ast.List, ast.Set, ast.Dict)
PLAIN_ATTRIBUTES = frozenset(name for kind in (str, bytes, int, float, complex, list, tuple, dict, set, range)
                             for name in dir(kind))
# Of all plain data: a class with a name in lower case makes objects that have others.
DATA_ATTRIBUTES = PLAIN_ATTRIBUTES.union(*map(dir, (
    np.ndarray, np.datetime64, datetime.datetime, datetime.timedelta, decimal.Decimal, fractions.Fraction)))
GATHERS = frozenset((
    "append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put", "write"))
LATER = frozenset((                 # what they give reads their arguments when it is used
    "iter", "map", "filter", "zip", "enumerate", "reversed", "partial", "keys", "values", "items"))
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def calls_of_tests(source: str) -> list[str]:
    """Statements that run each test function and each method of a TestCase.

    None where there is `check`, and none of a source that cannot be read, which running it then says.
    """
    try:
        tree = ast.parse(source)
    except NO_PYTHON:
        return []
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    if "check" in functions:
        return []
    calls = [f"__import__('asyncio').run({name}())" if isinstance(node, ast.AsyncFunctionDef) else f"{name}()"
             for name, node in functions.items() if name.startswith("test")]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = [each.name for each in node.body if isinstance(each, FUNCTIONS)]
            calls += [f"{node.name}({name!r}).debug()" if node.bases else f"{node.name}().{name}()"
                      for name in names if name.startswith("test")]
    return calls


class WithoutLiterals(ast.NodeTransformer):
    """Has nothing in the place of lists, tuples and the like of numbers and texts, which may be long."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        is_literal = isinstance(node, (*SEVERAL, ast.UnaryOp)) and all(
            isinstance(each, (ast.Constant, ast.expr_context, ast.unaryop))
            for each in ast.iter_child_nodes(node))
        return ast.Constant(None) if is_literal else node


def classes_in(tree: ast.Module) -> list[str]:
    """Names of the program from which the tests make objects: classes, and `Class.method`.

    They read of them what no plain data has, or, of a class that has a name with a capital, compare two of
    them, one of which it made itself: tests compare what `f` gives, too.
    """
    nodes = list(ast.walk(tree))
    made_by: dict[str | None, set[str]] = {}

    def made(expression: ast.AST) -> set[str]:
        inside = list(ast.walk(expression))
        return {maker for each in inside if (maker := maker_of(each))}.union(
            *(made_by.get(unparsed(each), ()) for each in inside))

    for target, value in (pair for node in nodes for pair in bindings(node)):
        makers = made(value) if isinstance(value, (ast.BinOp, ast.UnaryOp)) else {maker_of(value) or ""}
        for name in places_set(target):
            made_by.setdefault(name, set()).update(makers - {""})
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr not in PLAIN_ATTRIBUTES:
            found |= {name for name in made(node.value)
                      if name[:1].isupper() or node.attr not in DATA_ATTRIBUTES}
        elif isinstance(node, ast.Compare):
            sides = [made(each) for each in (node.left, *node.comparators)]
            every = set[str]().union(*sides)
            both = every.intersection(*({name.partition(".")[0] for name in side} for side in sides))
            found |= {name for name in every if name[:1].isupper() and name.partition(".")[0] in both}
    return sorted(found)


def maker_of(node: ast.AST) -> str | None:
    """What is called by its name, or as `Class.method`."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner[:1].isupper():
            return f"{owner}.{name}"
    return None


def facts_of(setup: str, units: Sequence[str]) -> dict[str, Any]:
    """What the process of the tests has to know of their text.

    `classes` are names of the program from which they make objects, `meant` the lines of setup and units that
    raise on purpose. `handed_in` has, per source, the nodes (by their place in `ast.walk`) that are read as
    the program was handed them: what its answers are compared with. `assert f(a) == sorted(a)` is then no
    easier for a program that empties `a`, nor is it where the test has written `want = sorted(a)` before.
    `f(a)` and then `assert a == [1, 2]`, or `assert a[:f(a)] == [1, 2]`, reads it as it is.
    """
    try:
        trees = [ast.parse(source) for source in (setup, *units)]
        nodes = [list(ast.walk(tree)) for tree in trees]
        for tree in trees:
            WithoutLiterals().visit(tree)
    except NO_PYTHON:
        return {"classes": [], "meant": [[], []], "handed_in": [[]] * (1 + len(units))}
    whole = ast.Module([node for tree in trees for node in tree.body], [])
    facts = {"classes": classes_in(whole), "meant": [raised_on_purpose(trees[:1]),
                                                     raised_on_purpose(trees[1:])]}
    separate_scopes(whole)
    expected = Expected(whole)
    return facts | {"handed_in": [[[place, node in expected.kept] for place, node in enumerate(each)
                                   if node in expected.places] for each in nodes]}


def raised_on_purpose(trees: Iterable[ast.AST]) -> list[int]:
    """Lines of functions and `with` blocks that raise an error whatever the program does."""
    return sorted({each.lineno for tree in trees for block in ast.walk(tree)
                   if isinstance(block, (*FUNCTIONS, ast.With, ast.AsyncWith)) for each in block.body
                   if isinstance(each, ast.Raise) or (isinstance(each, ast.Assert) and not any(
                       isinstance(part, ast.Name) for part in ast.walk(each.test)))})


def separate_scopes(tree: ast.Module) -> None:
    """Give the variables of each function and comprehension names of their own."""
    functions = [node for node in ast.walk(tree) if isinstance(node, SCOPES)]
    for number, function in enumerate(reversed(functions)):               # inner ones first
        nodes = list(ast.walk(function))
        own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        own -= {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in own - {"self"}:
                node.id += f"@{number}"
            elif isinstance(node, ast.arg) and node.arg in own - {"self"}:
                node.arg += f"@{number}"


class Answers:
    """Which names of tests are the program's or hold what it gave, and what it was handed by name."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.functions = {node.name: node for node in nodes if isinstance(node, FUNCTIONS)}
        self.fixed = {*dir(builtins), *self.functions}         # names that no program alters
        self.own: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.own.add(node.id)
            elif isinstance(node, ast.ClassDef):
                self.own.add(node.name)
            elif isinstance(node, ast.arg):
                self.own.add(node.arg)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.fixed |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        self.fixed -= self.own
        self.own |= self.fixed
        self.bound = [pair for node in nodes for pair in bindings(node)]
        self.bound += [pair for node in nodes if isinstance(node, ast.Call) for pair in self.passed_on(node)]
        self.given: set[str] = set()         # places, and functions of the tests that read the program's
        before = -1
        while len(self.given) > before:
            before = len(self.given)
            self.given |= {name for target, value in self.bound if self.reads_program(value)
                           for name in places_set(target)}
            self.given |= {name for name, function in self.functions.items()
                           if not name.startswith("test") and any(map(self.reads_program, function.body))}
        calls = [node for node in nodes if isinstance(node, ast.Call) and self.is_programs(node)]
        self.passed = {ast.unparse(place) for node in calls
                       for argument in [*node.args, *(each.value for each in node.keywords)]
                       for place in handed(argument)}

    def passed_on(self, call: ast.Call) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Parameters of a function of the tests, and what this call has for them."""
        if function := self.functions.get(name_of(call.func)):
            names = [each.arg for each in function.args.args if each.arg != "self"]
            by_keyword = {each.partition("@")[0]: each for each in (
                *names, *(only.arg for only in function.args.kwonlyargs))}
            pairs = [*zip(names, call.args, strict=False), *(
                (by_keyword[each.arg], each.value) for each in call.keywords if each.arg in by_keyword)]
            yield from ((ast.Name(name, ast.Store()), value) for name, value in pairs)

    def reads_program(self, node: ast.AST) -> bool:
        """True where a name of the program is read, or a place that holds what it gave."""
        return any(self.is_given(each) for each in ast.walk(node) if isinstance(each, PLACES))

    def is_given(self, place: ast.expr) -> bool:
        """True of a name that the tests lack, of what holds an answer, and of a function that gives one."""
        if isinstance(place, ast.Name) and isinstance(place.ctx, ast.Load) and place.id not in self.own:
            return True
        names = {ast.unparse(place)}
        if isinstance(place, ast.Attribute):          # of an object whose methods set it, or a method itself
            names |= {f"self.{place.attr}", *({place.attr} & self.functions.keys())}
        return not self.given.isdisjoint(names)

    def is_programs(self, call: ast.Call) -> bool:
        """True of a call of a function of the program, or of a method of what it gave."""
        root: ast.expr = call.func
        while True:
            if isinstance(root, PLACES) and self.is_given(root):
                return True
            if isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            elif isinstance(root, ast.Call):
                root = root.func
            else:
                return False


class Expected:
    """The places that are read for what an answer, or an altered argument, is compared with."""

    def __init__(self, tree: ast.Module) -> None:
        self.answers = Answers(tree)
        self.places: set[ast.expr] = set()
        self.kept: set[ast.expr] = set()     # of these, what is iterated over or viewed later
        self.names: set[str] = set()         # what these read, whose values are then read so, too
        nodes = list(ast.walk(tree))
        self.whole = {each for node in nodes if compares(node) for each in operands_of(node)}
        # What decides how often, or whether, a name is set.
        self.decides = [(target, node.test) for node in nodes if isinstance(node, (ast.If, ast.While))
                        for inner in ast.walk(node) for target, _value in bindings(inner)]
        self.decides += [(target, node.iter) for node in nodes if isinstance(node, ast.For)
                         for inner in ast.walk(node) for target, _value in bindings(inner)]
        later = [node for node in nodes if isinstance(node, ast.GeneratorExp) or (
            isinstance(node, ast.Call) and name_of(node.func) in LATER)]
        self.later = {place for node in later for place in ast.walk(node)}
        for node in nodes:
            for each in self.beside(node):
                self.add(each)
        for node in nodes:               # `a.sort()`, where `a` is what an answer is compared with
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not (
                    compares(node.value) or self.answers.reads_program(node)):
                for each in operands_of(node.value):
                    if unparsed(each) in self.names:
                        self.add(each)

    def beside(self, node: ast.AST) -> Iterator[ast.expr]:
        """What stands beside an answer, or beside an argument, in one expression, container or stream."""
        reads_program = self.answers.reads_program
        deciding = [each for each in deciding_in(node) if not reads_program(each)]
        if deciding and (leaves(node) or any(
                compares(each) and reads_program(each) for each in ast.walk(node))):
            yield from deciding
        if isinstance(node, (ast.Call, ast.Assign)):
            yield from (value for target, value in bindings(node)
                        if isinstance(value, ast.expr)
                        if isinstance(node, ast.Call) or isinstance(target, ast.Subscript)
                        if not self.answers.given.isdisjoint(places_set(target)) and not reads_program(value))
        operands = operands_of(node)
        if isinstance(node, ast.Call) and self.answers.is_programs(node):
            return
        if isinstance(node, SEVERAL) and node in self.whole:
            return
        if any(map(reads_program, operands)):
            yield from (each for each in operands if not reads_program(each))
        elif compares(node) and any(unparsed(each) in self.answers.passed for each in operands):
            yield from (each for each in operands if not isinstance(each, PLACES))

    def add(self, node: ast.AST) -> None:
        """Read all that an expression reads as it was handed in, and what it was made from."""
        for place in read_in(node):
            roots: list[ast.expr] = [place]
            while isinstance(roots[-1], (ast.Attribute, ast.Subscript)):
                roots.append(roots[-1].value)
            is_fixed = isinstance(roots[-1], ast.Name) and roots[-1].id in self.answers.fixed
            if place in self.places or is_fixed or self.answers.reads_program(place):
                continue
            self.places.update(roots)        # `a[::-1]` is a part of `a` as it was
            self.kept |= {place} & self.later
            if not isinstance(roots[-1], PLACES):        # `sorted(a)[0]`
                self.add(roots.pop())
            for root in roots:
                self.use(ast.unparse(root))
                if isinstance(root, ast.Subscript):
                    self.add(root.slice)
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                self.use(name_of(each.func))

    def use(self, name: str) -> None:
        """A place, or a function of the tests, on which the expected value rests."""
        if name in self.names:
            return
        self.names.add(name)
        for target, value in [*self.answers.bound, *self.decides]:
            if name in places_set(target) and not self.answers.reads_program(value):
                self.add(value)
        if name in self.answers.functions and name not in self.answers.given:
            for statement in self.answers.functions[name].body:
                self.add(statement)


def compares(node: ast.AST) -> bool:
    """True of a comparison, and of a call that makes one."""
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and isinstance(
        node.func, ast.Attribute) and node.func.attr.startswith("assert"))


def deciding_in(node: ast.AST) -> list[ast.expr]:
    """What decides whether, or how often, the rest of a node is done."""
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            return [node.test]
        case ast.For():
            return [node.iter]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            return [each for part in node.generators for each in (part.iter, *part.ifs)]
        case ast.BoolOp(op=ast.Or()):
            return node.values
        case ast.BoolOp():
            bare = [each.operand if isinstance(each, ast.UnaryOp) else each for each in node.values]
            return [each for each in bare if isinstance(each, PLACES)]
    return []


def leaves(node: ast.AST) -> bool:
    """True of an `if` that goes on with no word: what follows is done or not."""
    return isinstance(node, ast.If) and len(node.body) == 1 and (
        isinstance(node.body[0], (ast.Break, ast.Continue, ast.Pass)) or (
            isinstance(node.body[0], ast.Return) and node.body[0].value is None))


def operands_of(node: ast.AST) -> list[ast.expr]:
    """Expressions that stand beside each other in one."""
    match node:
        case ast.Compare() if any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
            return []
        case ast.Call():
            whose = [node.func.value] if isinstance(node.func, ast.Attribute) and (
                node.func.attr not in GATHERS) else []
            return [*whose, *node.args, *(each.value for each in node.keywords)]
        case ast.Subscript() if not isinstance(node.value, PLACES):
            return [node.value, node.slice]
        case ast.FunctionDef():
            return [each.value for each in ast.walk(node) if isinstance(each, ast.Yield) and each.value]
        case ast.Compare() | ast.BinOp() | ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
            return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    return []


def read_in(node: ast.AST) -> Iterator[ast.expr]:
    """The largest places that are read in a node, but for functions that it calls."""
    if isinstance(node, PLACES) and isinstance(node.ctx, ast.Load):
        yield node
        return
    for name, field in ast.iter_fields(node):
        if isinstance(node, ast.Call) and name == "func" and not isinstance(field, ast.Lambda):
            field = field.value if isinstance(field, ast.Attribute) else None
        for each in field if isinstance(field, list) else [field]:
            if isinstance(each, ast.AST):
                yield from read_in(each)


def unparsed(node: ast.AST) -> str | None:
    """What a place is called: a name, or an attribute or item of one."""
    return ast.unparse(node) if isinstance(node, PLACES) else None


def handed(argument: ast.expr) -> Iterator[ast.expr]:
    """Names, attributes and items that a program is handed itself, also within a list."""
    if isinstance(argument, ast.Starred):
        yield from handed(argument.value)
    elif isinstance(argument, SEVERAL):
        for each in operands_of(argument):
            yield from handed(each)
    elif isinstance(argument, PLACES):
        yield argument


def places_set(target: ast.AST) -> Iterable[str]:
    """The names and attributes that a target sets, and what the items that it sets are items of."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for each in target.elts for name in places_set(each)]
    if isinstance(target, ast.Starred):
        return places_set(target.value)
    while isinstance(target, ast.Subscript):
        target = target.value
    return [ast.unparse(target)] if isinstance(target, PLACES) else []


def bindings(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """Targets of a node and what they are set from."""
    match node:
        case ast.Assign():
            return [(target, node.value) for target in node.targets]
        case ast.AugAssign() | ast.NamedExpr() | ast.AnnAssign() if node.value is not None:
            return [(node.target, node.value)]
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            return [(node.target, node.iter)]
        case ast.withitem() if node.optional_vars is not None:
            return [(node.optional_vars, node.context_expr)]
        case ast.Call(func=ast.Attribute(value=gathering, attr=name)) if name in GATHERS:
            return [(gathering, each) for each in node.args]
        case ast.Call(func=ast.Name(id="print")):              # what it prints stands together
            return [(node.func, each) for each in node.args]
    return []


def name_of(function: ast.expr) -> str:
    """The name by which a function or method is called."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
