"""Commands in several processes that know each other, as `torchrun` starts them; forked, to load nothing."""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}      # the last is what `accelerate launch` takes unasked


def in_processes(count: int, work: Callable[[], object], outputs: Path,
                 environment: Mapping[str, str] | None = None) -> list[int]:
    """Exit codes of `work` in `count` processes; what process N prints lies in `outputs`/N.out and N.err."""
    if torch.cuda.is_available():
        pytest.skip("a forked process has no GPU; tests/train/test_gpu.py has several processes there")
    outputs.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = []
    for rank in range(count):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(environment or {})}
        process = context.Process(target=_run, args=(work, outputs / str(rank), variables))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(600)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]     # type: ignore[misc]


def _run(work: Callable[[], object], output: Path, variables: Mapping[str, object]) -> None:
    from accelerate import PartialState
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{output}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ |= {name: str(value) for name, value in variables.items()}
    PartialState._reset_state()
    torch.set_num_threads(1)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
