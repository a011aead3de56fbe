"""Which modules a program may import, and importing them before its process is locked."""

import contextlib
import importlib
import os
import re
import sys
from encodings.aliases import aliases

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# numpy loads these on first use, which a locked process cannot do: they are imported when their name appears.
LAZY_NUMPY = ("numpy.random", "numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.char", "numpy.rec",
              "numpy.lib.stride_tricks", "numpy.lib.format", "numpy.testing", "numpy.ctypeslib",
              "numpy.strings")
STANDARD = ("__future__", "abc", "argparse", "array", "ast", "asyncio", "base64", "binascii", "bisect", "bz2",
            "calendar", "cmath", "collections", "collections.abc", "colorsys", "concurrent.futures",
            "configparser", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib",
            "dis", "doctest", "enum", "fileinput", "fractions", "functools", "getopt", "graphlib", "gzip",
            "hashlib", "heapq", "hmac", "html", "html.entities", "html.parser", "inspect", "io", "itertools",
            "json", "keyword", "linecache", "locale", "logging", "lzma", "math", "numbers", "operator",
            "optparse", "pickle", "pprint", "queue", "random", "re", "sched", "secrets", "shlex", "signal",
            "statistics", "string", "struct", "textwrap", "threading", "time", "timeit", "token", "tokenize",
            "tomllib", "traceback", "types", "typing", "unicodedata", "unittest", "unittest.mock", "uuid",
            "warnings", "xml.etree.ElementTree", "zlib")
# Third-party packages are named by the user; these parts of them are loaded when mentioned.
PARTS = {"scipy": ("scipy.ndimage", "scipy.signal", "scipy.spatial", "scipy.spatial.distance", "scipy.stats",
                   "scipy.optimize", "scipy.sparse", "scipy.sparse.csgraph", "scipy.special", "scipy.linalg",
                   "scipy.fft", "scipy.interpolate"),
         "skimage": ("skimage.measure", "skimage.morphology", "skimage.segmentation", "skimage.transform")}
# Functions that import a module of their own only when they are called.
LATE = {"numpy.ma": ("percentile", "quantile", "nanpercentile", "nanquantile", "nanmedian"),
        "heapq": ("most_common", "mode", "multimode"), "_strptime": ("strptime",),
        "inspect": ("get_docstring", "runtime_checkable"), "linecache": ("traceback",),
        "tokenize": ("traceback",), "locale": ("unittest", "argparse"), "shutil": ("argparse",),
        "unittest.async_case": ("IsolatedAsyncioTestCase",), "unittest._log": ("assertLogs", "assertNoLogs"),
        "encodings.ascii": ("ElementTree",),
        "score.jobs.event_loop": ("asyncio", "IsolatedAsyncioTestCase", "async"),
        "score.jobs.pytest_stub": ("pytest", "capsys", "monkeypatch"), "concurrent.futures.thread": (
            "ThreadPoolExecutor", "run_in_executor", "to_thread"),
        "concurrent.futures.process": ("ProcessPoolExecutor",)}
CODING = ("encode", "decode", "encoding", "encodings", "codecs")     # words of sources that name codecs
# By the last of the words that must all appear in a source: those words, and the module.
Allowed = dict[str, list[tuple[frozenset[str], str]]]


def allowed_modules(extra: tuple[str, ...]) -> Allowed:
    """Every module that may be imported, with the words that must appear in a source for it to be loaded."""
    names = [*STANDARD, *LAZY_NUMPY, *extra, *(part for package in extra for part in PARTS.get(package, ()))]
    wanted = [(name.removeprefix("numpy.").split("."), name) for name in names]
    wanted += [([word], name) for name, words in LATE.items() for word in words]
    wanted += [([coding, *words], name) for words, name in codecs_by_words() for coding in CODING]
    allowed: Allowed = {}
    for words, name in wanted:
        allowed.setdefault(words[-1], []).append((frozenset(words), name))
    return allowed


def codecs_by_words() -> list[tuple[list[str], str]]:
    """The words of each name of a codec, and the module that it takes; `utf-8-sig` is also `utf_8_sig`."""
    named = {**aliases, **{module: module for module in aliases.values()}, "idna": "idna", "rot13": "rot_13",
             "punycode": "punycode", "unicode_escape": "unicode_escape", "utf_8_sig": "utf_8_sig"}
    modules = [(name, f"encodings.{module}") for name, module in named.items()]
    modules.append(("idna", "encodings.punycode"))
    return [(words, module) for name, module in modules
            for words in ([name], [word for word in name.split("_") if not word[0].isdigit()]) if words]


def mentioned_modules(source: str, allowed: Allowed) -> list[str]:
    """Allowed modules that a source may want: those whose words all appear in it."""
    words = set(WORD.findall(source))
    names = {name for word in words & allowed.keys() for needed, name in allowed[word] if needed <= words}
    if "\\N{" in source or not source.isascii():    # the compiler looks characters and names up
        names.add("unicodedata")
    return sorted(names)


def check_imports(extra: tuple[str, ...]) -> None:
    """Import the user's modules in a process of its own; ImportError if one fails.

    The lane itself stays small, for every fork pays for what it holds.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            for package in extra:
                importlib.import_module(package)
        except BaseException as error:
            os.write(writing, f"--allow-import {package}: {type(error).__name__}: {error}".encode()[:500])
        os._exit(0)
    os.close(writing)
    message = os.read(reading, 500)
    os.close(reading)
    os.wait()
    if message:
        raise ImportError(message.decode("utf-8", "replace"))


def import_all(names: list[str]) -> None:
    """Import the modules that a program mentions, except names that this Python lacks.

    What the user allows was imported before, so that a module which fails now (for want of memory) was the
    program's choice: it meets the error where it imports the module.
    """
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
