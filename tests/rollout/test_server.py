"""The server of a run: its flags, the command that it serves, and that nothing of it stays behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

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


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of servers lie in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


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


def test_a_server_that_does_not_start_is_told_in_its_own_words(warehouse: Warehouse,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('no GPU left'); sys.exit(3)"
    monkeypatch.setattr(rollout.server, "server_command", lambda run, url: [sys.executable, "-c", program])
    result = CliRunner().invoke(main, [str(warehouse.root)])
    assert result.exit_code == 1
    assert "The server ended with code 3 before it answered." in result.output
    assert result.output.endswith("no GPU left\n")


def test_a_server_serves_until_ctrl_c_and_leaves_nothing_behind(warehouse: Warehouse, tmp_path: Path) -> None:
    program = ("import sys, rollout.server; from rollout.server import main\n"
               f"rollout.server.server_command = lambda run, url: [sys.executable, '-c', {ANSWERS!r},"
               " url.rpartition(':')[2]]\n"
               "main([sys.argv[1]])")
    for number, code in ((signal.SIGINT, 0), (signal.SIGKILL, -9)):
        with subprocess.Popen([sys.executable, "-c", program, str(warehouse.root)], stderr=subprocess.PIPE,
                              text=True) as parent:
            assert parent.stderr
            url = next(line.split()[0] for line in parent.stderr if "Ctrl-C ends it" in line)
            assert rollout.server.answers(url + "/health", "")
            parent.send_signal(number)
        assert parent.returncode == code
        end = time.monotonic() + 300
        while rollout.server.answers(url + "/health", ""):
            assert time.monotonic() < end
            time.sleep(0.02)
