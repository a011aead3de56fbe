"""How far the design carries: a simulation of preemptible workers, and what their files cost.

    python -m benchmarks.scale [--workers 1000] [--completions 1e9] [--iterations 1000]

A few iterations are simulated completion by completion: every worker samples its share in slots, is taken
away at random, keeps what was saved and starts again. The rest is arithmetic over constants: those that
`measure` measures when this runs, and those below, of the commands beside them.
"""

import argparse
import hashlib
import heapq
import json
import math
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 32
BYTES_PER_COMPLETION, TOKENS_OF_IT = 2131, 408     # python -m benchmarks.warehouse
BYTES_PER_SAMPLE = 80                              # the same
COMMITS_PER_SECOND = 920                           # python -m benchmarks.commits, 64 processes, a local disk
PUTS_PER_SECOND, KEYS_PER_PAGE = 3500, 1000        # of a prefix, and of a listing, as S3 documents them
BYTES_READ, BYTES_LEARNED = 15, 21                 # of a token, benchmarks.train_inputs; tensors of a row
PROGRAMS_PER_SECOND = 480                          # python -m benchmarks.score, of a core


class Fleet(NamedTuple):
    """The workers: how many, how fast, how often they vanish."""

    workers: int = 1000
    slots: int = 128                # completions sampled at a time
    slot_speed: float = 30.0        # tokens per second of one of them
    mtbf: float = 4 * 3600.0        # seconds from start to preemption, on average
    restart: float = 180.0          # seconds until another machine samples again
    spill: float = 60.0             # seconds between saves


class Share(NamedTuple):
    """How a worker's share went."""

    seconds: float                  # until its last completion
    lost: float                     # slot-seconds of sampling that were thrown away
    kills: int
    ends: np.ndarray                # when each completion was finished for good


def sample_share(lengths: np.ndarray, fleet: Fleet, random: np.random.Generator) -> Share:
    """A worker samples completions of these lengths [tokens] in order, through preemptions.

    What was finished at the last save before a preemption is kept, all else is sampled again.
    """
    seconds = lengths / fleet.slot_speed
    ends, waiting, now, lost, kills = np.zeros(len(lengths)), np.arange(len(lengths)), 0.0, 0.0, 0
    while True:
        death = now + random.exponential(fleet.mtbf)
        free = [now] * min(fleet.slots, len(waiting))
        for index in waiting:
            ends[index] = heapq.heapreplace(free, free[0] + seconds[index]) + seconds[index]
        if ends[waiting].max() <= death:
            return Share(float(ends.max()), lost, kills, ends)
        saved = now + math.floor((death - now) / fleet.spill) * fleet.spill
        begun = ends[waiting] - seconds[waiting]
        again = (ends[waiting] > saved) & (begun < death)
        lost += float((np.minimum(ends[waiting], death) - begun)[again].sum())
        waiting, now, kills = waiting[ends[waiting] > saved], death + fleet.restart, kills + 1


def iteration_times(completions: int, part_size: int, fleet: Fleet, seed: int) -> dict[str, float]:
    """One rollout: when it ends under three rules, and what preemptions cost."""
    random = np.random.default_rng(seed)
    lengths = np.minimum(random.lognormal(math.log(TOKENS_OF_IT) - 0.5, 1.0, completions), 8192)
    part = np.arange(completions) // part_size
    shares = [sample_share(lengths[part % fleet.workers == worker], fleet, random)
              for worker in range(min(fleet.workers, int(part[-1]) + 1))]
    seconds = np.sort([share.seconds for share in shares])
    slots = fleet.workers * fleet.slots
    work = float(lengths.sum()) / fleet.slot_speed / slots
    most = seconds[math.ceil(0.95 * len(seconds)) - 1]              # then the rest is cancelled ..
    ends = np.concatenate([share.ends for share in shares])
    open_lengths = np.concatenate([lengths[part % fleet.workers == worker]
                                   for worker in range(len(shares))])[ends > most]
    calm = fleet._replace(mtbf=math.inf)
    again = max([sample_share(open_lengths[first::len(seconds)], calm, random).seconds
                 for first in range(min(len(seconds), len(open_lengths)))], default=0.0)
    one = sample_share(open_lengths, calm, random).seconds if len(open_lengths) else 0.0
    return {"work": work, "median worker": float(np.median(seconds)), "all shares": float(seconds[-1]),
            "learn takes over at 95 %": float(most + one), "shared out again at 95 %": float(most + again),
            "longest completion": float(lengths.max() / fleet.slot_speed),
            "kills": float(sum(share.kills for share in shares)),
            "lost": sum(share.lost for share in shares) / max(float(lengths.sum()) / fleet.slot_speed, 1.0)}


