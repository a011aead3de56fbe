"""Atomic writes: a file appears complete under its final name, and the first writer wins."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import glob
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from warehouse.store.errors import StageError
from warehouse.store.json_files import json_bytes

COPY_MARKER = "object-store.json"  # in a working copy: the address of its run in an object store
TEMPORARY_MARK = ".tmp-"  # in the middle, so that no glob for *.parquet or *.json matches a temporary file


class Twin(Protocol):
    """The objects of which a run folder is the working copy: `warehouse.objects.working_copy.WorkingCopy`."""

    root: Path
    address: str
    bucket: Any

    def create(self, path: Path, temporary: Path) -> bool: ...
    def create_folder(self, folder: Path, final: Path) -> bool: ...
    def file_names(self, folder: Path) -> list[str]: ...
    def ensure_local(self, paths: Iterable[Path], unread: Collection[str] = ()) -> None: ...
    def bring_all(self, unread: Collection[str] = ()) -> None: ...
    def adopt(self, path: Path, to: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def sync(self) -> None: ...
    def bring_config(self) -> None: ...
    def pack_log(self, last: int) -> None: ...


TWINS: dict[Path, Twin] = {}  # of this process's runs in object stores, by working copy


def twin_of(path: Path) -> Twin | None:
    """The objects of the run that contains a path; None for a run that is only a folder."""
    return next((twin for root, twin in TWINS.items() if path.is_relative_to(root)), None) if TWINS else None


def next_to(root: Path, name: str) -> Path:
    """The folder RUN-NAME for a run made from this one: here if this one is in an object store."""
    return Path(f"{root.name if twin_of(root) else root}-{name}")


def by_address(text: str) -> str:
    """A text for the user, with working copies replaced by the addresses of their runs."""
    for root, twin in TWINS.items():
        text = text.replace(str(root), twin.address)
    return text


def ensure_local(paths: Iterable[Path], unread: Collection[str] = ()) -> None:
    """Make files of a run available before they are read: those in an object store are downloaded.

    Of a policy's folder, files with a name in `unread` are left out.
    """
    if TWINS:
        listed = list(paths)
        if listed and (twin := twin_of(listed[0])):
            twin.ensure_local(listed, unread)


def file_names(folder: Path, pattern: str) -> list[str]:
    """Names of a folder's committed files, sorted; for an object store including those not downloaded."""
    names = {path.name for path in folder.glob(pattern)}
    if twin := twin_of(folder):
        names |= set(fnmatch.filter(twin.file_names(folder), pattern))
    return sorted(names)


def commit_file(path: Path, write: Callable[[Path], object]) -> bool:
    """Write `path` through a temporary file; True if this call made it, False if it existed already.

    `write(temporary)` fills the temporary file. It is flushed to disk before `path` is linked to it, so a
    kill at any instant leaves either nothing or the whole file under `path`. The file is then read-only.
    """
    if path.exists():
        return False
    with beside(path) as temporary:
        reached("before write", path)
        write(temporary)
        seal(temporary)
        flush(temporary)
        twin = twin_of(path)
        first = twin is None or twin.create(path, temporary)
        reached("before link", path)
        linked = _link(temporary, path)
        reached("after link", path)
    flush(path.parent)
    return linked if twin is None else first


def seal(path: Path) -> None:
    """Make a file read-only, for those who may read its folder: a umask of 077 holds for rows, too."""
    path.chmod(path.parent.stat().st_mode & 0o444)


def commit_bytes(path: Path, content: bytes) -> bool:
    """Write bytes to `path` atomically; False if it existed already."""
    return commit_file(path, lambda temporary: temporary.write_bytes(content))


