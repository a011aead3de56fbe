"""The text of tests: what calls them, and what their process has to know of it."""

import ast
import builtins
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
SEVERAL = (ast.Tuple, ast.List, ast.Set, ast.Dict)
DATA_METHODS = set[str]().union(*map(dir, (str, int, float, list, dict, set)))
BUILTINS = frozenset(dir(builtins))
PYTEST = {"raises", "approx", "fail", "fixture", "mark", "param", "skip", "xfail", "nan", "main"}
HOLDING = {"eval", "exec", "globals", "locals", "super", "vars"}    # what holds variables that are not named


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


def facts_of(setup: str, units: Sequence[str], entry_point: str = "") -> dict[str, Any]:
    """What the process of the tests has to know of their text.

    `catches` says whether they catch errors by a name of the program, `in_classes` are names that bodies of
    classes read and the tests do not set, `called` names that they call, `lacks` what they want of pytest in
    vain, `sets` what they set attributes of. Of each source, `meant` are the lines that raise on purpose,
    `claims` the lines at which functions that claim something begin and those that raise, `drops` the lines
    that drop what the program returns. `in_place` says that the tests keep no argument, so that it does not
    matter what the program does to one.
    """
    try:
        trees = [parsed(source) for source in (setup, *units)]
    except NO_PYTHON:
        return {"catches": True, "in_classes": [], "called": [], "lacks": [], "sets": [], "in_place": True,
                "meant": [[]] * (1 + len(units)), "claims": [[[], []]] * (1 + len(units)),
                "drops": [[]] * (1 + len(units))}
    claims = [list(each) for each in zip(claiming(trees), map(raising, trees), strict=True)]
    whole = ast.Module([node for tree in trees for node in tree.body], [])
    nodes, own = list(ast.walk(whole)), names_set(whole)
    fixed = BUILTINS - HOLDING - own - {entry_point.partition(".")[0]}
    catches = any(names_in(node.type, ast.Load) - BUILTINS - own for node in nodes
                  if isinstance(node, ast.ExceptHandler) and node.type)
    called = {node.func.id for node in nodes if isinstance(node, ast.Call)
              and isinstance(node.func, ast.Name)} - own
    sets = {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute)
            and (isinstance(node.ctx, ast.Store) or node.attr == "environ")}
    imported = {alias.asname or alias.name: alias.name for node in nodes
                if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    pytest = {name for name, module in imported.items() if module == "pytest"}
    lacks = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name) and (
                 node.attr not in PYTEST if node.value.id in pytest else node.attr == "getsource")}
    return {"catches": catches, "in_classes": sorted(read_in_classes(whole) - BUILTINS - own),
            "called": sorted(called), "lacks": sorted(lacks), "sets": sorted(sets),
            "meant": [raised_on_purpose(tree, fixed) for tree in trees], "claims": claims,
            "drops": dropping(trees, BUILTINS.union(imported)),
            "in_place": holds_nothing(whole, BUILTINS - HOLDING - own)}


def holds_nothing(tree: ast.Module, fixed: frozenset[str]) -> bool:
    """True of tests that read no names but `fixed` ones: nothing holds an argument that could be altered."""
    nodes = list(ast.walk(tree))
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and (
        node not in called or node.id in HOLDING)} - {"self", "candidate"}
    return read <= fixed and not any(getattr(node, "decorator_list", ()) for node in nodes)


def dropping(trees: Sequence[ast.AST], known: frozenset[str]) -> list[list[int]]:
    """Lines of each tree that call the program and drop the answer, or only claim that it is None.

    Not of what could call it with other arguments: functions by `known` names, or that are passed something
    that is called.
    """
    nodes = [list(ast.walk(tree)) for tree in trees]
    claimed = [call_claimed_none(node) for each in nodes for node in each]
    read = {node.id for each in nodes for node in each if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load) and node not in claimed}
    read |= {node.attr for each in nodes for node in each if isinstance(node, ast.Attribute)}

    def drops(node: ast.stmt) -> bool:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call() as call) if not read & {name, *HOLDING}:
                pass
            case ast.Assert() | ast.Expr():
                found = call_claimed_none(node) or getattr(node, "value", None)
                if not isinstance(found, ast.Call):
                    return False
                call = found
            case _:
                return False
        root: ast.AST = call
        while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
            root = root.func if isinstance(root, ast.Call) else root.value
        passed = [*call.args, *(each.value for each in call.keywords)]
        return isinstance(root, ast.Name) and root.id not in known and not (
            name_of(call.func).startswith("assert")) and not any(
            isinstance(each, ast.Call) for part in passed if not isinstance(part, ast.Lambda)
            for each in ast.walk(part))
    return [sorted({line for node in each if isinstance(node, ast.stmt) and drops(node)
                    for line in range(node.lineno, (node.end_lineno or 0) + 1)}) for each in nodes]


def call_claimed_none(node: ast.AST) -> ast.AST | None:
    """What a statement claims to be None."""
    match node:
        case ast.Assert(ast.Compare(value, [ast.Is()], [ast.Constant(None)])) | ast.Expr(
                ast.Call(func=ast.Attribute(attr="assertIsNone"), args=[value, *_])):
            return value
    return None


def names_in(node: ast.AST, kind: type[ast.expr_context]) -> set[str]:
    """Names in a tree that are read, or those that are set."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, kind)}


def names_set(tree: ast.AST) -> set[str]:
    """Names that tests set in any way, those of functions and of what they import among them."""
    own = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                own.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                own.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(
                    rest=str(name)) | ast.ExceptHandler(name=str(name)):
                own.add(name)
            case ast.alias(name=name):
                own.add(name.split(".")[0])
    return own


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
    """Lines of `with` blocks that raise an error whatever the program does: `1 / 0`.

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
    return sorted({each.lineno for block in ast.walk(tree) if isinstance(block, (ast.With, ast.AsyncWith))
                   for each in takewhile(lambda each: not may_leave(each), block.body)
                   if lines[each.lineno] == 1 and is_fixed(each)})


def claiming(trees: Sequence[ast.AST]) -> list[list[int]]:
    """First lines of the functions of each tree that claim something, by an assert or a call of what does."""
    functions = [[node for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.Lambda))]
                 for tree in trees]
    by_name = [node for each in functions for node in each
               if isinstance(node, FUNCTIONS) and node.name not in DATA_METHODS]
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


def name_of(function: ast.expr) -> str:
    """The name by which a function or method is called."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
