"""What the README shows: its task can be imported, its loop by hand really runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def bash_blocks() -> list[str]:
    """The text of every ```bash block."""
    return re.findall(r"^```bash\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def test_the_task_it_shows_can_be_imported(tmp_path: Path) -> None:
    from warehouse.sources.named import parse_source, read_source
    line, = re.findall(r"^```json\n(.*?)\n```$", README, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "my.jsonl").write_text(line + "\n")
    task, = read_source(parse_source(str(tmp_path / "my.jsonl"), heldout=False))
    assert task.task_id == json.loads(line)["task_id"]


@pytest.mark.slow("512 completions of the demo's pool, by the real engine")
@pytest.mark.engine
def test_the_loop_by_hand_runs_and_the_questions_are_answered(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    by_hand = next(block for block in bash_blocks() if block.startswith("warehouse init runs/first"))
    questions = next(block for block in bash_blocks() if block.startswith("warehouse sql runs/first"))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = by_hand + questions + "reports build runs/first"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True,
                          cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrote policy 1" in done.stdout
    assert (tmp_path / "runs" / "first" / "report.html").stat().st_size < 2 << 20
