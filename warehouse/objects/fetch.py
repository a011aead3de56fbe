"""Download objects to files, many at once, and recognise the file of an object.

An object's e-tag is stored in the sub-second part of its file's time: if size or fraction differ, the file
is of another object.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from warehouse.objects.bucket import Bucket, ObjectState
from warehouse.store.commit import beside, seal

REQUESTS = 32                   # at the same time
Work = TypeVar("Work")
Answer = TypeVar("Answer")


def fetch(bucket: Bucket, wanted: Mapping[str, Path]) -> None:
    """Write the objects of these keys to their files; missing objects write nothing."""
    def download(item: tuple[str, Path]) -> None:
        key, path = item
        with beside(path) as temporary:
            if state := bucket.download(key, temporary):
                seal(temporary)
                stamp(temporary, state)
                os.replace(temporary, path)
                progress.update()

    with bar(f"from {bucket.address}", len(wanted), "file", worth=REQUESTS) as progress:
        in_parallel(download, wanted.items())


def fits(path: Path, state: ObjectState | None) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return state is not None and state == ObjectState(stat.st_size, stat.st_mtime_ns // 1000 % 1_000_000)


def stamp(path: Path, state: ObjectState) -> None:
    second = int(path.stat().st_mtime)
    os.utime(path, ns=(second * 10**9, second * 10**9 + state.mark * 1000))


def in_parallel(work: Callable[[Work], Answer], items: Iterable[Work]) -> list[Answer]:
    """The results in the order of the items; the first exception is raised."""
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(work, items))


def bar(what: str, total: int, unit: str, *, worth: int) -> tqdm[Any]:
    """A progress bar for work of at least `worth`; silent for less."""
    return tqdm(desc=what, total=total, unit=unit, unit_scale=unit == "B", leave=False,
                disable=True if total < worth else None)
