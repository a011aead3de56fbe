"""Before any job a lane does all that children do: they then have caches full and code specialised."""

import os
import sys

import numpy as np

from score.isolation.lockdown import RESULT_FD, Lockdown
from score.lane.child import Lane, finish, prepare
from score.lane.ready import ReadyFile
from score.protocol.frames import JobKind, encode_grids, split_result

# What grid programs do most. The first time costs Python and numpy lookups that every child would pay for.
PROGRAM = b"""import numpy as np

def transform(grid):
    height, width = grid.shape
    out = np.zeros((height, width), dtype=int)
    out[grid > 0] = grid[grid > 0]
    out[(grid == 1) | (grid != 2) & (grid >= 0)] = 3
    for row in range(height):
        for col in range(width):
            if grid[row, col] == 1 and grid[row][col] < 4:
                out[row, col] = grid[row, col] + 1
    colors, counts = np.unique(grid, return_counts=True)
    rows, cols = np.where(grid != colors[np.argmax(counts)])
    for row, col in np.argwhere(grid == 1):
        out[row - 1, col] = max(int(out[row, col]), 1) % 10
    out[1:, :-1] = out[:-1, 1:].copy()
    if np.any(out) and (out == out.T).all() and len(rows) and rows.min() <= cols.max() and out.sum() > 9:
        out = np.vstack([np.hstack([out, out * 2 - 1]), np.concatenate([out, out], axis=1)])
    for turned in (np.rot90(out), np.fliplr(out), np.flipud(out), np.transpose(out), np.zeros_like(out)):
        cells = [[int(cell) for cell in line] for line in turned.tolist()]
    np.array_equal(np.array(cells), np.tile(grid, (2, 2))), np.pad(grid, 1), np.roll(grid, 1, axis=0)
    return np.where(np.abs(out) > 9, 9, np.abs(out))
"""
REPETITIONS = 10        # the interpreter specialises code that ran eight times
OUTPUT_BYTES = 65536


def rehearse(ready: ReadyFile) -> None:
    """Run a program of our own without locking the lane; RuntimeError if it fails."""
    payload = encode_grids([np.array([[0, 1], [1, 2]], np.uint8)])
    files = os.memfd_create("job"), os.memfd_create("result")
    os.pwrite(files[0], PROGRAM + payload, 0)
    lockdown = Lockdown(0, [], is_rehearsal=True)
    lane = Lane(os.getppid(), lockdown, ready, 10**9, 10**9, OUTPUT_BYTES, last_cpu_limit=b"")
    for _ in range(REPETITIONS):
        finish(prepare(files, -1, [int(JobKind.GRID), 0, 0, len(PROGRAM), len(payload)], 0, lane), lane)
        ready.open()
    status, body = split_result(os.pread(files[1], OUTPUT_BYTES, 0))
    if status != 1:
        raise RuntimeError(f"a program that every lane runs first failed: {body!r}")
    for number in files:
        os.close(number)
    os.dup2(0, RESULT_FD)
    del sys.modules["program"]
