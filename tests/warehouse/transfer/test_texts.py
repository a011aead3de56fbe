"""examples/texts.py: texts of another model become rows of a distillation set."""

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from rollout.prompts.prompt_encoder import load_encoder
from tests.building import scripted
from tests.building.runs import STARTER, TURN, new_run
from warehouse.cli import cli

SCRIPT = Path(__file__).parents[3] / "examples/texts.py"


def test_texts_of_another_model_become_rows_with_the_runs_own_tokens(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"a": TURN, "b": TURN}, model=STARTER)
    source, rows = tmp_path / "texts.jsonl", tmp_path / "rows.jsonl"
    texts = [{"task_id": name, "completion": f"return {name}"} for name in "ab"]
    source.write_text("".join(json.dumps(text) + "\n" for text in texts))
    words = [sys.executable, str(SCRIPT), str(run.root), str(source)]
    early = subprocess.run(words, capture_output=True, text=True)
    assert early.returncode == 1 and early.stderr == "Task a has no prompt yet: `rollout` it first.\n"
    scripted.sample(run)
    rows.write_text(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    done = CliRunner().invoke(cli, ["import", str(run.root), str(rows), "--iteration", "0",
                                    "--purpose", "distil"])
    assert done.exit_code == 0, done.output
    prompts = {row["group_id"]: row for row in run.read("prompts", iteration=0, purpose="train").to_pylist()}
    sampled = {prompt["task_id"]: prompt for prompt in prompts.values()}
    encoder = load_encoder(str(STARTER), None)
    for row in run.read("completions", iteration=0, purpose="distil").to_pylist():
        text = f"return {row['task_id']}"
        assert row["completion_ids"] == [*encoder.encode(text), encoder.end_id] and row["completion"] == text
        assert row["behaviour_logprobs"] is None
    for row in run.read("prompts", iteration=0, purpose="distil").to_pylist():
        own = sampled[row["task_id"]]
        assert (row["prompt_ids"], row["flip"], row["color_map"]) == (
            own["prompt_ids"], own["flip"], own["color_map"])
