"""The text of tests: what calls them, and what their process has to know of it."""

import ast
import builtins
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
SEVERAL = (ast.Tuple, ast.List, ast.Set, ast.Dict)
DATA_METHODS = set[str]().union(*map(dir, (str, int, float, list, dict, set)))
BUILTINS = frozenset(dir(builtins))
PYTEST = {"raises", "approx", "fail", "fixture", "mark", "param", "skip", "xfail", "nan", "main",
          "warns"}
BY_NAME = {"getattr", "attrgetter", "methodcaller", "__dict__"}          # what reads by a text
# What holds variables that are not named.
HOLDING = {"eval", "exec", "globals", "locals", "super", "vars", "f_globals", "f_locals", "__globals__",
           "getmembers", "get_objects", "get_referents"}
# Names of modules of which a star import is one of the program.
PROGRAM_MODULE = re.compile(r"(?i)solution|answer|program|candidate|submission|implement|main|module")
# Names of modules that are the program's also beside its bare entry point, where others are references.
OWN_MODULE = re.compile(
    r"(?i)(my_?|your_?)?(solution|program|candidate|submission|implementation|main|module)s?")


def calls_of_tests(source: str) -> list[str]:
    """Statements that run each test function and each method of a class, inherited ones too.

    None where `check` is the test: there are no others, or it has the parameter `candidate` and nobody calls
    it. None of a source that cannot be read, which running it then says.
    """
    try:
        tree = ast.parse(source)
    except NO_PYTHON:
        return []
    functions = [node for node in tree.body if isinstance(node, FUNCTIONS)]
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    checks = [node for node in functions if node.name == "check"]

    paths = list[str]()                # in pytest's order
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and is_test(node):
            paths.append(node.name)
        elif isinstance(node, ast.ClassDef) and classes[node.name] is node and not is_skipped(node):
            paths += [f"{node.name}.{test}" for test in tests_of(node, classes)]
    paths = [*dict.fromkeys(paths)]
    is_asked = any([each.arg for each in node.args.args][:1] == ["candidate"] for node in checks)
    if checks and (not paths or (is_asked and "check" not in names_in(tree, ast.Load))):
        return []
    return [f"__run__({path!r})" for path in paths] or ["raise ImportError('all tests are skipped')"]


