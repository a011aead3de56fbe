"""Stand-ins for objects that stay in the other process and are asked there.

What a test may do to a stand-in is what could be right. It is never equal to plain data; arithmetic, order
and `in` with plain data are refused, but for objects that the test itself made of a class that it names,
because they would show the program what is expected of it. Of these, arithmetic with plain data makes
others; a difference or quotient is asked nothing that this data could be asked.
"""

import builtins
import contextlib
import functools
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
BINARY = [f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "xor",
    "or")]
BINARY += ["__divmod__", "__rdivmod__"]
SUMS = ("__add__", "__radd__", "__iadd__", "__or__", "__ior__", "__and__", "__iand__")
# By these no test compares with what it expects.
GROWING = [f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in (
    "add", "mul", "lshift", "or", "pow")]
# Their operands do not reveal what a test expects.
FREE = ("__len__", "__iter__", "__next__", "__reversed__", "__getitem__", "__setitem__", "__delitem__",
        "__bool__", "__repr__", "__str__", "__format__", "__bytes__", "__int__", "__float__", "__complex__",
        "__index__", "__round__", "__trunc__", "__floor__", "__ceil__", "__abs__", "__neg__", "__pos__",
        "__invert__", "__call__", "__enter__", "__exit__", "__aiter__", "__anext__", "__aenter__",
        "__aexit__", "__copy__", "__deepcopy__")
SPECIAL = frozenset({*ORDER, *BINARY, *FREE, "__eq__", "__ne__", "__hash__", "__contains__", "__await__"})
# Methods of plain data that take an expected value; objects of the program do not have them.
QUESTIONS = frozenset({*dir(set)} - {"add", "clear", "copy", "pop", "remove", "update"} - {*dir(object)}) | {
    "startswith", "endswith", "count", "index", "rindex", "find", "rfind", "partition", "rpartition", "split",
    "rsplit", "strip", "lstrip", "rstrip", "replace", "removeprefix", "removesuffix", "match", "fullmatch",
    "equals", "subtract", "compare", "compare_signal", "compare_total", "compare_total_mag", "same_quantum",
    "is_relative_to", "relative_to", "search", "subnet_of", "supernet_of", "overlaps",
    "has_samecoef", "full_match", "samefile"}
VIEWS = ("keys", "items", "values")
# Operators of data that has a class of its own.
BETWEEN = (*BINARY, "__neg__", "__pos__", "__abs__", "__invert__", "__bool__", "__call__",
           "__contains__")
NUMBERS = (int, float, complex)
CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
# What a difference would be asked, by which a test compares: of numbers, and of other data.
OF_NUMBERS = frozenset({*dir(int), *dir(float)} & {
    "__bool__", "__int__", "__float__", "__round__", "__trunc__", "__floor__", "__ceil__", "__abs__"} | {
    "__complex__", "__index__", "is_integer", "bit_length", "bit_count", "as_integer_ratio", "is_zero",
    "is_nan", "total_seconds", "sqrt", "cbrt", "exp", "exp2", "expm1", "fabs", "rint", "absolute"})
OF_DATA = OF_NUMBERS | {"__len__", "__iter__", "__next__", "__reversed__", "__getitem__", "__contains__", *(
    name for kind in (str, list, tuple, dict, set) for name in dir(kind) if name[0] != "_"),
    "all", "any", "item", "max", "mean", "min", "sum", "tolist"}
# What leaves an object as many items as it had.
PASSIVE = frozenset((
    "__len__", "__iter__", "__reversed__", "__getitem__", "__bool__", "__repr__", "__str__", "__eq__",
    "__ne__", "__hash__", "__contains__", "__next__", "sort", "reverse", "copy", *VIEWS))
# Double-underscore names that are asked for; others are hooks of libraries.
ASKED = frozenset(f"__{name}__" for name in (
    "name", "qualname", "doc", "dict", "annotations", "defaults", "kwdefaults", "members", "wrapped",
    "dataclass_fields", "match_args", "slots", "notes"))
