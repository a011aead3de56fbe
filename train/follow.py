"""`train --follow`: what can be loaded is, while other processes still work on the rows to train on."""

import contextlib
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from train.rows.settings import Settings
from warehouse.stages.children import Followed
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

LOOK_SECONDS = 0.1          # between looks at what can be loaded
TELL_SECONDS = 120.0        # without anything new, until that is said


def stand_by(warehouse: Warehouse, iteration: int | None, settings: Settings, processes: Sequence[int],
             say: Callable[[str], None]) -> Any:
    """Wait until the processes have ended; what was loaded meanwhile comes back. StageStopped by a signal."""
    if iteration is None:
        raise StageError("--follow trains one iteration once its rows are there. Name it with --iteration.")
    followed, told = [Followed(process) for process in processes], time.time()
    with StopRequest() as stop:        # a time limit is of the training
        from train.run import Ahead  # which loads torch
        ahead = Ahead(warehouse, iteration, settings)
        while True:
            followed = [process for process in followed if not process.has_ended()]
            if stop.asked():
                raise StageStopped(f"Stopped because {stop.reason}, before the rows of iteration {iteration} "
                                   "were there to train on; nothing was written. Run the same command again.")
            if not followed:
                break
            ahead.go_on()
            select.select(followed, [], [], LOOK_SECONDS)
            if time.time() > told + TELL_SECONDS and time.time() > (
                    told := last_written(warehouse, iteration)) + TELL_SECONDS:
                told = time.time()
                say(f"train of iteration {iteration} waits: process {followed[0].process} runs, and nothing "
                    f"was written for {TELL_SECONDS:.0f} s")
    return ahead


def last_written(warehouse: Warehouse, iteration: int) -> float:
    """When a file of the iteration, or of the training before it, was last put in its place."""
    roots = [warehouse.root / table / f"iteration={number}" for number in (iteration - 1, iteration)
             for table in ("completions", "samples", "train")]
    latest = 0.0
    for folder in (folder for root in roots for folder, _, _ in os.walk(root)):
        with contextlib.suppress(FileNotFoundError):        # a checkpoint, which a later one has replaced
            latest = max(latest, os.stat(folder).st_mtime)
    return latest
