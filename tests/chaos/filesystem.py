"""What the promise needs of a filesystem, tried on a real one: races and kills in a folder that lies there.

    python -m tests.chaos.filesystem FOLDER [FOLDER]

A second folder is the same place seen by another client (a second NFS mount): half the processes work there.
"""

import errno
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.building import scripted
from tests.building.runs import small_run
from tests.chaos.commands import watch
from tests.chaos.loop import contents, leftovers, problems
from warehouse.maintain.compact import compact_run
from warehouse.store import commit
from warehouse.store.run_folder import Warehouse, open_warehouse

WORKERS, FILES, ROUNDS = 8, 40, 20
INSTANTS = ("before write", "before link", "after link")


def survives(folders: list[Path], reference: Path) -> Iterator[str]:
    """Try everything, and say each thing that holds. AssertionError names what does not."""
    yield first_writer_wins(folders)
    yield a_killed_writer_is_replaced(folders)
    yield one_folder_is_renamed(folders)
    yield readers_see_whole_files(folders)
    whole = small_run(reference, num_tasks=8)
    sample(whole)
    expected = contents(whole)
    yield workers_share_a_rollout(folders, expected)
    yield killed_everywhere(folders, expected)


def first_writer_wins(folders: list[Path]) -> str:
    """Every worker commits every file; one of them is told that it made it, and its content stands."""
    def work(number: int, folder: Path) -> list[bool]:
        return [commit.commit_bytes(folder / "race" / f"{name}.json", b"%d" % number * 1000)
                for name in range(FILES)]

    won = _together(work, folders)
    for name in range(FILES):
        winners = [number for number, mine in enumerate(won) if mine[name]]
        assert len(winners) == 1, f"file {name} was made by {winners}"
        for folder in folders:
            assert _seen(folder / "race" / f"{name}.json") == b"%d" % winners[0] * 1000, name
    return f"{WORKERS} writers of {FILES} files: one winner of each"


def a_killed_writer_is_replaced(folders: list[Path]) -> str:
    """A writer dies at each instant; the next one makes the file, or finds that of the dead one, whole."""
    for number, instant in enumerate(INSTANTS):
        path = folders[0] / "killed" / f"{number}.json"
        status = _fork(_write_and_die, path, instant)
        assert status == -signal.SIGKILL, (instant, status)
        made = commit.commit_bytes(folders[-1] / "killed" / f"{number}.json", b"next")
        assert made == (number < 2), instant
        assert _seen(path) == (b"next" if made else b"dead"), instant
    return f"a writer killed at {len(INSTANTS)} instants: its file is there whole, or made by the next"


def one_folder_is_renamed(folders: list[Path]) -> str:
    """Policies are folders: every worker renames its own to the same name, one wins and all of it stands."""
    def work(number: int, folder: Path) -> bool:
        scratch = folder / f"scratch-{number}"
        scratch.mkdir()
        for name in ("policy.json", "weights"):
            (scratch / name).write_text(str(number))
        return commit.commit_directory(scratch, folder / "policy")

    for _ in range(ROUNDS):
        won = _together(work, folders)
        assert won.count(True) == 1, won
        names = {path.name: path.read_text() for path in (folders[0] / "policy").iterdir()}
        assert names == dict.fromkeys(("policy.json", "weights"), str(won.index(True))), names
        shutil.rmtree(folders[0] / "policy")
        _settle()
    return f"{WORKERS} renamed folders, {ROUNDS} times: one winner, whole"


def readers_see_whole_files(folders: list[Path]) -> str:
    """A manifest that `warehouse compact` replaces is the old one or the new one; where a rename over a file
    is not atomic it may be missing for an instant, which is told."""
    commit.replace_bytes(folders[0] / "manifest", b"0" * 9999)
    _settle()

    def work(number: int, folder: Path) -> list[str]:
        missed = []
        for count in range(10 * ROUNDS):
            if number == 0:
                commit.replace_bytes(folder / "manifest", b"%d" % (count % 10) * 9999)
            try:
                content = (folder / "manifest").read_bytes()
                assert len(content) == 9999 and len(set(content)) == 1, content[:20]
            except OSError as error:
                missed.append(errno.errorcode[error.errno or 0])
        return missed

    missed = Counter(name for names in _together(work, folders) for name in names)
    told = ", ".join(f"{count} times {name}" for name, count in missed.items()) or "always there"
    return f"a file replaced {10 * ROUNDS} times under {WORKERS - 1} readers: never half of it, {told}"


def workers_share_a_rollout(folders: list[Path], expected: dict[str, object]) -> str:
    """As in tests/chaos/test_races.py."""
    warehouse = small_run(folders[0] / "shared", num_tasks=8)
    _together(lambda _, folder: sample(open_warehouse(folder / "shared" / "run")), folders)
    sample(warehouse)       # over NFS nobody may have noticed that it was the last
    _compare(warehouse, expected)
    return f"{WORKERS} workers on one rollout: the rows of one"


def killed_everywhere(folders: list[Path], expected: dict[str, object]) -> str:
    """Rollout and compaction die at every instant they pass, one after the other, on one run."""
    warehouse, kills = small_run(folders[0] / "killed-rollout", num_tasks=8), 0
    inside, passed = warehouse.root.relative_to(folders[0]), folders[0] / "passed"
    for work in (sample, compact_run):
        while (status := _fork(_work_and_die, work, folders[kills % len(folders)] / inside, passed)):
            assert status == -signal.SIGKILL, status
            kills += 1
    _compare(warehouse, expected)
    return f"{kills} kills of rollout and compact at every named instant: the undisturbed rows"


def sample(warehouse: Warehouse) -> None:
    """A small rollout in four parts, with a scripted engine."""
    scripted.sample(warehouse, spill_seconds=0.0)


def _compare(warehouse: Warehouse, expected: dict[str, object]) -> None:
    assert contents(warehouse) == expected
    assert leftovers(warehouse) == problems(warehouse) == []


def _together(work: Callable[[int, Path], object], folders: list[Path]) -> list:
    """What `work` gives in each of the workers, which start at once."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(WORKERS), context.SimpleQueue()

    def run(number: int) -> None:
        barrier.wait()
        answers.put((number, work(number, folders[number % len(folders)])))

    workers = [context.Process(target=run, args=(number,)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * WORKERS
    _settle()
    return [answer for _, answer in sorted(answers.get() for _ in workers)]


def _write_and_die(path: Path, instant: str) -> None:
    def reached(point: str, _: Path) -> None:
        if point == instant:
            os.kill(os.getpid(), signal.SIGKILL)

    commit.reached = reached
    commit.commit_bytes(path, b"dead")


def _work_and_die(work: Callable[[Warehouse], object], run: Path, passed: Path) -> None:
    watch(passed)
    work(open_warehouse(run))


def _fork(work: Callable[..., object], *arguments: object) -> int:
    """Exit code of `work` in a process of its own; below 0 the signal that ended it."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _settle() -> None:
    """Longer than another client may keep what it knows of a folder, where that is asked for."""
    time.sleep(float(os.environ.get("SETTLE_SECONDS", "0")))


def _seen(path: Path) -> bytes:
    """The content, as soon as this client sees the file: over NFS that may take a minute."""
    until = time.monotonic() + 90
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.5)
    return path.read_bytes()


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as local:
        for line in survives([Path(word) for word in sys.argv[1:]], Path(local)):
            print(line, flush=True)