VALUES: tuple[Any, ...] = (bool, int, float, complex, str, bytes, tuple, frozenset)     # their value crosses
CHANGING: tuple[Any, ...] = (list, dict, set, bytearray)             # their value is asked for
# Interpreter types that a stand-in may report as its `__class__`.
LIKENESSES = {kind.__name__: kind for kind in (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.GeneratorType, types.CoroutineType,
    types.AsyncGeneratorType, map, filter, zip, enumerate, reversed, functools.partial, property)}


class Failed(BaseException):
    """What `fail` of pytest raises, which no `except Exception` of a test catches."""


class Untestable(Exception):
    """The tests want what their process does not have."""


class Given(types.SimpleNamespace):
    """What pytest gives a test, as far as it is here."""

    def __getattr__(self, name: str) -> Any:
        raise Untestable(f"its {name} is not here")


class GivenError(type):
    """The class of what tests get where the program gives them a class of errors of Python.

    Errors of their own are not objects of it, so no `except` that the program names passes over them.
    """

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__bases__[0]

    def __hash__(cls) -> int:
        return hash(cls.__bases__[0])


GIVEN_ERRORS: dict[Any, Any] = {}
for error in sorted((each for each in vars(builtins).values() if isinstance(each, type) and issubclass(
        each, BaseException)), key=lambda each: len(each.__mro__)):         # bases first
    GIVEN_ERRORS[error] = GivenError(error.__name__, (error, *(
        GIVEN_ERRORS[base] for base in error.__bases__ if base in GIVEN_ERRORS)), {"__module__": "builtins"})


class ProgramClass(type):
    """The class of stand-ins for classes of the other process."""

    _rh_sized = False
    _rh_given: bool | None = None            # True for an answer, False for what tests asked for by name

    def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any], /, **options: Any) -> Any:
        if "_rh_class" not in names:                  # a class statement with a stand-in as base
            return subclass(name, bases, names, options)
        return super().__new__(cls, name, bases, names)

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any], /, **_options: Any) -> None:
        super().__init__(name, bases, names)

    def __call__(cls, /, *arguments: Any, **keywords: Any) -> Any:
        made = peer.ask("call", cls, *arguments, **keywords)
        into = frozenset[str]().union(*map(fed, (*arguments, *keywords.values())))
        return as_made(made, cls._rh_trusted and type(made), into)

    def __getattr__(cls, name: str) -> Any:
        if is_inner(name):
            raise AttributeError(name)
        found: Any = answered(cls, name, peer.ask("getattr", cls, name), cls._rh_given is False)
        if cls._rh_trusted and issubclass(type(found), StandIn) and (
                name != peer.tests.entry_point.rpartition(".")[2]):
            object.__setattr__(found, "_rh_maker", cls)          # calling it counts as constructing an object
        return found

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("_rh_") or name in ("__abstractmethods__", "__doc__"):
            type.__setattr__(cls, name, value)
            return
        if any(name in vars(base) for base in cls.__mro__[:-1]):       # a method, which a test replaces
            if type(own := vars(cls).get(name)) is types.FunctionType:
                replaced.setdefault(own, peer.ask("getattr", cls, name))
            type.__setattr__(cls, name, value)
        is_function = type(value) is types.FunctionType
        peer.ask("setattr", cls, name, replaced.get(value, value) if is_function else value)

    def __delattr__(cls, name: str) -> None:
        if name in vars(cls):
            type.__delattr__(cls, name)
        peer.ask("delattr", cls, name)

    def __instancecheck__(cls, value: Any) -> bool:
        return type.__instancecheck__(cls, value) or (              # or as a hook of its class has it
            peer.strict and is_stand_in(value) and peer.ask("isinstance", value, cls) is True)

    def __subclasscheck__(cls, kind: type) -> bool:
        return type.__subclasscheck__(cls, kind) or (
            peer.strict and isinstance(kind, ProgramClass) and peer.ask("issubclass", kind, cls) is True)

    def __bool__(cls) -> bool:
        return True

    def __contains__(cls, key: Any) -> Any:
        if not peer.strict or is_stand_in(key):
            return peer.ask("special", "__contains__", cls, key)
        return any(each is key or each == key for each in iter(cls))     # type: ignore[call-overload]


