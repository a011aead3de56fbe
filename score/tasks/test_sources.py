"""The text of tests: what calls them, and what their process has to know of it."""

import ast
import builtins
import datetime
import decimal
import fractions
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any

import numpy as np

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PLACES = (ast.Name, ast.Attribute, ast.Subscript)
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
SEVERAL = (ast.Tuple, ast.List, ast.Set, ast.Dict)
PLAIN_ATTRIBUTES = [{*dir(kind)} for kind in (
    str, bytes, int, float, complex, list, tuple, dict, set, range)]
# Of all plain data: a class with a name in lower case makes objects that have others.
DATA_ATTRIBUTES = set[str]().union(*PLAIN_ATTRIBUTES, *map(dir, (
    np.ndarray, np.datetime64, datetime.datetime, datetime.timedelta, decimal.Decimal, fractions.Fraction)))
BUILTINS = frozenset(dir(builtins))
GATHERS = frozenset((
    "append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put", "write"))
PYTEST = {"raises", "approx", "fail", "fixture", "mark", "param", "skip", "xfail", "nan", "main"}
HOLDING = {"eval", "exec", "globals", "locals", "super", "vars"}    # what holds variables that are not named
CLAIM = re.compile("assert_|assert.*(Equal|Greater|Less)")       # of what compares its arguments
WORD = re.compile(r"\w+")
AROUND = re.compile("(?i)set_?up|tear_?down")
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def calls_of_tests(source: str) -> list[str]:
    """Statements that run each test function and each method of a class, inherited ones too.

    None where there is a `check` that no test calls, and none of a source that cannot be read, which running
    it then says.
    """
    try:
        tree = ast.parse(source)
    except NO_PYTHON:
        return []
    functions = [node for node in tree.body if isinstance(node, FUNCTIONS)]
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    tests = [*filter(is_test, functions), *classes.values()]
    called = {each.id for test in tests for each in ast.walk(test) if isinstance(each, ast.Name)}
    if "check" not in called and any(node.name == "check" for node in functions):
        return []
    bases = {base.id for node in classes.values() for base in node.bases if isinstance(base, ast.Name)}

    def is_run(node: ast.ClassDef) -> bool:
        is_mixin = node.name in bases and not node.bases and not node.name.startswith("Test")
        return not (is_skipped(node) or is_abstract(node) or is_mixin)
    return [f"__run__({path!r})" for path in (
        *dict.fromkeys(node.name for node in functions if is_test(node)),
        *(f"{name}.{test}" for name, node in classes.items() if is_run(node)
          for test in tests_of(node, classes)))]


def tests_of(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, ast.AST]:
    """The test methods of a class and of its bases in the same source, by name."""
    found: dict[str, ast.AST] = {
        each.name: each for each in node.body if isinstance(each, FUNCTIONS) and is_test(each)}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id != node.name:
            found = tests_of(classes[base.id], classes) | found
    return found


def is_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for a test that is not to be skipped."""
    return node.name.startswith("test") and not is_skipped(node)


def is_skipped(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """True for `@unittest.skip('reason')` and the like, and for what is expected to fail."""
    return any(ast.unparse(each).partition("(")[0].endswith(("skip", "expectedFailure"))
               for each in node.decorator_list)


def is_abstract(node: ast.ClassDef) -> bool:
    """True for a class that is there to derive tests from."""
    return any("abstractmethod" in ast.unparse(each) for method in node.body if isinstance(method, FUNCTIONS)
               for each in method.decorator_list)


class WithoutLiterals(ast.NodeTransformer):
    """Drops literal containers, which may be long."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        is_literal = isinstance(node, (*SEVERAL, ast.UnaryOp)) and all(
            isinstance(each, (ast.Constant, ast.expr_context, ast.unaryop))
            for each in ast.iter_child_nodes(node))
        return ast.copy_location(ast.Constant(None), node) if is_literal else node


