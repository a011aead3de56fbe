"""Memory and CPU seconds of what `train` reads before its first forward: rows to groups, groups to a batch.

    python -m benchmarks.train_inputs FOLDER

The run is that of `benchmarks.warehouse`: four iterations of 320 groups of 32 completions, 4,000 prompt
tokens and 408 completion tokens on average. It is built once and kept in the folder. One iteration is read
before the three that are measured.
"""

import argparse
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.train_rows import settings
from benchmarks.warehouse import BODY_ITERATIONS, SCORER, build
from train.inputs.groups import load_groups
from train.steps.row import RowGroup, build_batch
from warehouse.store.run_folder import Warehouse


def memory_mb(name: str) -> float:
    """Memory of this process: now (VmRSS), or the most since it was last cleared (VmHWM)."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024 / 1e6


def read(warehouse: Warehouse, iterations: range) -> tuple[list[RowGroup], float, float]:
    """The batch of these iterations, CPU seconds of reading the groups and of building it."""
    began = time.process_time()
    groups = [group for iteration in iterations
              for group in load_groups(warehouse, iteration, SCORER, truncated_sampling="refuse")]
    middle = time.process_time()
    batch = build_batch(groups, iterations.stop, settings("--loss", "grpo"))
    return batch, middle - began, time.process_time() - middle


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    if not (options.folder / "warehouse.json").exists():    # memory of the building is not what is measured
        build(options.folder, BODY_ITERATIONS)
        parser.exit(message=f"built {options.folder}; run the same again to measure\n")
    warehouse = build(options.folder, 0)
    first = read(warehouse, range(1))       # the libraries load, and are not what is measured either
    pa.default_memory_pool().release_unused()
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    batch, reading, building = read(warehouse, range(1, BODY_ITERATIONS))
    pa.default_memory_pool().release_unused()
    held, peak = memory_mb("VmRSS") - before, memory_mb("VmHWM") - before
    rows = [row for group in batch for row in group.rows]
    tokens = sum(row.num_tokens for row in rows)
    prompts = sum(len(group.stored.prompt_ids) for group in batch)
    print(f"{len(rows):,} completions of {tokens / 1e6:.1f} million tokens, prompts of {prompts / 1e6:.1f}")
    print(f"CPU seconds: {reading:.2f} for the groups, {building:.2f} for the batch")
    print(f"MB: {held:.0f} held, {peak:.0f} at the peak; bytes for each completion token: "
          f"{held * 1e6 / tokens:.1f} held, {peak * 1e6 / tokens:.1f} at the peak")