class StandIn:
    """An object of the other process."""

    __slots__ = ("__weakref__", "_rh_fed", "_rh_made", "_rh_maker", "_rh_number")
    _rh_likeness, _rh_sized = None, False     # without annotations, which every stand-in would inherit

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self)._rh_likeness or type(self)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":
            return signature_of(self)
        if name == "__code__":
            return types.SimpleNamespace(**peer.ask("code", self))
        if is_inner(name):
            raise AttributeError(name)
        found = peer.ask("getattr", self, name)
        if callable(found):
            check_unfed(self, name)
        if isinstance(self, VALUES) and is_made(self) and isinstance(type(found), ProgramClass):
            object.__setattr__(found, "_rh_maker", type(self))
        return answered(self, name, found, is_constructed(self))

    def __setattr__(self, name: str, value: Any) -> None:
        for base in type(self).__mro__:                  # a method would hide it
            if isinstance(base, ProgramClass) and isinstance(vars(base).get(name), types.FunctionType):
                type.__delattr__(base, name)
        peer.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        peer.ask("delattr", self, name)

    def __copy__(self) -> Any:
        how = slot(self, "_rh_made")
        return as_made(peer.ask("copy", self), how and type(self), fed(self), how)

    def __deepcopy__(self, _memo: Any) -> Any:
        how = slot(self, "_rh_made")
        return as_made(peer.ask("deepcopy", self), how and type(self), fed(self), how)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise refused(TypeError("an object of the other process cannot be pickled"))

    def __dir__(self) -> Any:
        return peer.ask("dir", self)


class Doc:
    """The docstring of a stand-in, which is not that of its class."""

    def __init__(self, of_class: str | None) -> None:
        self.of_class = of_class

    def __get__(self, owner: Any, _kind: type) -> Any:
        return self.of_class if owner is None else peer.ask("getattr", owner, "__doc__")


# Modules that tests may patch.
PATCHED = ("builtins", "time", "random", "os", "math", "os.path", "datetime", "secrets", "uuid")
# Of other modules; what programs print and read crosses anyway.
PATCHED_PARTS = ("sys.argv", "sys.stdin", "sys.stdout", "sys.stderr")
peer: Any = None            # this process's end of the link
replaced: dict[Any, Any] = {}                # functions of the program, by the method that stands for them


def check_patch(target: Any, name: str) -> None:
    """Untestable for a patch of a module that would not reach the program."""
    reaches = f"{getattr(target, '__name__', '')}.{name}" in PATCHED_PARTS or any(
        sys.modules.get(each) is target for each in PATCHED)
    if isinstance(target, types.ModuleType) and not reaches:
        raise Untestable(f"a patch of {target.__name__}.{name} is not here")


def is_inner(name: str) -> bool:
    """True for a name that is never asked of another process."""
    return name.startswith("_rh_") or (name.startswith("__") and name not in ASKED)


def refused(error: Exception) -> Exception:
    """An error that the program did not raise: a test that expects it does not pass."""
    peer.is_unpassed, peer.refusal = True, str(error)
    return error


def is_made(value: Any) -> bool:
    """True for an object that the test constructed from a class of the program, or by a method of one."""
    return bool(slot(value, "_rh_made"))


def answered(owner: Any, name: str, found: Any, may_ask: bool) -> Any:
    """An attribute as tests see it: unless they `may_ask`, they show it no plain data that they expect."""
    if peer.strict and name in QUESTIONS and callable(found) and not may_ask:
        return functools.partial(unshown, name, found)
    is_view = name in VIEWS and callable(found) and is_held(owner)
    return functools.partial(viewed, owner, found) if is_view else found