def commit_json(path: Path, value: object) -> bool:
    """Write `value` as indented JSON to `path` atomically; False if it existed already."""
    return commit_bytes(path, json_bytes(value))


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace `path` atomically; for derived files, which can be made again at any time."""
    replace_file(path, lambda written: written.write_bytes(content))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file, and replace `path` with it atomically.

    A path that is not a regular file (/dev/null, a pipe), or a link to one, is written to and keeps its type.
    """
    with saying_why(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.exists() and (path.is_symlink() or not path.is_file()):
            write(path)
            return
        path = path.resolve()       # of a link to a file that does not exist yet
        _sweep(path)
    with beside(path) as temporary, _opened(path, temporary) as held:
        with contextlib.suppress(OSError):      # of a filesystem without locks; there nothing is swept
            fcntl.flock(held, fcntl.LOCK_EX)
        reached("before write", path)
        write(temporary)
        flush(temporary)
        reached("before replace", path)
        os.replace(temporary, path)
        reached("after replace", path)


def _opened(path: Path, temporary: Path) -> IO[bytes]:
    try:
        return temporary.open("xb")
    except FileNotFoundError as error:          # as in /proc, where the folder exists
        raise StageError(f"Cannot write {path}: its folder takes no files. Choose another.") from error


def _sweep(path: Path) -> None:
    """Remove temporary files of killed writers: those without a lock."""
    for left in path.parent.glob(f"{glob.escape(path.name)}{TEMPORARY_MARK}*"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def commit_directory(folder: Path, final: Path) -> bool:
    """Rename a finished folder to `final`; False (and the folder removed) if `final` existed already."""
    for path in (*folder.rglob("*"), folder):
        flush(path)
    twin = twin_of(final)
    first = twin is None or twin.create_folder(folder, final)
    reached("before rename", final)
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not first:
            raise FileExistsError(errno.EEXIST, "another's object was first")
        os.rename(folder, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise readable(error, final) from error
        shutil.rmtree(folder)  # where another process of this working copy brought the objects, they follow
        return twin is not None and first and (final / "policy.json").exists()
    reached("after rename", final)
    flush(final.parent)
    return True


def adopt_file(path: Path, to: Path) -> None:
    """Give a committed file a second name, which takes no space; in an object store it is copied there."""
    with saying_why(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        if twin := twin_of(path):
            twin.adopt(path, to)
        with contextlib.suppress(FileExistsError):
            os.link(path, to)


def reached(point: str, path: Path) -> None:
    """A named point in a commit; does nothing. The chaos tests install a function that kills the process."""


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        # NFS repeats a call if the answer was lost: then the existing file is this one.
        return os.path.samefile(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise StageError(f"The filesystem of {path.parent} has no hard links, which Rollhouse needs to make "
                         "files appear whole (FAT, exFAT, some cloud mounts). Put the run on another "
                         "one, for example a local disk or NFS.") from error


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A temporary file that will become `path`; system errors become one sentence."""
    temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{uuid.uuid4().hex[:12]}")
    try:
        with saying_why(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
    finally:
        with contextlib.suppress(OSError):  # the earlier error counts; leftovers are swept later
            temporary.unlink()


def remove_file(path: Path) -> None:
    """Remove a file that is no longer needed; it may already be gone."""
    if twin := twin_of(path):
        twin.remove(path)
    path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder that is no longer needed; another process may be removing it, too."""
    if twin := twin_of(folder):
        twin.remove(folder)
    shutil.rmtree(folder, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def saying_why(path: Path) -> Iterator[None]:
    """Turn system errors while writing `path` into one sentence."""
    try:
        yield
    except OSError as error:
        raise readable(error, path) from error


def readable(error: OSError, path: Path) -> Exception:
    """A StageError with the way out, if the user can fix the system's error."""
    reasons = {errno.ENOSPC: "the disk is full: free some space",
               errno.EDQUOT: "the disk quota is used up: free some of it",
               errno.EROFS: "the filesystem is read-only: have it mounted for writing",
               errno.EACCES: "permission was denied: have it granted",
               errno.EMFILE: "this process has too many open files: raise `ulimit -n`",
               errno.ENFILE: "the machine has too many open files: close some",
               errno.EIO: "the disk reports an error: mend it",
               errno.EFBIG: "files may not be as large as that: raise `ulimit -f`",
               errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
               errno.ENOTDIR: "a part of the path is not a folder: choose another",
               errno.EEXIST: "a part of the path is not a folder: choose another",
               errno.EISDIR: "that is a folder: choose another name"}
    if error.errno not in reasons:
        return error
    return StageError(f"Cannot write {path}: {reasons[error.errno]}, then run the same command again; "
                      "what was written before is kept.")
