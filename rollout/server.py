"""A vLLM server for the rollouts of a run: started with what they need, ended with the command it serves.

    python -m rollout.server RUN                     serve until Ctrl-C
    python -m rollout.server RUN COMMAND ..          run a command whose rollouts sample from it, then end

COMMAND finds the server's address in ROLLOUT_ENDPOINT, which `rollout` reads. Nothing is left behind when it
ends, fails or is interrupted, nor when this process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import click
from tqdm import tqdm

from rollout.cli import rollout
from rollout.endpoint.tokenizer import load_encoder
from rollout.engines.engine import EngineSettings, vllm_options
from rollout.engines.environment import prepare_environment
from rollout.options import RolloutOptions, engine_version, on_cpu, serving
from warehouse.options import HELP_NAMES, shows_errors
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

TRAINED_RANK = 16                # of `train`, where config.toml says none
SETTINGS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "fork"}  # its engine need not import everything once more
DEATH_SIGNAL = 1                 # PR_SET_PDEATHSIG of prctl(2)
SCALE_OUT = (0, 30)              # the first vLLM that samples by token ids only where it is asked to
SECONDS_TO_END, LINES_SHOWN = 20.0, 30


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": HELP_NAMES})
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--port", type=int, default=None, help="Port to listen on. [default: a free one]")
@shows_errors
def main(run: Path, command: tuple[str, ...], port: int | None) -> None:
    """Serve the policies of RUN with the options of its config.toml, alone or while COMMAND runs."""
    warehouse = open_warehouse(run)
    url = f"http://127.0.0.1:{port or free_port()}"
    prepare_environment()
    with (tempfile.TemporaryFile("w+") as log,
          child(server_command(warehouse, url), log, **SETTINGS) as server):
        wait_until_ready(server, url, log)
        if command:
            with child(command, ROLLOUT_ENDPOINT=url) as served:
                sys.exit(exit_code(served))
        click.echo(f"{url} serves {run}; Ctrl-C ends it", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.wait()


def server_command(warehouse: Warehouse, url: str) -> list[str]:
    """How vLLM's server is started: as a rollout with the options of config.toml would start its engine."""
    chosen = rollout.make_context("rollout", [str(warehouse.root)]).params
    base, revision = warehouse.model, warehouse.facts.get("model_revision")
    length = chosen["max_prompt_tokens"] and chosen["max_prompt_tokens"] + chosen["max_tokens"]
    model_length = load_encoder(base, revision).model_length
    settings = EngineSettings(
        model=base if revision else str(Path(base).resolve()), revision=revision, adapter=None,
        adapter_rank=adapter_rank(warehouse, chosen), max_model_len=min(length or model_length, model_length),
        **{name: chosen[name] for name in ("dtype", "max_num_seqs", "gpu_memory_utilization",
                                           "tensor_parallel_size", "quantization")})
    address = {"host": "127.0.0.1", "port": url.rpartition(":")[2], "uvicorn_log_level": "error",
               "disable_uvicorn_access_log": True, "enable_sleep_mode": None if on_cpu() else True,
               "enable_scale_out": True if vllm_release() >= SCALE_OUT else None}
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in (vllm_options(settings, on_cpu()) | address).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words.append(f"--{flag}={value}")
    return words


def adapter_rank(warehouse: Warehouse, chosen: dict[str, Any]) -> int:
    """The rank of the run's adapters; 0 where its policies are merged, or whole models."""
    trained = read_config(warehouse.root / "config.toml").get("train", {})
    options = RolloutOptions(warehouse.root, **{name: chosen[name] for name in (
        "dtype", "quantization", "serve")})
    if trained.get("full") or serving(options, {"kind": "lora"}) == "merged":
        return 0
    newest = warehouse.policy_dir(warehouse.policy_versions()[-1]) / "adapter_config.json"
    if newest.exists():
        return json.loads(newest.read_text())["r"]
    return trained.get("lora-rank", trained.get("lora_rank", TRAINED_RANK))


def vllm_release() -> tuple[int, ...]:
    """The installed vLLM's major and minor version."""
    return tuple(int(number) for number in engine_version().split()[1].split(".")[:2])


def free_port() -> int:
    """A port on this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def child(command: Sequence[str], log: IO[str] | None = None,
          **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this block, and with this process even if that is killed.

    One with a log is in a session of its own: Ctrl-C does not reach it, and all it started ends with it.
    """
    def die_with_parent() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGTERM)
    process = subprocess.Popen(command, env=os.environ | more, start_new_session=log is not None,
                               stdin=subprocess.DEVNULL if log else None, stdout=log, stderr=log,
                               preexec_fn=die_with_parent)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
        if log:
            with contextlib.suppress(ProcessLookupError):    # what outlived it, its engine for one
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def wait_until_ready(server: subprocess.Popen[bytes], url: str, log: IO[str]) -> None:
    """Wait until it answers, then let it sleep until a rollout wakes it; StageError if it ends."""
    with tqdm(desc="starting the server", bar_format="{desc}: {elapsed}",
              mininterval=0.5 if sys.stderr.isatty() else 30) as progress:
        while not answers(url + "/health"):
            if server.poll() is not None:
                log.seek(0)
                said = "\n".join(log.read().splitlines()[-LINES_SHOWN:])
                raise StageError(f"The server ended with code {server.returncode} before it answered. "
                                 "Correct the options in config.toml, or free the GPU. The end of what it "
                                 f"said:\n{said}")
            time.sleep(0.25)
            progress.update()
    answers(url + "/server_info")     # which takes its time the first time
    if not on_cpu():
        answers(url + "/sleep?level=1", data=b"")


def answers(url: str, data: bytes | None = None) -> bool:
    """Whether a server answers a GET, or with data a POST, that all is well."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


def exit_code(served: subprocess.Popen[bytes]) -> int:
    """Wait for the command; SIGTERM goes on to it, and Ctrl-C, which it hears itself, waits for it."""
    signal.signal(signal.SIGTERM, lambda *_: served.terminate())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = served.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