def classes_in(tree: ast.Module) -> list[str]:
    """Names of the program from which the tests make objects: classes, and `Class.method`.

    They read of them what no plain data has, or, of a class that has a name with a capital, what no one kind
    has, or compare two of them, one of which it made itself: tests compare what `f` gives, too. Or they call
    methods of such an object by a name that they gave it, and compare it with no data.
    """
    nodes = list(ast.walk(tree))
    functions = {node.name for node in nodes if isinstance(node, FUNCTIONS)}
    made_by: dict[str | None, set[str]] = {}

    def made(expression: ast.AST) -> set[str]:
        inside = list(ast.walk(expression))
        return {maker for each in inside if (maker := maker_of(each))}.union(
            *(made_by.get(ast.unparse(each), ()) for each in inside if isinstance(each, PLACES)))

    def itself(expression: ast.AST) -> set[str]:
        if isinstance(expression, (ast.BinOp, ast.UnaryOp)) or maker_of(expression) in ("abs", "round"):
            return set[str]().union(*map(itself, ast.iter_child_nodes(expression)))
        return {maker_of(expression) or ""}.union(made_by.get(ast.unparse(expression), ()))

    bound = [each for node in nodes for pair in bindings(node) for each in singles(*pair)]
    bound += [(ast.Name(function.name), each.value) for function in nodes if isinstance(function, FUNCTIONS)
              for each in ast.walk(function) if isinstance(each, (ast.Return, ast.Yield)) and each.value]
    for target, value in bound:
        makers = made(value) if isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Name)) else {
            maker_of(value) or ""}
        for name in places_set(target):
            made_by.setdefault(name, set()).update(makers - {""})
    found, asked, data, read = set[str](), set[str](), set[str](), dict[str, set[str]]()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asked |= made_by.get(ast.unparse(node.func.value), set())
        compared = compared_in(node)
        data |= {name for side in compared for name in itself(side)
                 if any(name.partition(".")[0] not in {of.partition(".")[0] for of in made(other)}
                        for other in compared)}
        if isinstance(node, ast.Call) and name_of(node.func) in functions:       # which may compare
            data = data.union(*map(itself, node.args))
        if isinstance(node, ast.Attribute):
            for name in made(node.value):
                read.setdefault(name, set()).add(node.attr)
        elif isinstance(node, ast.Compare):
            sides = [made(each) for each in (node.left, *node.comparators)]
            every = set[str]().union(*sides)
            both = every.intersection(*({name.partition(".")[0] for name in side} for side in sides))
            found |= {name for name in every if name[:1].isupper() and name.partition(".")[0] in both}
    found |= {name for name in asked - data if name[:1].isupper()}
    return sorted(found.union(name for name, attributes in read.items() if not any(map(
        attributes.issubset, PLAIN_ATTRIBUTES if name[:1].isupper() else [DATA_ATTRIBUTES]))))


def compared_in(node: ast.AST) -> list[ast.expr]:
    """What a node holds to be equal, or in order."""
    if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.In, ast.NotIn, ast.Is, ast.IsNot)):
        return [node.left, *node.comparators]
    return node.args[:2] if isinstance(node, ast.Call) and CLAIM.match(name_of(node.func)) else []


def singles(target: ast.AST, value: ast.AST) -> Iterable[tuple[ast.AST, ast.AST]]:
    """A target and its value; of `a, b = x, y` each by itself."""
    sides = [each.elts for each in (target, value) if isinstance(each, (ast.Tuple, ast.List))]
    if len(sides) < 2 or len(sides[0]) != len(sides[1]) or any(
            isinstance(each, ast.Starred) for side in sides for each in side):
        return [(target, value)]
    return zip(*sides, strict=True)


