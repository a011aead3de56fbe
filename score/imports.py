"""Which modules a program may import, and importing them before its process is locked."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys

WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")

# numpy loads these on first use, which a locked process cannot do: they are imported when their name appears.
LAZY_NUMPY = ("numpy.random", "numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.char", "numpy.rec",
              "numpy.lib.stride_tricks", "numpy.lib.format", "numpy.testing", "numpy.ctypeslib",
              "numpy.strings")
STANDARD = ("__future__", "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath",
            "collections", "collections.abc", "contextlib", "copy", "csv", "dataclasses", "datetime",
            "decimal", "difflib", "enum", "fractions", "functools", "graphlib", "hashlib", "heapq",
            "inspect", "io", "itertools", "json", "keyword", "math", "numbers", "operator", "pprint",
            "queue", "random", "re", "secrets", "statistics", "string", "struct", "textwrap", "threading",
            "time", "timeit", "traceback", "types", "typing", "unicodedata", "unittest", "uuid", "warnings",
            "zlib")
# Third-party packages are named by the user; these parts of them are loaded when mentioned.
PARTS = {"scipy": ("scipy.ndimage", "scipy.signal", "scipy.spatial", "scipy.spatial.distance", "scipy.stats",
                   "scipy.optimize", "scipy.sparse", "scipy.sparse.csgraph", "scipy.special", "scipy.linalg",
                   "scipy.fft", "scipy.interpolate"),
         "skimage": ("skimage.measure", "skimage.morphology", "skimage.segmentation", "skimage.transform")}

_needed: list[tuple[frozenset[bytes], str]] = []


def allow(extra: list[str]) -> None:
    """Set what may be imported: the standard list, numpy, and `extra`, which must be installed."""
    for package in extra:
        if not exists(package):
            raise ModuleNotFoundError(f"No module named '{package}', which --allow-import names")
    names = [*STANDARD, *LAZY_NUMPY]
    for package in extra:
        names += [package, *PARTS.get(package, ())]
    _needed.clear()
    for name in names:
        if name not in sys.modules and exists(name):
            parts = name.split(".")
            words = parts[1:] if parts[0] == "numpy" else parts
            _needed.append((frozenset(word.encode() for word in words), name))


def exists(name: str) -> bool:
    """True if the module can be found, which depends on the versions of Python and numpy."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def preload(names: list[str]) -> None:
    """Import modules into the lane: free for its programs, but every fork pays for the memory."""
    for name in names:
        importlib.import_module(name)


def import_mentioned(source: bytes) -> None:
    """Import every allowed module whose name appears in the source.

    One that fails raises: a broken installation is not the program's fault.
    """
    words = set(WORD.findall(source))
    for needed, name in _needed:
        if needed <= words and name not in sys.modules:
            importlib.import_module(name)