def unshown(name: str, question: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """Call what the program returned by one of QUESTIONS; refused with plain data."""
    if not all(is_stand_in(each) or is_code(each) for each in (*arguments, *keywords.values())):
        raise refused(AttributeError(f"'{name}' with plain data of what the program returned"))
    return question(*arguments, **keywords)


def is_constructed(value: Any) -> bool:
    """True for an object that the test constructed by the class itself: a method may mean to return data."""
    return slot(value, "_rh_made") is True


def is_code(value: Any) -> bool:
    """True for a callable that is no data: Python's own, or one without comparison and arithmetic."""
    kind = type(value)
    return callable(value) and kind.__module__ != "tests" and (issubclass(kind, CODE) or not any(
        getattr(kind, name, None) is not getattr(object, name, None)
        for name in ("__eq__", *ORDER, "__add__", "__sub__", "__iter__", "__len__")))


def slot(value: Any, name: str) -> Any:
    """What this process notes of an object, or None."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def as_made(value: Any, kind: Any, fed_with: frozenset[str] = frozenset(), how: Any = True) -> Any:
    """The value, which counts as made by the test if it is an object of just this class.

    What the program gave in another way before never does. `fed_with` is what it is not asked, `how` True
    if the class itself was called.
    """
    if type(value) is kind and isinstance(value, (StandIn, *VALUES)) and value is peer.may_be_made:
        object.__setattr__(value, "_rh_made", how)
    if fed_with and isinstance(value, StandIn):
        object.__setattr__(value, "_rh_fed", fed_with | fed(value))
    return value


def fed(value: Any) -> frozenset[str]:
    """What an object is not asked, because plain data went into it."""
    return slot(value, "_rh_fed") or frozenset()


def check_unfed(value: Any, name: str) -> None:
    """Refuse a question that could tell how far the object is from plain data that went into it."""
    if peer.strict and name in fed(value):
        raise refused(TypeError(f"'{name}' of what an object of the program and plain data made"))


def is_held(value: Any) -> bool:
    """True for an answer that has a length, to which it is held."""
    is_sized = isinstance(value, ProgramClass) or type(value)._rh_sized
    return bool(peer.strict and is_sized and not is_constructed(value))


def hold(answer: Any, number: int) -> int:
    """The number of items of an answer, which stays what it was until the program could change it."""
    if type(number) is not int:
        raise refused(TypeError("a length that is no number"))
    if (before := peer.lengths.setdefault(id(answer), number)) != number:
        raise refused(AssertionError(f"an answer of {before} items has {number}"))
    return number


def viewed(answer: Any, view: Callable[..., Any], *arguments: Any) -> Any:
    """The keys, values or items of an answer, which taking them does not change."""
    before = dict(peer.lengths)
    kept = list(items := view(*arguments))
    peer.lengths.update(before)
    hold(answer, len(kept))
    return kept if is_stand_in(items) else items


def each_of(answer: Any, items: Any) -> Any:
    """The items of an answer, one by one; of one with a length, that many."""
    number = 0
    if id(answer) not in peer.lengths:
        try:
            len(answer)
        except Exception as error:      # a loop needs no length; what a callback claims meanwhile counts
            if error is peer.failure:
                raise
    for each in items:
        number += 1
        if number > peer.lengths.get(id(answer), number):
            break
        yield each
    hold(answer, number)


def one_by_one(iterator: Any) -> Any:
    """The items of an object that is its own iterator."""
    with contextlib.suppress(StopIteration):
        while True:
            yield next(iterator)


def by_index(self: Any) -> Any:
    """The items of an object that has `__getitem__` instead of `__iter__`."""
    def items() -> Any:
        with contextlib.suppress(IndexError):
            yield from map(self.__getitem__, itertools.count())
    return each_of(self, items()) if is_held(self) else items()


def by_length(self: Any) -> bool:
    """The truth of an object that has `__len__` instead of `__bool__`."""
    check_unfed(self, "__bool__")
    return len(self) > 0


def from_the_end(self: Any) -> Any:
    """The items of an object without `__reversed__`, of which none may lack."""
    return map(self.__getitem__, reversed(range(len(self))))


def is_stand_in(value: Any) -> bool:
    """True for an object of another process."""
    return isinstance(type(value), ProgramClass) or isinstance(value, ProgramClass)


def forwarder(name: str) -> Callable[..., Any]:
    """The special method of a stand-in."""
    def special(self: Any, /, *operands: Any, **keywords: Any) -> Any:
        check_unfed(self, name)
        return peer.ask("special", name, self, *operands, **keywords)

    def called(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        return as_made(special(self, *arguments, **keywords), slot(self, "_rh_maker"), how="by a method")

    def signed(self: Any) -> Any:
        how = slot(self, "_rh_made")        # of which an answer that is the object itself takes away
        return as_made(special(self), how and type(self), fed(self), how)

    def compared(self: Any, other: Any, *more: Any) -> Any:
        is_plain = peer.strict and not (is_stand_in(other) or is_code(other))
        may_compute = is_made(self) and name not in ORDER
        if is_plain and not may_compute:
            if type(other).__module__ == "tests":
                return NotImplemented
            error = refused(TypeError(f"'{name}' between an object of the program and plain data"))
            if name in ORDER and type(other).__module__ == "builtins":       # NotImplemented would be true
                raise error
            return NotImplemented
        keeps_kind = may_compute and (
            name in SUMS or not is_stand_in(other) or (name == "__sub__" and is_made(other)))
        before = fed(self) | fed(other) | (frozenset() if not is_plain or name in GROWING else
                                           OF_NUMBERS if isinstance(other, NUMBERS) else OF_DATA)
        how = slot(self, "_rh_made")
        made = special(self, other, *more)
        if made is self and how and name.startswith("__i"):     # as by a method
            return as_made(made, type(self), before, how)
        made = as_made(made, keeps_kind and type(self), before, how)
        is_object = isinstance(made, StandIn) and not getattr(type(made), "_rh_changing", False)
        is_known = before or (name in BINARY and not is_code(other) and not (is_made(self) or is_made(other)))
        if peer.strict and is_known and not is_object and made is not NotImplemented:
            raise refused(TypeError("an operator of objects that the program returned makes plain data"))
        return made

    def equal(self: Any, other: Any) -> Any:
        if self is other or not peer.strict or is_stand_in(other):
            return peer.ask("special", name, self, other)
        if not type(self)._rh_changing:
            # Without asking the program, which would be shown what is expected.
            return name == "__ne__" if type(other).__module__ == "builtins" else NotImplemented
        same = peer.ask("plain", self) == other            # compare the contents of a list
        return same if name == "__eq__" else not same

    def contains(self: Any, item: Any) -> Any:
        check_unfed(self, name)
        if not peer.strict or is_stand_in(item) or is_constructed(self):
            return peer.ask("special", name, self, item)
        is_unknown = False           # whether its own `__contains__` may say something else
        try:
            for each in self:
                if each is item or each == item:
                    return True
                is_unknown |= is_stand_in(each)
        except TypeError:
            is_unknown = True
        if is_unknown:
            raise refused(TypeError("'in' between an object of the program and plain data"))
        return False

    def left(self: Any, kind: Any, error: Any, _trace: Any) -> Any:
        # Only an error that the tests raise on purpose may be passed over: any other may be due to the
        # program. What they assert is not for it to hear of.
        if not peer.strict or error is None or peer.tests.is_meant(error):
            return special(self, kind, error, None)
        heard = (None, None) if peer.tests.fails(error) else (kind, error)
        swallows = special(self, *heard, None)
        return unheard(swallows, *heard) if name == "__aexit__" else not_swallowed(swallows, *heard)

    def held(self: Any) -> Any:
        made = slot(self, "_rh_made")
        found = special(self)
        if made and found is self:              # its own iterator
            object.__setattr__(self, "_rh_made", made)
        if not is_held(self):
            return found
        if name == "__bool__":
            if type(found) is not bool or found != (peer.lengths.get(id(self), found) > 0):
                raise refused(AssertionError(f"an answer of another length is {found}"))
            return found
        if name == "__len__":
            return hold(self, found)
        return each_of(self, one_by_one(self) if found is self else found)

    if name == "__call__":
        return called
    if name in ("__exit__", "__aexit__"):
        return left
    if name in ("__len__", "__iter__", "__reversed__", "__bool__"):
        return held
    if name in ("__eq__", "__ne__"):
        return equal
    if name in ("__neg__", "__pos__", "__invert__"):
        return signed
    if name == "__contains__":
        return contains
    return compared if name in (*ORDER, *BINARY) else special


def not_swallowed(swallows: Any, kind: Any, _error: Any) -> bool:
    """False; a test is refused where the program would have passed over an error."""
    if swallows and kind is not None:
        refused(TypeError("an error of the tests that the program passes over"))
    return False


async def unheard(awaited: Any, *heard: Any) -> None:
    """The same of a context that is awaited."""
    not_swallowed(await awaited, *heard)


def between(name: str, base: Any) -> Callable[..., Any]:
    """An operator of data with a class of its own: the class's between such objects, else the data's.

    Of objects that the program returned both have to say the same.
    """
    plain = next((vars(each)[name] for each in base.__mro__ if name in vars(each)), None)

    def special(self: Any, /, *operands: Any, **keywords: Any) -> Any:
        if name == "__call__" or all(map(is_stand_in, operands)):
            answer = peer.ask("special", name, self, *operands, **keywords)
            if any(map(is_made, (self, *operands))):
                return as_made(answer, type(self))
            is_free = name in ("__call__", "__invert__", "__contains__") or not (operands or plain)
            if is_free or not peer.strict or answer is NotImplemented:
                return answer
            by_data = plain(self, *operands) if plain else NotImplemented
            if by_data is NotImplemented or by_data != answer:
                raise refused(TypeError(f"'{name}' of objects that the program returned is that of no data"))
            return answer
        if plain is None and name == "__contains__":
            raise refused(TypeError("'in' between an object of the program and plain data"))
        return plain(self, *operands) if plain else NotImplemented
    return special


FORWARDERS = {name: forwarder(name) for name in SPECIAL - {"__await__"}}
TEXTS = ("__repr__", "__str__", "__format__")
for each in TEXTS:
    setattr(StandIn, each, FORWARDERS[each])
for each in ("__iter__", "__len__", "__getitem__"):
    setattr(ProgramClass, each, FORWARDERS[each])


def method(owner: int, name: str) -> Callable[..., Any]:
    """A method of a class of the other process, which `super()` finds too."""
    def call(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        check_unfed(self, name)
        ask = functools.partial(peer.ask, "method", peer.classes[owner], name, self)
        return answered(self, name, ask, is_constructed(self))(*arguments, **keywords)
    call.__name__ = name
    return call


def class_of(number: int, name: str, bases: tuple[type, ...], specials: list[str], methods: list[str],
             doc: str | None, likeness: str | None) -> Any:
    """The stand-in for a class."""
    names: dict[str, Any] = {
        "_rh_class": number, "_rh_trusted": None,
        "_rh_likeness": LIKENESSES.get(likeness or ""),
        "_rh_changing": any(getattr(base, "_rh_changing", False) or base in CHANGING for base in bases),
        "__doc__": Doc(doc), "__module__": "program"}
    values = [base for base in bases if issubclass(base, VALUES)]
    raised = [base for base in bases if issubclass(base, BaseException)]
    kept: list[type] = [base for base in bases
                        if isinstance(base, ProgramClass) and base not in values + raised]
    if raised:
        kept = [*raised, *kept]
        names["__getattr__"] = StandIn.__getattr__
        names["__str__"] = lambda self: self._rh_text
    elif values:
        # Their layouts conflict: an enumeration of numbers keeps their value.
        kept = [*values[:1], *(base for base in kept if not issubclass(base, StandIn))]
        names |= {each: vars(StandIn)[each] for each in (
            "__getattr__", "__setattr__", "__delattr__", "__copy__", "__deepcopy__")}
        names |= {field: property(asking(field)) for field in methods}
        names |= {text: FORWARDERS[text] for text in TEXTS if text in specials}
        names |= {each: between(each, values[0]) for each in specials if each in BETWEEN}
    else:
        kept = kept or [StandIn]
        names["__slots__"] = ()
        names |= {method_name: method(number, method_name) for method_name in methods}
        names |= forwarded(specials)
        if likeness == "function":           # decorated methods of a test's class
            names["__get__"] = bound_to
        names |= {special: None for special in ("__iter__", "__len__") if special not in names and any(
            special in vars(each) for base in kept for each in base.__mro__)}
    return type.__new__(ProgramClass, name, tuple(kept), names)


def asking(name: str) -> Callable[[Any], Any]:
    """Read an attribute of an object where it is, since its builtin class has another of the name."""
    return lambda self: StandIn.__getattr__(self, name)


def bound_to(function: Any, owner: Any, _kind: Any = None) -> Any:
    """A function of the program, as an attribute of an object of the tests."""
    return function if owner is None else types.MethodType(function, owner)


def forwarded(specials: list[str]) -> dict[str, Any]:
    """The special methods of a class, and `__hash__` as it would have it."""
    names: dict[str, Any] = {name: FORWARDERS[name] for name in specials if name in FORWARDERS}
    names["_rh_sized"] = "__len__" in specials
    if "__len__" in specials and "__bool__" not in specials:
        names["__bool__"] = by_length
    if {"__len__", "__getitem__"} <= names.keys():
        names = {"__iter__": by_index, "__reversed__": from_the_end, **names}
    if "__hash__" not in specials:
        names["__hash__"] = None if "__eq__" in specials else object.__hash__
    return names


def subclass(name: str, bases: tuple[type, ...], names: dict[str, Any], options: dict[str, Any]) -> Any:
    """Derive a class from one of the other process, where it is made with these methods as callbacks."""
    mixed = [base.__name__ for base in bases
             if base.__module__ == "tests" and not isinstance(base, ProgramClass)]
    if peer.strict and mixed:
        raise Untestable(f"a class derived from one of the program and from {mixed[0]} is not here")
    body = {key: value for key, value in names.items()
            if key not in ("__classcell__", "__module__", "__qualname__")}
    own: dict[str, Any] = {"_rh_class": None, "_rh_trusted": name[:1].isupper(), "_rh_likeness": None,
                           "_rh_changing": any(getattr(base, "_rh_changing", False) for base in bases),
                           "__module__": "tests", "__slots__": ()}
    own |= {key: value for key, value in names.items() if key == "__classcell__" or (
        isinstance(value, (types.FunctionType, property, staticmethod, classmethod)) and (
            key in (*SPECIAL, "__init__") or not key.startswith("__")))}
    made = type.__new__(ProgramClass, name, bases, own)
    outer, peer.derived = peer.derived, made        # which the answer may hold: a base may register it
    try:
        number, specials = peer.ask("subclass", name, bases, body, options)
    finally:
        peer.derived = outer
    for special, value in forwarded(specials).items():
        if special not in own:
            type.__setattr__(made, special, value)
    made._rh_class, peer.classes[number] = number, made
    return made


def as_dataclass(kind: Any, **options: Any) -> Any:
    """`dataclass` on a class of the other process, which makes it one there."""
    for name, value in forwarded(peer.ask("dataclass", kind, options)).items():
        type.__setattr__(kind, name, value)
    return kind


def signature_of(function: Any) -> Any:
    """The parameters of a function of the other process."""
    import inspect  # loaded beforehand where it is used
    *parameters, given = [inspect.Parameter(name, kind, **default)
                          for name, kind, default in peer.ask("signature", function)]
    return inspect.Signature(parameters, return_annotation=given.annotation)


def specials_of(kind: type) -> list[str]:
    """Special methods that a class defines, other than those of `object` and of the data that it is."""
    plain = (object, *(base for base in VALUES if issubclass(kind, base)))
    return [name for name in type.__dir__(kind) if name in SPECIAL and getattr(kind, name, None) is not None
            and all(getattr(kind, name) is not getattr(base, name, None) for base in plain)]
