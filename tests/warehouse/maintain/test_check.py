"""`warehouse check`: every broken invariant is named with its file, and a good run passes."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.building.runs import back_before, change_document
from tests.building.sound import check_run
from tests.building.weather import SCORER, build_run
from warehouse.cli import cli
from warehouse.init import init_run
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.check import _footer_problems
from warehouse.maintain.compact import compact_run
from warehouse.maintain.fix import fix
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

# Entries 1, 3 and 5 of the log begin the stages of iteration 0, entries 7, 9 and 11 those of iteration 1.
COMPLETIONS = "completions/iteration=0/purpose=train/generation=1/part-00000.parquet"
SAMPLES = f"samples/iteration=0/purpose=train/scorer={SCORER}/generation=3/part-00000.parquet"
TRAINED = "train/iteration=0/generation=5/samples-00000.parquet"
PROMPTS = "prompts/iteration=0/purpose=train/generation=1/part-00000.parquet"


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(
        tmp_path_factory.mktemp("runs") / "run", iterations=2, evals=(), num_tasks=4, group_size=4
    )


@pytest.fixture
def run(intact: Warehouse, tmp_path: Path) -> Warehouse:
    shutil.copytree(intact.root, tmp_path / "run")
    return open_warehouse(tmp_path / "run")


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the rows of a part, and its manifest with it, so that only the rows are wrong."""
    from warehouse.store.checksums import sha256_of
    table = pq.ParquetFile(path).read()
    rows = table.to_pylist()
    change(rows)
    path.chmod(0o644)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    manifest = path.parent / "manifest.json"
    if manifest.exists():
        parts = json.loads(manifest.read_text())["parts"]
        for part in parts:
            if part["name"] == path.name:
                part.update(bytes=path.stat().st_size, sha256=sha256_of(path))
        change_document(manifest, parts=parts)


def only_problem(run: Warehouse) -> str:
    problems = check_run(run).problems
    assert len(problems) == 1, problems
    return problems[0]


def test_a_good_run_has_no_problem(intact: Warehouse) -> None:
    report = check_run(intact)
    assert report.problems == [] and report.notes == []
    assert report.num_parts == 1 + 2 * (2 + 2 + 2 + 3)
    assert report.num_rows == 4 + 2 * (4 + 16 + 16 + 16 + 16 + 4)


@pytest.mark.parametrize("ask", [lambda run: check_run(run, 9), lambda run: compact_run(run, 9)])
def test_an_iteration_that_is_not_there_is_not_called_sound(intact: Warehouse,
                                                            ask: Callable[[Warehouse], Any]) -> None:
    with pytest.raises(Refusal) as refused:
        ask(intact)
    assert (refused.value.code, refused.value.fields["iteration"]) == ("no_iteration", 9)


def test_a_changed_part_differs_from_its_manifest(run: Warehouse) -> None:
    path = run.root / COMPLETIONS
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    assert any(str(path) in problem and "sha256 differs" in problem for problem in check_run(run).problems)


def test_a_flipped_byte_anywhere_in_a_footer_is_a_finding_and_no_traceback(run: Warehouse) -> None:
    path = run.root / SAMPLES
    sound = path.read_bytes()
    path.chmod(0o644)
    for place in range(len(sound) - 8 - int.from_bytes(sound[-8:-4], "little"), len(sound), 3):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x88]) + sound[place + 1:])
        _footer_problems(run, path)
    path.write_bytes(sound[:-9] + b"\xff\xff" + sound[-7:])
    assert check_run(run).problems


def test_a_torn_part_is_named_and_the_rest_still_checked(run: Warehouse) -> None:
    path = run.root / SAMPLES
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:500])
    [problem] = check_run(run).problems
    assert problem.startswith(f"{path} is torn")


def test_a_part_that_may_not_be_read_is_a_problem_and_stays(run: Warehouse,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: path != run.root / COMPLETIONS)
    [problem] = check_run(run).problems
    assert problem == f"{run.root / COMPLETIONS} cannot be read (Permission denied). Grant it."
    assert not fix(run, check_run(run).changes)


