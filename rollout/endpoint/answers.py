"""Answers of models behind an API, kept in a folder so that none is ever asked for twice."""

import asyncio
import hashlib
import json
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.store.commit import commit_json
from warehouse.store.errors import StageError


class Answer(NamedTuple):
    """What a model said, why it ended, and how many tokens its maker counts (None where it does not say)."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None


class Answers:
    """A cache folder: one file per request, named by a hash of all that decides the answer.

    Files appear whole and are never changed, so any number of runs may share a folder. None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._asking: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lock(self, asked: dict[str, Any]) -> AbstractAsyncContextManager[object]:
        """Held while a request is asked, so that its twin waits for the answer."""
        path = self._path(asked)
        return nullcontext() if path is None else self._asking[path]

    def find(self, asked: dict[str, Any]) -> Answer | None:
        """The answer to a request, if it was ever given; StageError where its file is damaged."""
        path = self._path(asked)
        if path is None or not path.exists():
            return None
        try:
            return Answer(**json.loads(path.read_text(encoding="utf-8"))["answer"])
        except (ValueError, TypeError, KeyError) as error:
            raise StageError(f"{path} is damaged. Remove it: its request is then asked again.") from error

    def keep(self, asked: dict[str, Any], answer: Answer) -> Answer:
        """Store an answer with its request. Return the stored answer: another run's if that came first."""
        path = self._path(asked)
        if path is not None:
            commit_json(path, {"request": asked, "answer": answer._asdict()})
        return self.find(asked) or answer

    def _path(self, asked: dict[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.json"
