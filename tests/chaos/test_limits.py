"""Too little of something: disk, the size of a file, memory. A sentence, and nothing lost."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.building.runs import back_before, copy_run
from tests.building.sound import check_run
from tests.building.weather import build_run
from tests.chaos.loop import new_run
from tests.chaos.test_faults import fill, remount, small_disk
from warehouse.cli import cli
from warehouse.options import shows_errors
from warehouse.stages.space import check_space
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

__all__ = ["small_disk"]        # a fixture
CARE = (["export", "{run}/../rows.jsonl"],
        ["export", "{run}/../rows.parquet"], ["prune", "--before", "1", "--yes"],
        ["discard", "--iteration", "2", "--purpose", "train"], ["compact"], ["rollback", "--to", "0"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Three iterations, the last not trained, and an evaluation; copied, never written to."""
    warehouse = build_run(tmp_path_factory.mktemp("limits") / "run", iterations=3, num_tasks=4, group_size=8)
    back_before(warehouse, "train", iteration=2)
    return open_warehouse(warehouse.root)


def num_rows(warehouse: Warehouse) -> int:
    return sum(warehouse.read("completions", ["task_id"], iteration=iteration, purpose=purpose).num_rows
               for iteration in warehouse.state.iterations("rollout")
               for purpose in warehouse.state.purposes(iteration))


def run(warehouse: Warehouse, words: list[str]) -> Result:
    name, *options = (word.replace("{run}", str(warehouse.root)) for word in words)
    return CliRunner().invoke(cli, [name, str(warehouse.root), *options])


@contextlib.contextmanager
def files_of(num_bytes: int) -> Iterator[None]:
    """No file may be larger than that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("words", CARE[:3], ids=lambda words: " ".join(words[::3]))
def test_files_that_may_not_be_large_are_one_sentence(whole: Warehouse, tmp_path: Path,
                                                          words: list[str]) -> None:
    warehouse = copy_run(whole, tmp_path / "run")
    with files_of(1024):
        refused = run(warehouse, words)
    assert refused.exit_code == 1 and "raise `ulimit -f`" in refused.output, refused.output
    assert check_run(warehouse).problems == []
    assert not list(tmp_path.rglob("?*.tmp-*"))
    again = run(warehouse, words)
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("words", CARE, ids=lambda words: " ".join(words[::3]))
def test_a_full_disk_stops_what_cares_for_a_run_and_loses_nothing(whole: Warehouse, small_disk: Path,
                                                                  words: list[str]) -> None:
    warehouse = copy_run(whole, small_disk / "run")
    rows = num_rows(warehouse)
    filler = fill(small_disk, leave=0)
    with contextlib.suppress(OSError), (small_disk / "rest").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    refused = run(warehouse, words)
    assert refused.exit_code == 1 and "the disk is full" in refused.output, refused.output
    filler.unlink()
    assert num_rows(warehouse) == rows == 4 * 4 * 8
    assert check_run(open_warehouse(warehouse.root)).problems == []
    again = run(warehouse, words)
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("words", CARE, ids=lambda words: " ".join(words[::3]))
def test_a_read_only_disk_is_one_sentence(whole: Warehouse, small_disk: Path, words: list[str]) -> None:
    warehouse = copy_run(whole, small_disk / "run")
    remount(small_disk, "ro")
    refused = run(warehouse, words)
    remount(small_disk, "rw")
    assert refused.exit_code == 1 and "the filesystem is read-only" in refused.output, refused.output
    assert run(warehouse, words).exit_code == 0


def test_a_stage_says_that_a_disk_is_read_only_before_it_computes(whole: Warehouse, small_disk: Path) -> None:
    warehouse = copy_run(whole, small_disk / "run")
    remount(small_disk, "ro")
    with pytest.raises(StageError, match="the filesystem is read-only"):
        check_space(warehouse.root, 0, "train of iteration 2")
    remount(small_disk, "rw")
    check_space(warehouse.root, 0, "train of iteration 2", keep_reserve=False)


def test_shared_memory_that_cannot_be_written_is_one_sentence_before_the_engine_loads(tmp_path: Path) -> None:
    warehouse = new_run(tmp_path / "shared")
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "-"]
    if subprocess.run([*hidden, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made to hide /dev/shm")
    said = subprocess.run([*hidden, sys.executable, "-c", "from rollout.cli import rollout; rollout()",
                           str(warehouse.root)], capture_output=True, text=True)
    assert said.returncode == 1 and "Traceback" not in said.stderr, said
    assert "vLLM needs semaphores, which this machine refuses (Read-only file system)" in said.stderr, said
    assert check_run(warehouse).problems == []


@pytest.mark.parametrize("error", [
    MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed"), RuntimeError("can't start new thread"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
    OSError(12, "Cannot allocate memory")], ids=lambda error: type(error).__name__)
def test_too_little_memory_is_one_sentence(error: Exception) -> None:
    @click.command()
    @shows_errors
    def command() -> None:
        raise error
    said = CliRunner().invoke(command, [])
    assert said.exit_code == 1 and "There is not enough memory" in said.output, said.output


def test_too_few_addresses_are_one_sentence_before_native_code_ends_the_process(whole: Warehouse) -> None:
    for words in (["sql", "SELECT 1"], ["summary"], ["watch"]):
        command = [sys.executable, "-c", "from warehouse.cli import cli; cli()", words[0],
                   str(whole.root), *words[1:]]
        said = subprocess.run(["bash", "-c", "ulimit -v 600000; exec \"$@\"", "-", *command],
                              capture_output=True, text=True,      # numpy's library takes some for each core
                              env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        assert said.returncode == 1 and "DuckDB needs at least 1.2 GiB" in said.stderr, said
