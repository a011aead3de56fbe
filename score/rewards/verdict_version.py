"""The version of the code that decides verdicts: part of every scorer's identity.

A release that changes no verdict keeps the version, so that nothing is scored again. Code that was edited
since it was sealed has its own hash as its version: its rows are kept apart from the former rows.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

# Raise VERDICT_VERSION when a completion may get another verdict or reward than before. After any change of
# code put its new hash here: `python -m score.rewards.verdict_version` prints it, and a test compares both.
VERDICT_VERSION = "14"
SEALED_CODE = "f04c9e95c52a2774"

ROOT = Path(__file__).parents[2]
ELSEWHERE = [ROOT / "warehouse" / name
             for name in ("stages/user_code.py", "tasks/augmentation.py", "tasks/answers.py")]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def code_version() -> str:
    """VERDICT_VERSION where the code is the code that it was given to, else a hash of the code."""
    code = code_hash(verdict_files())
    return VERDICT_VERSION if code == SEALED_CODE else code


def verdict_files() -> list[Path]:
    """The files of every room below score but inspect, which decides nothing, and what they use elsewhere."""
    files = [path for path in sorted((ROOT / "score").glob("*/*.py")) if path.parent.name != "inspect"]
    return [path for path in (*files, *ELSEWHERE) if path != Path(__file__)]


def code_hash(files: list[Path]) -> str:
    """Hash of the syntax of the files: comments, docstrings and layout leave it as it is."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.parent.name}/{path.name} {structure(ast.parse(path.read_bytes()))}\n".encode())
    return digest.hexdigest()[:16]


def structure(node: Any) -> Any:
    """A syntax tree as nested lists without docstrings and empty fields, the same in every Python."""
    if isinstance(node, list):
        return [structure(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]
    return [type(node).__name__, *([name, structure(value)] for name, value in ast.iter_fields(node)
                                   if value is not None and value != [])]


if __name__ == "__main__":
    print(code_hash(verdict_files()))