def measure() -> dict[str, float]:
    """What this machine takes for what readers do again and again, in seconds and bytes."""
    found = {}
    began = time.process_time()
    hashlib.sha256(bytes(1 << 28)).digest()
    found["seconds to hash a GB"] = (time.process_time() - began) / (1 << 28) * 1e9
    listed = [{"name": f"part-{number:05d}.parquet", "bytes": 262144, "rows": 128, "sha256": "0" * 64}
              for number in range(20000)]
    text = json.dumps(listed, indent=2)
    began = time.process_time()
    json.loads(text)
    found["seconds to read 1,000 parts of manifests"] = (time.process_time() - began) / 20
    found["bytes of a part in a manifest"] = len(text) / 20000
    table = pa.table({"ids": pa.array(np.random.default_rng(0).integers(0, 150000, (500, 400)).tolist(),
                                      pa.list_(pa.int32()))})
    tracemalloc.start()
    rows = table.to_pylist()
    num_tokens = sum(len(row["ids"]) for row in rows)
    found["bytes in Python of a token"] = tracemalloc.get_traced_memory()[0] / num_tokens
    tracemalloc.stop()
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder, f"part-{number:05d}.parquet")) for number in range(1000)]
        columns = pa.table({f"c{number}": np.arange(20) for number in range(20)})
        for name in names:
            pq.write_table(columns, name)
        connection = duckdb.connect()
        began = time.process_time()
        connection.execute(f"SELECT sum(c0) FROM read_parquet({names})").fetchall()
        found["seconds for SQL to open 1,000 parts"] = time.process_time() - began
        began = time.process_time()
        assert len(list(Path(folder).glob("part-*.parquet"))) == 1000
        found["seconds to list 1,000 parts"] = time.process_time() - began
    return found


def files_and_bytes(completions: float, iterations: int, part_size: int, fleet: Fleet,
                    cost: dict[str, float], seconds: float) -> list[tuple[str, str]]:
    """What lies on the disk, what is asked of it, and what one process has to hold: name and value."""
    each = completions / iterations
    parts = math.ceil(each / part_size)
    prompts, tokens = each / GROUP, each * TOKENS_OF_IT
    listed = parts * cost["bytes of a part in a manifest"]
    manifests = 2 * iterations * parts / 1000 * cost["seconds to read 1,000 parts of manifests"]
    opened = iterations * parts / 1000 * cost["seconds for SQL to open 1,000 parts"]
    hashing = each * BYTES_PER_COMPLETION / 1e9 * cost["seconds to hash a GB"]
    pages = math.ceil(2 * parts / KEYS_PER_PAGE)
    return [
        ("parts of completions and of samples, in all", f"{2 * parts * iterations:,}"),
        ("bytes of completions, in all", f"{completions * BYTES_PER_COMPLETION / 1e12:.1f} TB"),
        ("bytes of samples, in all", f"{completions * BYTES_PER_SAMPLE / 1e9:.0f} GB"),
        ("commits per second while sampling", f"{parts / seconds:.1f} (a local disk takes "
                                              f"{COMMITS_PER_SECOND}, a prefix of S3 {PUTS_PER_SECOND:,})"),
        ("listing an iteration, a local disk",
         f"{parts / 1000 * cost['seconds to list 1,000 parts']:.2f} s"),
        ("listing an iteration, S3", f"{pages} requests; {3 * pages * fleet.workers:,} of all workers"),
        ("cores that score as fast as is sampled", f"{each / seconds / PROGRAMS_PER_SECOND:.0f}"),
        ("hashing an iteration for its manifest, one process", f"{hashing:.0f} s"),
        ("manifest of a rollout", f"{listed / 1e6:.1f} MB"),
        ("reading all manifests, not compacted", f"{manifests:.0f} s"),
        ("SQL over all samples, not compacted", f"{opened:.0f} s to open the parts"),
        ("the same, compacted to 8 parts per iteration", f"{8 * opened / parts:.1f} s"),
        ("SQL over the rollup's row per iteration", "under 0.1 s"),
        ("rows of the rollup per group", f"{completions / GROUP:,.0f}"),
        ("the plan as Python objects, in each worker",
         f"{prompts * TOKENS_OF_IT * cost['bytes in Python of a token'] / 1e9:.1f} GB with prompts of "
         f"{TOKENS_OF_IT} tokens"),
        ("rows in the trainer, when read", f"{tokens * BYTES_READ / 1e9:.0f} GB"),
        ("rows in the trainer, when trained", f"{tokens * (BYTES_READ + BYTES_LEARNED) / 1e9:.0f} GB")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--completions", type=float, default=1e9)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--part-size", type=int, default=128)
    parser.add_argument("--mtbf", type=float, default=4 * 3600.0, help="seconds from start to preemption")
    parser.add_argument("--simulated", type=int, default=2, help="iterations to simulate")
    options = parser.parse_args()
    fleet = Fleet(workers=options.workers, mtbf=options.mtbf)
    each = int(options.completions / options.iterations)
    times = [iteration_times(each, options.part_size, fleet, seed) for seed in range(options.simulated)]
    mean = {name: float(np.mean([run[name] for run in times])) for name in times[0]}
    print(f"{options.workers:,} workers, {each:,} completions per iteration in parts of {options.part_size}")
    for name, value in mean.items():
        shown = f"{value:.2%} of the sampling" if name == "lost" else (
            f"{value:.0f} per iteration" if name == "kills" else f"{value:8.0f} s")
        print(f"  {name:<54} {shown}")
    cost = measure()
    for name, value in cost.items():
        print(f"  {name:<54} {value:.3g}")
    for name, shown in files_and_bytes(options.completions, options.iterations, options.part_size, fleet,
                                       cost, mean["all shares"]):
        print(f"  {name:<54} {shown}")