def maker_of(node: ast.AST) -> str | None:
    """The name that a call uses: `name`, or `Class.method`."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner[:1].isupper():
            return f"{owner}.{name}"
    return None


def facts_of(setup: str, units: Sequence[str], entry_point: str = "") -> dict[str, Any]:
    """What the process of the tests has to know of their text.

    `catches` says whether they catch errors by a name of the program, `classes` are names of the program from
    which they make objects, `in_classes` names that bodies of classes read and the tests do not set, `called`
    names that they call, `lacks` what they want of pytest in vain, `sets` what they set attributes of.
    Of each source, `meant` are the lines that raise on purpose, `claims` the lines at which functions that
    claim something begin and those that raise, and `in_place` says whether it looks at an argument that the
    program may have altered. Any other unit never sees such a change: `assert f(a) == sorted(a)` is then no
    easier for a program that empties `a`.
    """
    try:
        trees = [parsed(source) for source in (setup, *units)]
    except NO_PYTHON:
        return {"catches": True, "classes": [], "in_classes": [], "called": [], "lacks": [], "sets": [],
                "meant": [[]] * (1 + len(units)), "claims": [[[], []]] * (1 + len(units)),
                "in_place": [True] * (1 + len(units))}
    claims = [list(each) for each in zip(claiming(trees), map(raising, trees), strict=True)]
    whole = ast.Module([node for tree in trees for node in tree.body], [])
    own = set[str]().union(*names_set(whole))
    fixed = BUILTINS - HOLDING - own - {entry_point.partition(".")[0]}
    meant, classes = [raised_on_purpose(tree, fixed) for tree in trees], classes_in(whole)
    in_classes = sorted(read_in_classes(whole) - BUILTINS - own)
    catches = any(names_in(node.type, ast.Load) - BUILTINS - own for node in ast.walk(whole)
                  if isinstance(node, ast.ExceptHandler) and node.type)
    called = {node.func.id for node in ast.walk(whole) if isinstance(node, ast.Call)
              and isinstance(node.func, ast.Name)} - own
    sets = {ast.unparse(node.value) for node in ast.walk(whole) if isinstance(node, ast.Attribute)
            and (isinstance(node.ctx, ast.Store) or node.attr == "environ")}
    reached = parts_run(trees)
    owners = {each: node for node in reversed(list(ast.walk(whole))) if isinstance(node, FUNCTIONS)
              for each in ast.walk(node)}
    separate_scopes(whole)
    for place, tree in enumerate(trees):            # lines of one source after those of the other
        ast.increment_lineno(tree, place << 32)
    stored = [names_in(tree, ast.Store) for tree in trees]
    where = set()           # function, place of the source, and names that it shares with others
    for node in in_place_in(whole):
        place, owner = getattr(node, "lineno", 0) >> 32, owners.get(node)
        shared = set[str]().union(*stored) & names_in(node, ast.Load) - stored[place]
        is_call = owner is not None and is_around(owner) and not claims_of(node)
        where.add((node is whole, None if is_call else owner, owner and not place, place, frozenset(shared)))

    def looks(place: int) -> bool:
        functions, words = reached[place]
        return any(is_all or owner in functions or (at == place and not is_apart)
                   or not shared.isdisjoint(words) for is_all, owner, is_apart, at, shared in where)
    pytest = {alias.asname or alias.name for node in ast.walk(whole) if isinstance(node, ast.Import)
              for alias in node.names if alias.name == "pytest"}
    lacks = {ast.unparse(node) for node in ast.walk(whole) if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name) and (
                 node.attr not in PYTEST if node.value.id in pytest else node.attr == "getsource")}
    return {"catches": catches, "classes": classes, "in_classes": in_classes, "called": sorted(called),
            "lacks": sorted(lacks), "sets": sorted(sets), "meant": meant, "claims": claims,
            "in_place": list(map(looks, range(len(trees))))}


def parts_run(trees: list[ast.Module]) -> list[tuple[set[ast.AST], set[str]]]:
    """The functions that each source runs, as it names them or they go around its tests, and its words."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = {node.name: node for node in trees[0].body if isinstance(node, ast.ClassDef)}
    tests: dict[Any, ast.AST] = {node.name: node for node in trees[0].body if isinstance(node, FUNCTIONS)}
    tests |= {f"{name}.{test}": node for name, kind in classes.items()
              for test, node in tests_of(kind, classes).items()}
    by_name, found, run = dict[str, list[ast.AST]](), [], list[ast.AST]()
    for node in nodes:
        if isinstance(node, FUNCTIONS):
            by_name.setdefault(" " if is_around(node) else node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            by_name.setdefault(node.name, []).extend(
                each for each in node.body if isinstance(each, FUNCTIONS) and each.name.startswith("__"))
    for tree in trees:
        run = [each for each in tree.body if not isinstance(each, (*FUNCTIONS, ast.ClassDef))]
        match tree.body:
            case [ast.Expr(ast.Call(ast.Name("__run__"), [ast.Constant(path)]))] if path in tests:
                run = [tests[path]]
        run += by_name.get(" ", ())
        words = set[str]()
        for part in run:
            parts = [*part.decorator_list, part.args, *part.body] if isinstance(part, FUNCTIONS) else [part]
            new = set(WORD.findall("\n".join(map(ast.unparse, parts)))) - words
            words |= new
            run += [each for name in new for each in by_name.get(name, ())]
        found.append((set(run), words))
    return found


def is_around(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True of what runs before and after tests that do not name it."""
    return bool(AROUND.match(node.name)) or "autouse" in "".join(map(ast.unparse, node.decorator_list))


def names_in(node: ast.AST, kind: type[ast.expr_context]) -> set[str]:
    """Names in a tree that are read, or those that are set."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, kind)}


def names_set(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Names that tests set in any way, and those of functions and of what they import."""
    own, fixed = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(
                    rest=str(name)) | ast.ExceptHandler(name=str(name)):
                own.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.alias(asname=str(name)):
                fixed.add(name)
            case ast.alias(name=name):
                fixed.add(name.split(".")[0])
    return own, fixed


def read_in_classes(tree: ast.Module) -> set[str]:
    """Names that bodies of classes read, where Python asks no `__missing__`."""
    read = set[str]()
    inside: list[ast.AST] = [each for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
                             for each in node.body]
    for node in inside:
        if isinstance(node, ast.Name) and not node.id.startswith("__"):
            read.add(node.id)
        elif isinstance(node, FUNCTIONS):
            inside += [*node.decorator_list, *ast.walk(node.args)]
        elif not isinstance(node, ast.Lambda):
            inside += ast.iter_child_nodes(node)
    return read


def parsed(source: str) -> ast.Module:
    """The syntax tree of a source without its literal containers; may raise NO_PYTHON."""
    tree = ast.parse(source)
    WithoutLiterals().visit(tree)
    return tree


def raised_on_purpose(tree: ast.AST, fixed: frozenset[str]) -> list[int]:
    """Lines of functions and `with` blocks that raise an error whatever the program does: `1 / 0`.

    They read no names but the `fixed` ones.
    """
    lines = Counter(node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)
                    and not hasattr(node, "body"))

    def is_fixed(statement: ast.stmt) -> bool:
        nodes = list(ast.walk(statement))
        if isinstance(statement, ast.Raise):
            return not any(isinstance(each, ast.IfExp) for each in nodes)
        return isinstance(statement, (ast.Assert, ast.Expr, ast.Assign)) and fixed.issuperset(
            names_in(statement, ast.Load))

    def may_leave(statement: ast.stmt) -> bool:
        return any(isinstance(each, (ast.Return, ast.Break, ast.Continue)) for each in ast.walk(statement))
    return sorted({each.lineno for block in ast.walk(tree) if isinstance(
        block, (*FUNCTIONS, ast.With, ast.AsyncWith))
        for each in takewhile(lambda each: not may_leave(each), block.body)
        if lines[each.lineno] == 1 and is_fixed(each) and not (
            isinstance(block, FUNCTIONS) and is_forbidden(each))})


def claiming(trees: Sequence[ast.AST]) -> list[list[int]]:
    """First lines of the functions of each tree that claim something, by an assert or a call of what does."""
    functions = [[node for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.Lambda))]
                 for tree in trees]
    by_name = [node for each in functions for node in each
               if isinstance(node, FUNCTIONS) and node.name not in DATA_ATTRIBUTES]
    names, before = set[str](), -1

    def claims(function: ast.AST) -> bool:
        return any(isinstance(each, ast.Assert)
                   or (isinstance(each, ast.Raise) and "AssertionError" in ast.unparse(each))
                   or (isinstance(each, ast.Call) and (name_of(each.func).startswith(("assert", "fail"))
                                                       or name_of(each.func) in names))
                   for each in ast.walk(function))
    while len(names) > before:
        before = len(names)
        names |= {node.name for node in by_name if node.name not in names and claims(node)}
    return [sorted({min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
                    for node in each if claims(node)}) for each in functions]


def raising(tree: ast.AST) -> list[int]:
    """Lines that raise something other than a failed claim."""
    return sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.Raise)
                   and "AssertionError" not in ast.unparse(node)})


def is_forbidden(statement: ast.stmt) -> bool:
    """False of `assert 1 == 2`, by which a function shows how its errors are caught; it may be called."""
    return not (isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare))


def separate_scopes(tree: ast.Module) -> None:
    """Give the variables of each function and comprehension names of their own."""
    functions = [node for node in ast.walk(tree) if isinstance(node, SCOPES)]
    for number, function in enumerate(reversed(functions)):               # inner ones first
        nodes = list(ast.walk(function))
        own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        own -= {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in own - {"self", "cls"}:
                node.id += f"@{number}"
            elif isinstance(node, ast.arg) and node.arg in own - {"self", "cls"}:
                node.arg += f"@{number}"


class Answers:
    """Which names of tests are the program's or hold what it gave."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.functions = {node.name: node for node in nodes if isinstance(node, FUNCTIONS)}
        self.functions |= {node.name: each for node in nodes if isinstance(node, ast.ClassDef)
                           for each in node.body if isinstance(each, FUNCTIONS) and each.name == "__init__"}
        self.own, defined = names_set(tree)
        self.fixed = {*BUILTINS, *defined} - self.own         # names that no program alters
        self.own |= self.fixed
        self.bound = [pair for node in nodes for pair in bindings(node)]
        self.bound += [pair for node in nodes if isinstance(node, ast.Call) for pair in self.passed_on(node)]
        self.bound += [pair for node in nodes if isinstance(node, ast.Expr)
                       if isinstance(node.value, ast.Call) for pair in self.stored_by(node.value)]
        fixtures = {name for name, node in self.functions.items()
                    if any("fixture" in ast.unparse(each) for each in node.decorator_list)}
        self.bound += [(ast.Name(each.arg, ast.Store()), ast.Name(name, ast.Load()))
                       for node in self.functions.values() for each in node.args.args
                       if (name := each.arg.partition("@")[0]) in fixtures]
        # Places of answers, functions that use them; as `.name` attributes, and as `name.` what holds such.
        self.given: set[str] = set()
        self.spread()

    def spread(self) -> None:
        """Add to `given` the places that answers get to from those in it."""
        before = -1
        while len(self.given) > before:
            before = len(self.given)
            self.given |= {name for target, value in self.bound if self.reads_program(value)
                           for name in places_set(target)} - self.fixed
            self.given |= {name for name, function in self.functions.items()
                           if any(map(self.reads_program, function.body))}
            self.given |= {part for name in self.given for owner, _, last in [name.rpartition(".")]
                           for part in (f"{owner}.", f".{last}")}

    def suspect(self) -> None:
        """Count as answers the parameters that no call by name sets, of what claims but does not ask."""
        known = {name for target, _value in self.bound for name in places_set(target)} | {"self", "cls"}
        self.given |= {each.arg for name, function in self.functions.items()
                       if not name.startswith("test") and name not in self.given
                       and any(map(claims_of, ast.walk(function)))
                       for each in ast.walk(function.args) if isinstance(each, ast.arg)} - known
        self.spread()

    def passed_on(self, call: ast.Call) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Parameters of a function of the tests, and what this call has for them."""
        if function := self.functions.get(name_of(call.func)):
            names = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
            by_keyword = {each.partition("@")[0]: each for each in (
                *names, *(only.arg for only in function.args.kwonlyargs))}
            pairs = [*zip(names, call.args, strict=False), *(
                (by_keyword[each.arg], each.value) for each in call.keywords if each.arg in by_keyword)]
            yield from ((ast.Name(name, ast.Store()), value) for name, value in pairs)

    def stored_by(self, call: ast.Call) -> Iterator[tuple[ast.AST, ast.AST]]:
        """What a call that is a statement may keep its arguments in: its object, and its first argument."""
        name, called = name_of(call.func), call.func
        is_programs = isinstance(called, ast.Name) and name not in self.own
        if not (is_programs or name in self.functions or name.startswith(("assert", "fail", "addCleanup"))):
            holder = called.value if isinstance(called, ast.Attribute) else called
            yield from ((each, value) for value in values_of(call) for each in (holder, *call.args[:1])
                        if each is not value)

    def reads_program(self, node: ast.AST) -> bool:
        """True where a name of the program is read, or a place that holds what it gave.

        How long a slice is does not matter: `a[:k]` is of `a`.
        """
        if isinstance(node, ast.Slice):
            return node.lower is not None and self.reads_program(node.lower)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self.is_given(node) or self.is_given(node.value)
        if isinstance(node, ast.Name) and f"{node.id}." in self.given:
            return True
        return (isinstance(node, PLACES) and self.is_given(node)) or any(
            map(self.reads_program, ast.iter_child_nodes(node)))

    def is_given(self, place: ast.expr) -> bool:
        """True of a name that the tests lack, of what holds an answer, and of a function that gives one."""
        if isinstance(place, ast.Name) and isinstance(place.ctx, ast.Load) and place.id not in self.own:
            return True
        return ast.unparse(place) in self.given or (
            isinstance(place, ast.Attribute) and f".{place.attr}" in self.given)       # of any object

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


def in_place_in(tree: ast.Module) -> Iterator[ast.AST]:
    """Statements by which tests look at what became of an argument, or call the program for that alone."""
    answers, nodes = Answers(tree), list(ast.walk(tree))
    imported = answers.fixed - BUILTINS - answers.functions.keys()
    called = {each.value if isinstance(each, ast.Attribute) and ast.unparse(each.value) in {"self", *imported}
              else each for each in (node.func for node in nodes if isinstance(node, ast.Call))}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            and (node not in called or node.id in HOLDING)}
    held = (answers.own - answers.fixed) | answers.functions.keys() | imported | HOLDING
    if read.isdisjoint(held) and not any(each.decorator_list for each in answers.functions.values()):
        yield tree               # nothing holds an argument that could be altered
        return
    calls: dict[ast.expr, set[str]] = {
        node: {ast.unparse(place) for argument in values_of(node)
               for place in places_in(argument) if is_place(place)}
        for node in nodes if isinstance(node, ast.Call) and answers.is_programs(node)}
    raising = {each for node in nodes if isinstance(node, ast.With) and "aises" in ast.unparse(node.items[0])
               for each in node.body}
    altered, before = set[str]().union(*calls.values()), -1
    scope = {each: node for node in nodes if isinstance(node, FUNCTIONS) for each in ast.walk(node)}
    first: dict[Any, tuple[int, int]] = {}          # where a function calls the program first
    for call in calls:
        start = call.lineno, call.col_offset
        first[scope.get(call)] = min(start, first.get(scope.get(call), start))

    def is_later(node: Any) -> bool:
        return (node.end_lineno, node.end_col_offset) > first.get(scope.get(node), (0, 0))
    while len(altered) > before:
        before = len(altered)
        altered |= {name for target, value in answers.bound if not answers.reads_program(value) and reads(
            value, altered) and (is_place(value) or is_later(value)) for name in places_set(target)}

    shown = altered - answers.given
    answers.suspect()

    def looks(claim: ast.expr) -> bool:
        last = claim.comparators[-1] if isinstance(claim, ast.Compare) else claim
        if not (reads(claim, altered) and is_later(last)):
            return False
        if not answers.reads_program(claim):
            return True
        if isinstance(claim, ast.Call) and answers.reads_program(claim.func):
            return False
        operands = [claim.left, *claim.comparators] if isinstance(claim, ast.Compare) else (
            claim.args if isinstance(claim, ast.Call) else [])
        at = Counter(ast.unparse(each.slice) for each in operands if isinstance(each, ast.Subscript))
        others = [each for each in operands if not shows_argument(each) or (   # `a[f(a)]`, not `a[i] == b[i]`
            isinstance(each, ast.Subscript) and answers.reads_program(each)
            and at[ast.unparse(each.slice)] == 1)]
        return len(others) == len(operands) - 1 and (
            is_identity(claim) or not any(map(answers.reads_program, map(root_of, others))))

    def shows_argument(operand: ast.expr) -> bool:         # `a[:2]`, or next to an answer: (f(a), a)
        if isinstance(operand, (ast.Tuple, ast.List)):
            return any(map(shows_argument, operand.elts))
        return isinstance(operand, PLACES) and ast.unparse(root_of(operand)) in shown

    alone = {node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
             and calls.get(node.value) and node not in raising
             and getattr(node.value.func, "attr", "") not in DATA_ATTRIBUTES
             and name_of(node.value.func) not in answers.functions}
    yield from (node for node in nodes if node in alone or any(map(looks, claims_of(node))))


def claims_of(node: ast.AST) -> list[ast.expr]:
    """What must hold for a statement to go on, each by itself."""
    match node:
        case ast.Assert(test=test) | ast.Return(value=ast.Compare() | ast.BoolOp() as test):
            return parts_of(test)
        case ast.If(test=test, body=[ast.Raise() | ast.Assert(test=ast.Constant()), *_]):
            return parts_of(test)
        case ast.If(test=test, body=[ast.Expr(value=ast.Call() as call), *_]) if name_of(call.func) == "fail":
            return parts_of(test)
        case ast.Expr(value=ast.Call() as call) if compares(call):
            return [call]
    return []


def parts_of(test: ast.expr) -> list[ast.expr]:
    """The parts of a condition that hold by themselves if it does."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for each in test.values for part in parts_of(each)]
    if isinstance(test, ast.Compare) and all(isinstance(each, ast.Eq) for each in test.ops):
        return [ast.Compare(left, [ast.Eq()], [right])
                for left, right in pairwise([test.left, *test.comparators])]
    return [test]


def is_identity(claim: ast.expr) -> bool:
    """True of a claim that two names are of one object."""
    return name_of(claim.func) == "assertIs" if isinstance(claim, ast.Call) else isinstance(
        claim, ast.Compare) and isinstance(claim.ops[0], ast.Is)


def reads(node: ast.AST, names: set[str]) -> bool:
    """True where one of the places is read."""
    return any(isinstance(each, PLACES) and ast.unparse(each) in names for each in ast.walk(node))


def is_place(value: ast.AST) -> bool:
    """True of a place, but of no slice, which is a copy."""
    return isinstance(value, PLACES) and not any(isinstance(each, ast.Slice) for each in ast.walk(value))


def root_of(place: ast.expr) -> ast.expr:
    """The place of which a place is an item: `a` of `a[0]`."""
    while isinstance(place, ast.Subscript):
        place = place.value
    return place


def compares(node: ast.AST) -> bool:
    """True of a comparison, and of a call that makes one."""
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and isinstance(
        node.func, ast.Attribute) and node.func.attr.startswith("assert"))


def places_in(argument: ast.expr) -> Iterator[ast.expr]:
    """Names, attributes and items that a program is handed itself, also within a list."""
    if isinstance(argument, PLACES):
        yield argument
    elif isinstance(argument, (ast.Starred, *SEVERAL)):
        for each in ast.iter_child_nodes(argument):
            if isinstance(each, ast.expr):
                yield from places_in(each)


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
            return [(node.target, node.iter), *counted(node, node.iter)]
        case ast.While():
            return counted(node, node.test)
        case ast.withitem() if node.optional_vars is not None:
            return [(node.optional_vars, node.context_expr)]
        case ast.Match():
            names, _fixed = names_set(ast.Tuple([case.pattern for case in node.cases]))  # type: ignore[misc]
            return [(ast.Name(name), node.subject) for name in names]
        case ast.Call(func=ast.Attribute(value=gathering, attr=name)) if name in GATHERS:
            return [(gathering, each) for each in values_of(node)]
    return []


def counted(loop: ast.AST, rounds: ast.expr) -> list[tuple[ast.AST, ast.AST]]:
    """What a loop counts, and what says how often it runs."""
    return [(each.target, rounds) for each in ast.walk(loop) if isinstance(each, ast.AugAssign)]


def values_of(call: ast.Call) -> list[ast.expr]:
    """What a call passes."""
    return [*call.args, *(each.value for each in call.keywords)]


def name_of(function: ast.expr) -> str:
    """The name by which a function or method is called."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