def test_a_folder_that_may_not_be_read_is_a_problem_and_the_rest_still_checked(
        run: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, listdir = {(run.root / COMPLETIONS).parent, run.policy_dir(1)}, os.listdir

    def listed(path: Any = ".") -> list[str]:
        if path in closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listdir(path)
    monkeypatch.setattr(os, "listdir", listed)
    (run.root / SAMPLES).unlink()
    report = check_run(run)
    assert {f"{folder} cannot be read (Permission denied). Fix that." for folder in closed} == {
        problem for problem in report.problems if SAMPLES not in problem}
    assert len(report.problems) == 3 and not any(str(folder) in str(change) for folder in closed
                                                 for change in report.changes)


def test_a_missing_part_is_named(run: Warehouse) -> None:
    (run.root / SAMPLES).unlink()
    problems = check_run(run).problems
    assert any("is missing" in problem and SAMPLES in problem for problem in problems)


def test_missing_scores_are_named_and_can_be_made_again(run: Warehouse) -> None:
    shutil.rmtree(run.root / "samples/iteration=1")
    problem = only_problem(run)
    assert problem.startswith(f"{run.root}/samples/iteration=1/purpose=train/scorer={SCORER}/generation=9 is")
    assert problem.endswith("or let `warehouse check --fix` open the stage again.")
    fix(run, check_run(run).changes)
    assert "not complete" in only_problem(run) and run.state.due().stage == "score"


def test_missing_completions_of_a_scored_iteration_stay_missing(run: Warehouse) -> None:
    shutil.rmtree(run.root / "completions/iteration=1")
    problem = check_run(run, quick=True).problems[0]
    assert problem.startswith(f"{run.root}/completions/iteration=1/purpose=train/generation=7 is gone")
    assert problem.endswith("Restore it from a copy of the run; no stage can make the same rows again.")
    assert not fix(run, check_run(run).changes)


@pytest.mark.parametrize("version, again", [(1, False), (2, True)])
def test_a_missing_policy_is_only_trained_again_if_nothing_was_sampled_from_it(
        run: Warehouse, version: int, again: bool) -> None:
    shutil.rmtree(run.policy_dir(version))
    assert ("let `warehouse check --fix` open train" in only_problem(run)) == again


def test_missing_tasks_are_named(run: Warehouse) -> None:
    shutil.rmtree(run.root / "tasks")
    assert any(problem == f"{run.root}/tasks holds no tasks. Restore it from a copy of the run."
               for problem in check_run(run).problems)


def test_changed_tasks_are_named(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    lines = [{"task_id": name, "kind": "answer", "payload": {"answer": name},
              "messages": [{"role": "user", "content": f"Say {name}"}]} for name in ("å", "b")]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, lines)))
    init_run(tmp_path / "run", str(model), ("synthetic:3", f"said={tmp_path / 'said.jsonl'}"))
    made = open_warehouse(tmp_path / "run")
    assert check_run(made).problems == []

    def change(rows: list[dict[str, Any]]) -> None:
        rows[1]["payload"] = rows[0]["payload"]

    rewrite(made.root / "tasks/part-00000.parquet", change)
    assert "tasks are not those that the run was made with" in only_problem(made).replace(
        f"in {made.root}/tasks ", "")


def test_a_part_beside_the_manifest_is_named(run: Warehouse) -> None:
    shutil.copy(run.root / COMPLETIONS, (run.root / COMPLETIONS).with_name("part-00002.parquet"))
    problems = check_run(run).problems
    assert any("is not in the manifest" in problem for problem in problems)
    parts = run.parts("completions", iteration=0, purpose="train")
    assert "part-00002.parquet" not in [part.name for part in parts]      # no reader takes it up


def test_a_part_of_another_run_is_named(run: Warehouse) -> None:
    problems = check_run(Warehouse(run.root, {**run.facts, "run_id": "0ddba11"}), quick=True).problems
    assert len(problems) == 19 and f"belongs to run {run.run_id}, this one is 0ddba11" in problems[0]


def test_a_link_to_nothing_is_named_as_such_and_stays(run: Warehouse, tmp_path: Path) -> None:
    (run.root / COMPLETIONS).unlink()
    (run.root / COMPLETIONS).symlink_to(tmp_path / "unmounted")
    assert check_run(run).problems[0] == (
        f"{run.root / COMPLETIONS} is a broken link. Restore its target.")
    assert not fix(run, check_run(run).changes)


def test_a_pipe_in_the_place_of_a_part_is_named_and_not_waited_for(run: Warehouse) -> None:
    (run.root / COMPLETIONS).unlink()
    os.mkfifo(run.root / COMPLETIONS)
    told = subprocess.run([sys.executable, "-c", "from warehouse.cli import cli; cli()", "check",
                           str(run.root)], capture_output=True, text=True, timeout=300)
    assert told.returncode == 1 and f"{COMPLETIONS} is not a file. Restore it" in told.stdout
    assert check_run(run).changes


def test_lost_prompts_are_named(run: Warehouse) -> None:
    (run.root / PROMPTS).unlink()
    assert any(f"{PROMPTS} is missing, though the manifest" in problem
               for problem in check_run(run, quick=True).problems)
    with pytest.raises(StageError, match=r"part-00000.parquet is missing"):
        run.read("prompts", iteration=0, purpose="train")


def test_changed_prompts_are_named(run: Warehouse) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["prompt"] += " please"

    rewrite(run.root / PROMPTS, change)
    problem = only_problem(run)
    assert PROMPTS in problem and "does not match its manifest (sha256 differs)" in problem


def test_a_rollout_from_before_manifests_listed_prompts_is_still_checked(run: Warehouse) -> None:
    manifest = (run.root / COMPLETIONS).with_name("manifest.json")
    facts = json.loads(manifest.read_text())
    assert facts.pop("prompts") and facts.pop("checksum")
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(facts))
    assert check_run(run).problems == []
    shutil.rmtree((run.root / PROMPTS).parent)
    assert "holds no prompts, though rollout of iteration 0" in check_run(run, quick=True).problems[0]


