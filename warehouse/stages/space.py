"""Disk space: what a stage will write compared with what is free, and leftovers of dead processes."""

import errno
import math
import os
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.stages.stop import StageStopped
from warehouse.store.commit import TEMPORARY_MARK, readable
from warehouse.store.errors import StageError, first_line, moved_away

if TYPE_CHECKING:
    from warehouse.store.run_folder import Warehouse

MIB = 2**20
RESERVE = 64 * MIB          # stays free, so that finished rows and the manifest can always be written
BYTES_PER_COMPLETION = 400  # keys, text and sampling parameters of a row, compressed
BYTES_PER_TOKEN = 5.5       # id, logprob and text: 2.15 kB were measured for completions of 400 tokens
BYTES_PER_PARAMETER = 12    # float32 weights and the two moments of AdamW
TOO_LARGE = re.compile("File too large|unexpected pos|PytorchStreamWriter")  # the last two are torch's
NO_MEMORY = re.compile("allocate memory|out of memory|failed to allocate|bad_alloc|can't start new thread|"
                       "launch worker thread|failed to map segment", re.I)
SWEEP_SECONDS = 86400
POLICY_COPIES = 3           # during a training: the previous checkpoint, the new one, and the policy


def check_space(folder: Path, num_bytes: float, what: str, *, keep_reserve: bool = True) -> None:
    """StageError if `folder` is not writable or its filesystem lacks room for `num_bytes` and the reserve."""
    if not os.access(folder, os.W_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        raise readable(OSError(errno.EROFS if read_only else errno.EACCES, ""), folder)
    free, reserve = shutil.disk_usage(folder).free, RESERVE if keep_reserve else 0
    if free < num_bytes + reserve:
        also = f" and a reserve of {reserve // MIB}" if reserve else ""
        raise StageError(f"{what} needs about {math.ceil(num_bytes / MIB):,} MiB{also}, "
                         f"but {folder} has {free // MIB:,} MiB free. Free some space, then run the same "
                         "command again; what was written before is kept.")


def rollout_bytes(num_completions: int, max_tokens: int) -> float:
    """Upper bound in bytes for that many completions, as spills and as finished parts."""
    return 2 * num_completions * (BYTES_PER_COMPLETION + BYTES_PER_TOKEN * max_tokens)


def checkpoint_bytes(num_parameters: int) -> float:
    """Upper bound in bytes for one checkpoint, or for the policy with its optimizer."""
    return BYTES_PER_PARAMETER * num_parameters


@contextmanager
def saying_the_disk_is_full(folder: Path) -> Iterator[None]:
    """Turn any error on a full disk into a sentence about it: libraries do not always report the cause."""
    try:
        yield
    except (StageError, StageStopped):
        raise
    except Exception as error:  # safetensors and torch raise their own errors for it
        if not folder.exists():
            raise moved_away(folder) from error
        limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        if shutil.disk_usage(folder).free <= MIB:
            why, way_out = f"The disk of {folder} is full", "Free some space"
        elif limited and TOO_LARGE.search(str(error)):
            why, way_out = f"A file in {folder} became larger than is allowed", "Raise `ulimit -f`"
        else:
            raise
        raise StageError(f"{why} ({first_line(error)}). {way_out}, then run the same command again; what was "
                         "written before is kept.") from error


def lacks_memory(error: Exception) -> bool:
    """True for errors of Python, torch, Arrow and the system that mean out of memory."""
    return isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))


def sweep(warehouse: "Warehouse") -> None:
    """Remove temporary files and folders in a run of processes that died more than a day ago.

    Their age is measured by the clock that dates the run's files, on a network the server's. Spills of a
    part that is written are removed at once.
    """
    probe = warehouse.scratch("clock")
    now = probe.stat().st_mtime
    probe.rmdir()
    left = [Path(folder, name) for folder, folders, names in os.walk(warehouse.root)
            for name in folders + names if TEMPORARY_MARK in name or ".spill-" in name]
    for path in left:
        with suppress(FileNotFoundError):  # another process sweeps too
            part = path.with_name(path.name.partition(".spill-")[0])
            age = now - path.stat().st_mtime
            if age > SWEEP_SECONDS if TEMPORARY_MARK in path.name else part.exists():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
