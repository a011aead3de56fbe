"""Commits per second of many processes, and the listing of many parts: on a filesystem and on an S3 server.

    python -m benchmarks.commits FOLDER [--address s3://BUCKET/RUN] [--processes 8 64] [--parts 100000]

Without an address moto's server of the tests is started, which is one Python process: its numbers show how
the client behaves and say nothing about a real store. `--race` lets all processes write the same files, so
that all but one lose each.
"""

import argparse
import contextlib
import multiprocessing
import os
import time
import uuid
from pathlib import Path
from typing import Any

from warehouse.objects.bucket import Bucket
from warehouse.objects.place import open_copy
from warehouse.store.commit import commit_bytes

SIZE = 64 << 10     # bytes of a file
PARTS = "completions/iteration=0/purpose=train"


def work(place: str, number: int, seconds: float, race: bool, barrier: Any, results: Any) -> None:
    """Commit files until the time is over; how many were this process's own, and how many were tried."""
    if "://" in place:
        os.environ["ROLLHOUSE_CACHE"] = f"{os.environ['BENCHMARK_FOLDER']}/cache-{number}"
        folder = open_copy(place).root
    else:
        folder = Path(place)
    folder, content, won, tried = folder / PARTS, os.urandom(SIZE), 0, 0
    barrier.wait()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        name = f"part-{tried:05d}" if race else f"part-{number:03d}{tried:05d}"
        won += commit_bytes(folder / f"{name}.parquet", content + str(number).encode())
        tried += 1
    results.put((won, tried))


def commits(place: str, processes: int, seconds: float, race: bool) -> tuple[float, float]:
    """Files per second that appeared, and that were tried, all processes together."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=work, args=(place, number, seconds, race, barrier, results))
               for number in range(processes)]
    for worker in workers:
        worker.start()
    counts = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return sum(won for won, _ in counts) / seconds, sum(tried for _, tried in counts) / seconds


def listing(folder: Path, parts: int) -> float:
    """Seconds to list so many parts of one folder of a filesystem."""
    place = folder / "listing"
    place.mkdir()
    for number in range(parts):
        (place / f"part-{number:05d}.parquet").touch()
    began = time.perf_counter()
    assert len(sorted(place.glob("part-*.parquet"))) == parts
    return time.perf_counter() - began


def object_listing(address: str) -> tuple[int, float]:
    """How many parts lie at an address, and the seconds to list them."""
    began = time.perf_counter()
    return len(dict(Bucket(address).list(PARTS))), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--address")
    parser.add_argument("--processes", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--parts", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--race", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder / f"commits-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    os.environ["BENCHMARK_FOLDER"] = str(folder)
    with contextlib.ExitStack() as stack:
        if not asked.address:
            from tests.building.object_server import object_server
            stack.enter_context(object_server(asked.parts))
            count, seconds = object_listing("s3://runs/full")
            print(f"listing {count:,} parts of an address: {seconds:.2f} s", flush=True)
        for count in asked.processes:
            for place in (str(folder / f"run-{count}"), f"{asked.address or 's3://runs/run'}-{count}"):
                won, tried = commits(place, count, asked.seconds, asked.race)
                print(f"{count} processes, {place}: {won:,.0f} files of {SIZE >> 10} KiB per second"
                      + (f" of {tried:,.0f} tried" if asked.race else ""), flush=True)
    print(f"listing {asked.parts:,} parts of a folder: {listing(folder, asked.parts):.2f} s")


if __name__ == "__main__":
    main()
