"""Kill -9 at the named instants of every command, in a chain; the end must be that of an undisturbed run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.building.chatting import ChatService
from tests.building.runs import copy_run
from tests.chaos.kills import Step, at_next_instant, to_the_end
from tests.chaos.loop import contents, leftovers, new_run, problems
from warehouse.store.run_folder import Warehouse

COMMANDS = [Step(name, 0) for name in ("rollout", "score", "train", "compact", "report")]
# All instants in `make chaos`; here the first part stands for all, and these for train, which starts slowly.
TRAIN = ("after rename train/iteration=0/checkpoint-1", "before rename policies/1", "after rename policies/1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, dict[str, list[str]]]:
    """One iteration without kills, and the instants that each command passed."""
    warehouse = new_run(tmp_path_factory.mktemp("chaos") / "undisturbed")
    ended = {step.name: to_the_end(step, warehouse) for step in COMMANDS}
    assert not any(one.code for one in ended.values()), ended
    return warehouse, {name: one.instants for name, one in ended.items()}


@pytest.mark.slow("an iteration is made by commands that say which instants they pass")
def test_commands_pass_the_instants_that_the_promise_names(
        undisturbed: tuple[Warehouse, dict[str, list[str]]]) -> None:
    _, instants = undisturbed
    rollout, train = "completions/iteration=0/purpose=train", "train/iteration=0"
    assert set(TRAIN) <= set(instants["train"])
    for point in ("before write", "before link", "after link"):
        for name in ("part-00000.parquet", "part-00000.parquet.spill", "manifest.json"):
            assert f"{point} {rollout}/{name}" in instants["rollout"]
        for name in ("_log/00000001.json", "prompts/iteration=0/purpose=train/plan.json"):
            assert f"{point} {name}" in instants["rollout"]
        assert f"{point} {train}/manifest.json" in instants["train"]
    assert sum("manifest.json" in instant for instant in instants["score"]) == 3
    assert f"after link {rollout}/manifest.json" in instants["compact"]
    assert [f"{point} report.html" for point in ("before write", "before replace", "after replace")] == [
        instant for instant in instants["report"] if "report.html" in instant]


@pytest.mark.slow("some forty commands are started and killed, one after the other")
def test_killed_at_every_instant_a_run_ends_like_an_undisturbed_one(
        undisturbed: tuple[Warehouse, dict[str, list[str]]], tmp_path: Path) -> None:
    reference, instants = undisturbed
    killed, passed = new_run(tmp_path / "killed"), tmp_path / "passed"
    kills = 0
    for step in COMMANDS:
        skipped = [instant for instant in instants[step.name] if "part-00001" in instant
                   or "part-00002" in instant or (step.name == "train" and instant not in TRAIN)]
        with passed.open("a") as stream:
            stream.writelines(f"{instant}\n" for instant in skipped)
        while (ended := at_next_instant(step, killed, passed)).killed:
            kills += 1
        assert ended.code == 0, ended.output
    assert kills >= 38
    assert contents(killed) == contents(reference)
    assert leftovers(killed) == problems(killed) == []


@pytest.mark.slow("a rollout of second turns is started and killed twenty times")
def test_second_turns_killed_at_every_instant_are_those_of_an_undisturbed_wave(tmp_path: Path) -> None:
    reference, step = new_run(tmp_path / "reference"), Step("turn", 0)
    for name in ("rollout", "score"):
        assert to_the_end(Step(name, 0), reference).code == 0
    killed = copy_run(reference, tmp_path / "killed")
    assert (ended := to_the_end(step, reference)).code == 0
    kills = 0
    while (now := at_next_instant(step, killed, tmp_path / "passed")).killed:
        kills += 1
    assert now.code == 0 and kills == len(set(ended.instants)) >= 15, now.output

    def wave(run: Warehouse, table: str) -> list[dict[str, Any]]:
        rows = run.read(table, iteration=0, purpose="train-turn2").to_pylist()
        return [{name: value for name, value in row.items() if name != "finished_at"} for row in rows]
    for table in ("prompts", "completions"):
        assert wave(killed, table) == wave(reference, table) != []
    assert leftovers(killed) == problems(killed) == []


@pytest.mark.slow("reports is started and killed seven times")
def test_a_report_killed_at_every_instant_is_the_former_page_or_the_whole_new_one(
        undisturbed: tuple[Warehouse, dict[str, list[str]]], tmp_path: Path) -> None:
    """The same run gives the same page, to the byte."""
    warehouse, instants = undisturbed
    page, step = warehouse.root / "report.html", Step("report", 0)
    new = page.read_bytes()
    assert new.endswith(b"</html>\n") and b"<svg" in new
    page.write_text("the former page")
    seen = []
    while (ended := at_next_instant(step, warehouse, tmp_path / "passed")).killed:
        seen.append(page.read_bytes())
        assert seen[-1] in (b"the former page", new)
    assert ended.code == 0, ended.output
    assert len(seen) == len(instants["report"]) and set(seen) == {b"the former page", new}
    assert page.read_bytes() == new


@pytest.mark.slow("some twenty rollouts are started and killed, one after the other")
def test_asking_a_foreign_model_killed_at_every_instant_has_the_rows_of_one_undisturbed(
        tmp_path: Path) -> None:
    service = ChatService()
    said = []
    for name in ("undisturbed", "killed"):
        run = new_run(tmp_path / name)
        command = [sys.executable, "-m", "tests.chaos.commands", "--real-engine"]
        words = ["rollout", str(run.root), "--model", "wise-1", "--endpoint", service.url, "--distil",
                 "--num-tasks", "1", "--group-size", "2", "--spill-seconds", "0",
                 "--prompt-format", "compact"]
        kills, code = 0, -9
        while code == -9:
            how = ["--list"] if name == "undisturbed" else ["--die-once", str(tmp_path / "passed")]
            code = subprocess.run([*command, *how, *words], capture_output=True, check=False).returncode
            kills += code == -9
        assert code == 0
        rows = run.read("completions", iteration=0, purpose="distil").to_pylist()
        said.append([(row["sample_index"], row["completion"], row["completion_ids"]) for row in rows])
        assert not problems(run) and not leftovers(run)
    assert kills >= 20 and said[0] == said[1]
    service.stop()