def shorter_logprobs(rows: list[dict[str, Any]]) -> None:
    rows[3]["behaviour_logprobs"] = rows[3]["behaviour_logprobs"][:-1]


def missing_logprob(rows: list[dict[str, Any]]) -> None:
    rows[3]["behaviour_logprobs"][0] = float("nan")


def positive_logprob(rows: list[dict[str, Any]]) -> None:
    rows[3]["behaviour_logprobs"][0] = 0.25


def twice_the_same(rows: list[dict[str, Any]]) -> None:
    rows[1]["sample_index"] = rows[0]["sample_index"]


def unknown_group(rows: list[dict[str, Any]]) -> None:
    for row in rows[:4]:
        row["group_id"] = "nowhere"


@pytest.mark.parametrize(("change", "words"), [
    (shorter_logprobs, "tokens, but behaviour_logprobs has"),
    (missing_logprob, "1 of behaviour_logprobs are missing or not finite"),
    (positive_logprob, "1 of behaviour_logprobs are above 0"),
    (unknown_group, "group nowhere has no prompt"),
])
def test_wrong_completions_are_named(run: Warehouse, change: Callable[..., None], words: str) -> None:
    rewrite(run.root / COMPLETIONS, change)
    problem = only_problem(run)
    assert words in problem and COMPLETIONS in problem


def test_a_key_that_is_there_twice_is_named(run: Warehouse) -> None:
    rewrite(run.root / COMPLETIONS, twice_the_same)
    problems = check_run(run).problems
    assert any("completion 0 of task task-000 is there 2 times" in problem for problem in problems)
    assert any("its completions are not those of" in problem for problem in problems)


def test_old_logprobs_of_another_length_are_named(run: Warehouse) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["old_logprobs"] = rows[0]["old_logprobs"][:-2]

    rewrite(run.root / TRAINED, change)
    assert "old_logprobs for" in only_problem(run)


def test_a_reward_that_is_no_number_is_named(run: Warehouse) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["reward"] = float("inf")

    rewrite(run.root / SAMPLES, change)
    assert "a reward is not a finite number" in only_problem(run)


def test_a_first_output_that_is_not_the_first_is_named(run: Warehouse) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        repeated = next(row for row in rows if row["first_output"] is False)
        repeated["first_output"] = True

    rewrite(run.root / SAMPLES, change)
    assert "does not fit the fingerprints of its group; score again" in only_problem(run)


def test_a_group_in_two_parts_is_named(run: Warehouse) -> None:
    later = COMPLETIONS.replace("part-00000", "part-00001")
    group = pq.ParquetFile(run.root / COMPLETIONS).read()["group_id"][0].as_py()

    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["group_id"] = group

    rewrite(run.root / later, change)
    assert f"{later}: group {group} began in an earlier part" in only_problem(run)


def test_a_missing_policy_is_named(run: Warehouse) -> None:
    shutil.rmtree(run.root / "policies/2/generation=11")
    assert "policy 2 is missing" in only_problem(run)


def test_unfinished_work_is_a_note_not_a_problem(run: Warehouse) -> None:
    back_before(run, "train", complete=True, iteration=1)
    run = open_warehouse(run.root)
    report = check_run(run)
    assert report.problems == []
    assert any("train of iteration 1 is not complete" in note for note in report.notes)


def test_the_command_lists_problems_and_fails(run: Warehouse) -> None:
    good = CliRunner().invoke(cli, ["check", str(run.root)])
    assert (good.exit_code, good.stdout) == (0, "19 parts, 148 rows, 0 problems\n")
    shutil.rmtree(run.root / "samples/iteration=1")
    bad = CliRunner().invoke(cli, ["check", str(run.root)])
    assert bad.exit_code == 1 and bad.stdout.splitlines()[-1].endswith(", 1 problem")
    fixed = CliRunner().invoke(cli, ["check", str(run.root), "--fix"])
    assert fixed.exit_code == 0 and fixed.stdout.splitlines()[-1].endswith(
        ", 1 problem, 0 left, 1 stage to run")
    assert "score of iteration 1" in fixed.stdout and run.state.due().stage == "score"
    assert f"To finish it: score {run.root} --iteration 1\n" in fixed.stdout


def test_a_repair_names_every_stage_that_is_to_be_run_again(run: Warehouse) -> None:
    part = run.root / COMPLETIONS
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.chmod(0o644)
    part.write_bytes(content)
    fixed = CliRunner().invoke(cli, ["check", str(run.root), "--fix"])
    assert fixed.exit_code == 0 and fixed.stdout.splitlines()[-1].endswith(" 0 left, 2 stages to run")
    iteration = COMPLETIONS.partition("iteration=")[2][0]
    for stage in ("rollout", "score"):
        assert f"To finish it: {stage} {run.root} --iteration {iteration}\n" in fixed.stdout
    summed = CliRunner().invoke(cli, ["summary", str(run.root)])
    assert f"Open again since a repair: rollout {run.root} --iteration {iteration}\n" in summed.stdout