def tests_of(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[str]:
    """The tests of a class in the order in which they run; none of a helper, or one that is switched off."""
    family = family_of(node, classes)
    methods = [each for kind in reversed(family) for each in kind.body if isinstance(each, FUNCTIONS)]
    tests = [each.name for each in methods if is_test(each)]
    is_case = any(ast.unparse(base).endswith("TestCase") for kind in family for base in kind.bases)
    is_derived = any(getattr(base, "id", "") not in (*classes, "object") for base in node.bases)
    is_plain = not (is_case or is_derived)                          # derived of TestCase by another name
    has_init = "__init__" in [each.name for each in methods]
    is_abstract = any("abstractmethod" in ast.unparse(each) for method in methods if method in node.body
                      for each in method.decorator_list)            # there to derive tests from
    for each in (each for kind in family for each in kind.body):
        match each:
            case ast.Assign([ast.Name("__test__")], ast.Constant(value)):
                tests = tests if value else []
                break                                               # those of its bases do not count
    if is_abstract or (is_plain and (has_init or not node.name.startswith("Test"))):
        return []
    return sorted(tests) if is_case else tests


def family_of(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """A class and its bases in the same source, each followed by its own bases."""
    others = {name: each for name, each in classes.items() if name != node.name}
    return [node, *(each for base in node.bases if isinstance(base, ast.Name) and base.id in others
                    for each in family_of(others[base.id], others))]


def is_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for a test that is not to be skipped."""
    return node.name.startswith("test") and not is_skipped(node)


def is_skipped(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """True for `@unittest.skip('reason')` and the like."""
    return any(ast.unparse(each).partition("(")[0].removeprefix("unittest.").removeprefix("pytest.mark.")
               in ("skip", "mark.skip") for each in node.decorator_list)


class WithoutLiterals(ast.NodeTransformer):
    """Drops literal containers, which may be long."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        is_literal = isinstance(node, (*SEVERAL, ast.UnaryOp)) and all(
            isinstance(each, (ast.Constant, ast.expr_context, ast.unaryop))
            for each in ast.iter_child_nodes(node))
        return ast.copy_location(ast.Constant(...), node) if is_literal else node


def facts_of(setup: str, units: Sequence[str], entry_point: str = "") -> dict[str, Any]:
    """What the process of the tests has to know of their text.

    `catches` says whether they catch errors by a name of the program, `in_classes` are names that bodies of
    classes read and the tests do not set, `called` names that they call, `lacks` what they want of pytest in
    vain, `patches` what they replace in modules. Of each source, `meant` are the lines that raise on purpose,
    `claims` the lines at which functions that claim something begin and those that raise, `drops` names of
    what is called by statements that drop what it returns. `program` are modules from which they import the
    program, `imports` others that they import in any case. `in_place` says that the tests keep no argument,
    so that what the program does to one is all the same.
    """
    try:
        trees = [parsed(source) for source in (setup, *units)]
    except NO_PYTHON:
        return no_facts(1 + len(units))
    entry = entry_point.partition(".")[0]
    aliases = [(each.name, each.asname) for tree in trees for node in ast.walk(tree)
               if isinstance(node, ast.ImportFrom) for each in node.names if each.asname]
    programs = imports_of(trees, entry)
    claims = [list(each) for each in zip(claiming(trees), map(raising, trees), strict=True)]
    whole = ast.Module([node for tree in trees for node in tree.body], [])
    nodes, own = list(ast.walk(whole)), names_set(whole)
    fixed = BUILTINS - HOLDING - own - {entry}
    catches = any(names_in(node.type, ast.Load) - BUILTINS - own for node in nodes
                  if isinstance(node, ast.ExceptHandler) and node.type)
    called = {node.func.id for node in nodes if isinstance(node, ast.Call)
              and isinstance(node.func, ast.Name)} - own
    pytest = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import)
              for alias in node.names if alias.name == "pytest"}
    lacks = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name) and (
                 node.attr not in PYTEST if node.value.id in pytest else node.attr == "getsource")}
    lacks |= {"expectedFailure", "marshal"} & {
        getattr(node, "attr", getattr(node, "name", "")) for node in nodes}
    lacks |= programs if len(programs) > 1 else set()         # one of them is a reference
    return {"catches": catches, "in_classes": sorted(read_in_classes(whole) - BUILTINS - own),
            "called": sorted(called), "lacks": sorted(lacks), "patches": sorted(patches_in(nodes)),
            "meant": [raised_on_purpose(tree, fixed) for tree in trees], "claims": claims,
            "drops": dropping(trees, own, [("candidate", entry), *aliases]), "program": sorted(programs),
            "imports": sorted(imported(trees) - programs),
            "in_place": holds_nothing(whole, BUILTINS - HOLDING - own)}


def no_facts(num_sources: int) -> dict[str, Any]:
    """The facts of so many sources of which nothing is known."""
    return {"catches": True, "in_classes": [], "called": [], "lacks": [], "patches": [], "imports": [],
            "in_place": True, "meant": [[]] * num_sources, "claims": [[[], []]] * num_sources,
            "drops": [{}] * num_sources, "program": []}


def imports_of(trees: Sequence[ast.AST], entry: str) -> set[str]:
    """Modules from which tests import the program, of which they read its entry point.

    What they import from there by name is dropped from the trees, where it would be a name of theirs. Another
    module beside a bare entry point, or beside `candidate`, is a reference and not the program.
    """
    found, nodes = set[str](), [node for tree in trees for node in ast.walk(tree)]
    passed = {id(each) for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
              and node.func.id == "check" for each in node.args}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            and id(node) not in passed}
    is_bare, is_given = entry in read, "candidate" in read
    modules = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and node.attr == entry
               and isinstance(node.value, ast.Name)}
    from_others = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module not in (
        None, "pytest") and not is_library(node.module)]
    others = {node.module for node in from_others}
    stars = {module for module in others if len(others) == 1 and PROGRAM_MODULE.search(str(module))}
    is_imported = any(alias.name == entry == (alias.asname or entry)
                      for node in from_others for alias in node.names)

    def is_program(module: str, name: str | None = None) -> bool:
        beside = is_given and is_bare if name in (entry, "*") else is_given or (is_bare and not is_imported)
        return not is_library(module) and (not beside or bool(OWN_MODULE.fullmatch(module.split(".")[-1])))

    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if any(
                    (alias.name == entry or (alias.name == "*" and module in stars))
                    and is_program(module, alias.asname or alias.name) for alias in names):
                found.add(module)
                node.names = []
            case ast.Import(names):
                found |= {alias.name for alias in names if is_program(alias.name) and (
                    (alias.asname or alias.name) in modules
                    or (OWN_MODULE.fullmatch(alias.name) and not (is_bare or is_given)))}
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(str(name))]) if (
                    OWN_MODULE.fullmatch(name) and not (is_bare or is_given)):
                found.add(name)
    return found


