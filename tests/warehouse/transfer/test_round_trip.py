"""A rollout exported from a run and imported into another of the same base model is trained on there."""

import json
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner

from tests.building.runs import write_part
from tests.building.sampled import OPTIONS, SCORER, sample_rows, tiny_run
from train.cli import train
from warehouse.cli import cli
from warehouse.store import parts
from warehouse.store.schema import arrow_schema


def test_what_was_exported_is_trained_on_elsewhere(tmp_path: Path) -> None:
    first, second, file = tiny_run(tmp_path / "a"), tiny_run(tmp_path / "b"), tmp_path / "rows.jsonl"
    sample_rows(first, 0, num_groups=4, group_size=4)
    exported = CliRunner().invoke(cli, ["export", str(first.root), str(file)])
    assert exported.exit_code == 0, exported.output
    lines = [{**json.loads(line), "completion": "x"} for line in file.read_text().splitlines()]
    file.write_text("\n".join(map(json.dumps, lines)))
    parts.write_part(second.folder("tasks") / "part-00000.parquet", "tasks", pa.Table.from_pylist([
        {"task_id": name, "source": "test", "split": "train", "heldout": False, "position": number,
         "kind": "answer", "payload": "{}"}
        for number, name in enumerate(sorted({line["task_id"] for line in lines}))], arrow_schema("tasks")),
        {"run_id": second.run_id, "part_uuid": "tasks"})
    made_up = Path(second.model) / "tokenizer.json"          # which reads no token
    made_up.rename(tmp_path / "kept")
    words = ["import", str(second.root), str(file), "--iteration", "0", "--plain-sampling"]
    imported = CliRunner().invoke(cli, words)
    (tmp_path / "kept").rename(made_up)
    assert imported.exit_code == 0, imported.output
    keys = {"iteration": 0, "purpose": "train"}
    stored = second.read("completions", ["task_id", "sample_index", "group_id"], **keys).to_pylist()
    groups = {(row["task_id"], row["sample_index"]): row["group_id"] for row in stored}
    scored = [{**row, "group_id": groups[row["task_id"], row["sample_index"]]}
              for row in first.read("samples", **keys, scorer=SCORER).to_pylist()]
    samples = pa.Table.from_pylist(scored, arrow_schema("samples"))
    write_part(second, "samples", 0, samples, **keys, scorer=SCORER)
    second.stage("score", **keys, scorer=SCORER).complete({"seconds": 0.0})
    trained = [CliRunner().invoke(train, [str(run.root), *OPTIONS]) for run in (first, second)]
    assert [result.exit_code for result in trained] == [0, 0], trained[1].output
    assert first.policy(1)["sha256"] == second.policy(1)["sha256"]
