"""What changed between a kill and the next run: refused with both values, or accepted and recorded."""

from pathlib import Path

import pytest

from tests.building.runs import arc_file, change_document, small_run
from tests.building.scripted import ScriptedEngine, sample
from warehouse.maintain.tasks import add_tasks
from warehouse.store.errors import SettingChanged
from warehouse.store.run_folder import open_warehouse

NAMES = {"policy_sha256": "another adapter under the same name",
         "tasks_sha256": "changed tasks", "engine": "another version of vLLM"}


@pytest.mark.parametrize("name", NAMES)
def test_what_sampled_the_first_parts_cannot_change_unsaid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           name: str) -> None:
    warehouse = small_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=13))
    stage = warehouse.stage("rollout", iteration=0, purpose="train")
    before = (stage.settings() or {})[name]
    if name == "engine":
        monkeypatch.setattr("rollout.settings.engine_version", lambda: "changed")
    elif name == "tasks_sha256":
        add_tasks(warehouse, (str(arc_file(tmp_path, ["another"])),), ())
    else:
        change_document(warehouse.root / "policies/0/policy.json", sha256="changed")
    changed = open_warehouse(warehouse.root)
    now = changed.state.tasks_sha256 if name == "tasks_sha256" else "changed"
    with pytest.raises(SettingChanged, match=f"`--accept-change {name}`") as refused:
        sample(changed)
    assert (refused.value.name, refused.value.before, refused.value.now) == (name, before, now)
    sample(changed, accept_change=(name,))
    changes = [{"setting": name, "before": before, "now": now}]
    assert (stage.manifest() or {})["changes"] == changes
    assert changed.read("completions", iteration=0, purpose="train").num_rows == 20


def test_hosts_that_differ_can_be_told_apart_in_every_row(tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = small_run(tmp_path)
    first, second = ScriptedEngine(stop_after=16), ScriptedEngine()
    second.device, second.dtype, second.engine = "NVIDIA H200", "bfloat16", "scripted 2"
    for host, engine in (("node1", first), ("node2", second)):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        try:
            sample(warehouse, engine, dtype=engine.dtype, accept_change=("dtype", "engine"))
        except KeyboardInterrupt:
            assert engine is first
    columns = ["host", "device", "dtype", "engine", "policy_sha256"]
    rows = warehouse.read("completions", columns, iteration=0, purpose="train").to_pylist()
    found = {tuple(row.values())[:4] for row in rows}
    assert found == {("node1", "cpu", "float32", "scripted 1"),
                     ("node2", "NVIDIA H200", "bfloat16", "scripted 2")}
    assert len({row["policy_sha256"] for row in rows}) == 1
