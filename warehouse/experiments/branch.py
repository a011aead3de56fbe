"""A branch: a new run that shares another run's files up to a policy, by hard links.

Files of a run are never changed, so a hard link is as good as a copy, and either run can be removed alone.
The log is shared, too: it continues with the entry `branched`, which says what of the past belongs to the
branch.
"""

import contextlib
import datetime
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from warehouse.ledger.entries import Branched
from warehouse.ledger.log import Log
from warehouse.ledger.old_runs import old_entries, upgraded
from warehouse.maintain.check import folders_that_count
from warehouse.objects.bucket import is_address
from warehouse.store.commit import (
    TEMPORARY_MARK,
    by_address,
    commit_directory,
    commit_json,
    remove_folder,
    saying_why,
    twin_of,
)
from warehouse.store.errors import Damaged, StageError, counted, shell_quote
from warehouse.store.json_files import damaged
from warehouse.store.run_folder import Warehouse, open_warehouse

Share = Callable[[Path, Path], object]      # gives a file a second name, or copies it


def make_branch(warehouse: Warehouse, new: Path, at: int, *, rows: bool, copy: bool = False,
                through: int | None = None) -> str | None:
    """Make the run folder `new` with everything that the run has up to policy `at`, under a new run id.

    With `rows` it includes rollouts and scores of later iterations sampled by these policies, and up to
    iteration `through` also training rows that later policies sampled. Unfinished stages are left out. The
    folder appears complete under its name. Returns what was shared, in words; None if `new` is that branch
    already. Refusal if there is no such policy, StageError if the folder cannot be made.
    """
    if _is_branch(new, warehouse, at, rows, through):
        return None
    state = warehouse.state
    state.check_branch(at, rows)
    _check_place(warehouse, new)
    if twin := twin_of(warehouse.root):
        twin.bring_all()
    copy = copy or twin is not None     # the working copy may be removed
    building = new.resolve().with_name(f"{new.name}{TEMPORARY_MARK}branch-{uuid.uuid4().hex[:12]}")
    shared: list[Path] = []

    def share(file: Path, to: Path) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, to) if copy else _link(file, to)
        shared.append(to)

    try:
        with saying_why(new):
            building.mkdir(parents=True)
            log = _branch_log(warehouse, building, share)
            parent = by_address(str(warehouse.root))
            log.append(lambda _state: Branched(parent, uuid.uuid4().hex, state.head, at, rows, through))
            created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            facts = {**log.state().facts, "created": created}
            _share_files(warehouse, Warehouse(building, facts), state.head, share)
            if (warehouse.root / "config.toml").exists():
                shutil.copyfile(warehouse.root / "config.toml", building / "config.toml")
            commit_json(building / "warehouse.json", facts)
        if not commit_directory(building, new.resolve()):
            raise StageError(f"{new} was made by another command meanwhile. Name another folder.")
    finally:
        remove_folder(building)
    paths = [new.resolve() / path.relative_to(building) for path in shared]
    size = sum(path.stat().st_size for path in paths)
    return f"{counted(len(paths), 'file')} {'copied' if copy else 'shared'}, {size / 1e6:.1f} MB"


def _is_branch(new: Path, warehouse: Warehouse, at: int, rows: bool, through: int | None) -> bool:
    """Whether `new` is a branch of the run at a policy: a killed command may have made it."""
    if not (new / "warehouse.json").is_file() or is_address(new):
        return False
    branched = [entry.what for entry in open_warehouse(new).state.entries.values()
                if isinstance(entry.what, Branched)]
    return bool(branched) and (branched[-1].run, branched[-1].policy, branched[-1].rows, branched[-1].through
                               ) == (by_address(str(warehouse.root)), at, rows, through)


def _check_place(warehouse: Warehouse, new: Path) -> None:
    """StageError if no branch can lie at `new`."""
    run = shell_quote(warehouse.root)
    if is_address(new):
        raise StageError(f"{new} lies in an object store, where files cannot be linked. Branch into a "
                         "folder, then `warehouse mirror` it there.")
    if new.resolve().is_relative_to(warehouse.root):
        raise StageError(f"{new} lies inside {run}: commands on that run would read its files. "
                         "Choose a folder outside.")
    if os.path.lexists(new):
        raise StageError(f"{new} exists already. Name a folder that does not.")


def _branch_log(warehouse: Warehouse, building: Path, share: Share) -> Log:
    """The log of a run up to now, for its branch; a run without a log gets one there."""
    log = Log(building)
    if warehouse.log.has_entries():
        for number in range(warehouse.state.head + 1):
            share(warehouse.log.path(number), log.path(number))
    else:
        log.make(upgraded(warehouse.facts), old_entries(warehouse.root))
    return log


def _share_files(warehouse: Warehouse, branch: Warehouse, head: int, share: Share) -> None:
    """Share the files of all generations that belong to the branch, and a base model inside of the run."""
    try:
        for folder in folders_that_count(branch):
            source = warehouse.root / folder.relative_to(branch.root)
            for name in sorted(os.listdir(source)) if source.is_dir() else []:
                if (source / name).is_file() and TEMPORARY_MARK not in name and ".spill-" not in name:
                    with contextlib.suppress(FileNotFoundError):        # reported below if it was needed
                        share(source / name, folder / name)
        for needed in branch.needed_files():
            os.stat(needed)
    except Damaged as error:
        raise damaged(warehouse.root / error.path.relative_to(branch.root), error.why) from error
    except FileNotFoundError as error:
        if open_warehouse(warehouse.root).state.head > head:
            raise StageError(f"{warehouse.root} was changed by another command meanwhile. Nothing was made: "
                             "run the same command again.") from error
        gone = warehouse.root / Path(error.filename).relative_to(branch.root)
        raise StageError(f"{gone} is missing. Restore it from a copy, or see what `warehouse "
                         f"check {shell_quote(warehouse.root)} --fix` can do; then branch.") from error
    except PermissionError as error:
        raise StageError(f"{error.filename} may not be read. Have it granted, then branch again.") from error
    model = Path(warehouse.model)
    if model.is_relative_to(warehouse.root):
        inside = model.resolve().is_relative_to(warehouse.root)
        if not inside:              # a link, maybe to another filesystem
            (branch.root / model.relative_to(warehouse.root)).symlink_to(model.resolve())
        for file in model.rglob("*") if inside else []:
            if file.is_file():
                share(file, branch.root / file.relative_to(warehouse.root))


def _link(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StageError(f"{file} cannot be linked to {to.parent}: {error.strerror}. Name a folder on the "
                         "run's own filesystem, or copy its files with --copy.") from error