def imported(trees: Sequence[ast.AST]) -> set[str]:
    """Modules that sources import in any case: neither on a condition, nor in helpers."""
    found, nodes = set[str](), [*trees]
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.names:
            found.add(node.module)
        elif not isinstance(node, (ast.If, ast.Try, ast.TryStar, ast.Match)) and str(
                getattr(node, "name", "test")).startswith(("test", "check", "Test", "set")):
            nodes += ast.iter_child_nodes(node)
    return found


def patches_in(nodes: Sequence[ast.AST]) -> set[str]:
    """What tests replace in modules: by mocks, by `monkeypatch`, by `setattr`, and by plain assignment."""
    modules = {alias.asname or alias.name: alias.name for node in nodes if isinstance(node, ast.Import)
               for alias in node.names}
    found = set[str]()
    for node in nodes:
        match node:
            case ast.Call(function, [ast.Constant(str(target)), *_]) if ast.unparse(function) in (
                    "patch", "mock.patch", "unittest.mock.patch", "monkeypatch.setattr"):
                found.add(target)
            case ast.Call(ast.Attribute(_, "object") | ast.Attribute(ast.Name("monkeypatch"), "setattr")
                          | ast.Name("setattr"), [owner, ast.Constant(str(name)), *_]) | (
                    ast.Attribute(owner, name, ast.Store() | ast.Del())):
                if (module := ast.unparse(owner)) in modules:
                    found.add(f"{modules[module]}.{name}")
            case ast.Attribute(ast.Name(module), "environ" as name) | ast.Subscript(
                    ast.Attribute(ast.Name(module), "modules" as name), ctx=ast.Store()) if module in modules:
                found.add(f"{modules[module]}.{name}")
    return found


def is_library(module: str) -> bool:
    """True of what is never the program; what else is allowed, the tests' process has loaded."""
    return module.partition(".")[0] in (*sys.stdlib_module_names, "numpy", "__main__")


def holds_nothing(tree: ast.Module, fixed: frozenset[str]) -> bool:
    """True of tests that read no names but `fixed` ones: nothing holds an argument that could be altered."""
    nodes = list(ast.walk(tree))
    called = {each for node in nodes if isinstance(node, ast.Call)
              for each in (node.func, getattr(node.func, "value", None))
              if each is node.func or (isinstance(each, ast.Name) and each.id == "self")}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and (
        node not in called or node.id in HOLDING)}
    return read <= fixed and not any(getattr(node, "decorator_list", ()) for node in nodes)


def scopes_of(tree: ast.AST) -> list[list[ast.AST]]:
    """The nodes that are in no function, and those of each function that is in no other."""
    scopes, inside = list[list[ast.AST]](), set[ast.AST]()
    for node in ast.walk(tree):                                        # outer ones first
        if isinstance(node, FUNCTIONS) and node not in inside:
            scopes.append(list(ast.walk(node)))
            inside.update(scopes[-1])
    return [[node for node in ast.walk(tree) if node not in inside], *scopes]


def first_line(function: Any) -> int:
    """The line at which the code of a function begins."""
    return min([function.lineno, *(each.lineno for each in getattr(function, "decorator_list", ()))])


def dropping(trees: Sequence[ast.AST], own: set[str],
             names: Sequence[tuple[str, ...]]) -> list[dict[str, str]]:
    """By the end (line and column) of calls of each tree whose answer is dropped: the name of what is called.

    So do those that claim None of it, if the tests use no answer of what goes by this name, which is not one
    of their `own`, or by another of its `names`.
    """
    scopes = [scopes_of(tree) for tree in trees]
    shared = [node for each in scopes for nodes in each for node in nodes]
    asked = set(map(id, nones_in(shared)))
    found = [[calls_dropped(nodes, nodes if place else shared, asked) for place, nodes in enumerate(each)]
             for each in scopes]
    alone = {id(call) for tree in found for dropped, nothing in tree for call in (*dropped, *nothing)}
    functions = {id(each) for node in shared if isinstance(node, ast.Call) for each in (
        [node.func] * (id(node) in alone) + node.args * (name_of(node.func) == "check"))}
    used = {name_of(node) for node in shared if isinstance(node, (ast.Name, ast.Attribute)) and (
        isinstance(node.ctx, ast.Store) or id(node) not in functions)} | own - {"candidate"}
    used |= {each for same in names if not used.isdisjoint(same) for each in same}
    return [{f"{call.end_lineno}:{call.end_col_offset}": path_of(call.func)
             for dropped, nothing in tree for call in (*dropped, *(
                 each for each in nothing if not used & {name_of(each.func), *BY_NAME, *HOLDING}))}
            for tree in found]


