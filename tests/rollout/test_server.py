"""The server of a run: its flags, the command that it serves, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rollout.server
from rollout.server import main, server_command
from tests.building.runs import arc_file
from warehouse.init import init_run
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

BASE = Path(__file__).parents[2] / "examples" / "starter" / "model"
ANSWERS = """
import http.server, sys
class All(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    do_POST = do_GET
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), All).serve_forever()
"""


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    init_run(tmp_path / "run", str(BASE), (str(arc_file(tmp_path, ["t0"])),))
    return open_warehouse(tmp_path / "run")


def flags(warehouse: Warehouse, config: str) -> set[str]:
    (warehouse.root / "config.toml").write_text(config)
    return set(server_command(warehouse, "http://127.0.0.1:8123"))


def test_the_server_is_started_as_a_rollout_would_start_its_engine(warehouse: Warehouse) -> None:
    merged = flags(warehouse, '[rollout]\ndtype = "float32"\nmax-tokens = 50\nmax-prompt-tokens = 200\n')
    assert {f"--model={BASE}", "--dtype=float32", "--max-model-len=250", "--logprobs-mode=processed_logprobs",
            "--generation-config=vllm", "--port=8123", "--host=127.0.0.1"} <= merged
    assert "--enable-lora" not in merged          # float32 is served merged
    apart = flags(warehouse, '[rollout]\nserve = "adapter"\n[train]\nlora-rank = 20\n')
    assert {"--enable-lora", "--max-lora-rank=32", "--max-model-len=1024"} <= apart
    assert "--enable-lora" not in flags(warehouse, '[rollout]\nserve = "adapter"\n[train]\nfull = true\n')
    with pytest.raises(StageError, match="vLLM serves at most 512"):
        flags(warehouse, '[rollout]\nserve = "adapter"\n[train]\nlora-rank = 1000\n')


def serve(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, program: str, *command: str) -> Result:
    monkeypatch.setattr(rollout.server, "server_command",
                        lambda run, url: [sys.executable, "-c", program, url.rpartition(":")[2]])
    return CliRunner().invoke(main, [str(warehouse.root), *command])


def test_a_command_finds_the_server_and_its_exit_code_is_ours(warehouse: Warehouse, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        result = serve(warehouse, monkeypatch, ANSWERS, "sh", "-c",
                       f"echo $ROLLOUT_ENDPOINT > {tmp_path}/url; exit 7")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert result.exit_code == 7
    url = (tmp_path / "url").read_text().strip()
    assert url.startswith("http://127.0.0.1:") and not rollout.server.answers(url + "/health")


def test_a_server_that_does_not_start_is_told_in_its_own_words(warehouse: Warehouse,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    result = serve(warehouse, monkeypatch, "import sys; print('no GPU left'); sys.exit(3)", "true")
    assert result.exit_code == 1
    assert "The server ended with code 3 before it answered." in result.output
    assert result.output.endswith("no GPU left\n")


def test_server_and_command_end_with_their_parent_even_if_it_is_killed(tmp_path: Path) -> None:
    program = ("import sys, time; from rollout.server import child\n"
               "with (open(sys.argv[1], 'w') as log, child(['sleep', '100'], log) as server,\n"
               "      child(['sleep', '100']) as served):\n"
               "    print(server.pid, served.pid, flush=True); time.sleep(100)")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE,
                          text=True) as parent:
        assert parent.stdout
        children = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    end = time.monotonic() + 10
    while any(runs(child) for child in children):
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