def path_of(function: ast.expr) -> str:
    """What a call names: `f`, or `owner.method`; what is no name is `?`."""
    match function:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name() | ast.Attribute() as owner, name):
            return f"{path_of(owner)}.{name}"
        case ast.Attribute(_, name):
            return f"?.{name}"
    return "?"


def nones_in(nodes: Sequence[ast.AST]) -> list[ast.expr]:
    """What the nodes claim to be None."""
    claims = [node.test for node in nodes if isinstance(node, ast.Assert)]
    claims += [each for claim in claims if isinstance(claim, ast.BoolOp) and isinstance(claim.op, ast.And)
               for each in claim.values]
    found = list[ast.expr]()
    for node in (*claims, *(each for each in nodes if isinstance(each, ast.Call))):
        match node:
            case ast.Compare(value, [ast.Is() | ast.Eq()], [ast.Constant(None)]) | ast.Call(
                    ast.Attribute(attr="assertIsNone"), [value]):
                found.append(value)
    return found


def calls_dropped(nodes: Sequence[ast.AST], readers: Sequence[ast.AST],
                  asked: set[int]) -> tuple[list[ast.Call], list[ast.Call]]:
    """Calls of a scope whose answers nothing uses, and those that are only `asked` whether they are None.

    `readers` are the nodes that see the variables of the scope.
    """
    read, of_none, dropped = set[str](), set[str](), list[ast.Call]()
    nothing = [node for node in nodes if isinstance(node, ast.Call) and id(node) in asked]
    for node in readers:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            read.update(node.names)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            (of_none if id(node) in asked else read).add(name_of(node))
    in_classes = {id(each) for node in nodes if isinstance(node, ast.ClassDef) for each in ast.walk(node)}
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call() as call) if (
                    id(node) not in in_classes and not read & {name, *BY_NAME, *HOLDING}):
                (nothing if name in of_none else dropped).append(call)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("asyncio"), "run"), [ast.Call() as call])) | (
                    ast.Expr(ast.Call() as call)) | ast.Expr(ast.Await(ast.Call() as call)):
                dropped.append(call)
    return dropped, nothing


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

    def is_fixed(statement: ast.stmt, bound: frozenset[str]) -> bool:
        nodes = list(ast.walk(statement))
        if isinstance(statement, ast.Raise):    # what it calls of the context itself may fail
            return not any(isinstance(each, ast.IfExp) or (
                isinstance(each, (ast.Attribute, ast.Subscript)) and not bound.isdisjoint(
                    names_in(each, ast.Load))) for each in nodes)
        return isinstance(statement, (ast.Assert, ast.Expr, ast.Assign)) and fixed.issuperset(
            names_in(statement, ast.Load))

    def may_leave(statement: ast.stmt) -> bool:
        return any(isinstance(each, (ast.Return, ast.Break, ast.Continue)) for each in ast.walk(statement))
    return sorted({each.lineno for block in ast.walk(tree) if isinstance(block, (ast.With, ast.AsyncWith))
                   for bound in [frozenset[str]().union(*(names_in(item.optional_vars, ast.Store)
                                                          for item in block.items if item.optional_vars))]
                   for each in takewhile(lambda each: not may_leave(each), block.body)
                   if lines[each.lineno] == 1 and is_fixed(each, bound)})


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
    return [sorted({first_line(node) for node in each if claims(node)}) for each in functions]


def raising(tree: ast.AST) -> list[int]:
    """Lines that raise something other than a failed claim."""
    return sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.Raise)
                   and "AssertionError" not in ast.unparse(node)})


def name_of(function: ast.expr) -> str:
    """The name by which a function or method is called."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
