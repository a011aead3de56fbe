"""The stage `score` from the command line: rows, resuming, what is refused."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.arc.submission import export_submission, submission_table
from score import run
from score.cli import score
from score.isolation.lockdown import Layer
from score.judging.golden import GOLDEN, check_golden
from score.rewards.named import REWARDS
from score.rewards.scorer import Scorer
from score.sandbox import tiers
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks.kinds import KINDS
from tests.building import plain
from tests.building.runs import TURN, back_before, begin, finish, new_run
from tests.building.texts import FLIP, SAME, add_rollout, fenced
from warehouse import open as open_connection
from warehouse.cli import cli
from warehouse.maintain.discard import discard
from warehouse.maintain.prune import prune_ended, prune_run
from warehouse.maintain.tasks import replace_tasks
from warehouse.stages import warm
from warehouse.store.errors import StageError

RAISES = "def transform(grid):\n    return grid // 0\n\ndef other():\n    raise ValueError\n"
AUGMENTED = {"flip": True, "rotations": 1, "color_map": [0, 2, 3, 4, 5, 6, 7, 8, 9, 1]}


def invoke(*arguments: object):
    return CliRunner().invoke(score, [str(argument) for argument in arguments])


def rows(warehouse, reward="arc-v1", iteration=0, purpose="train"):
    scorer = next(name for name in warehouse.state.scorers(iteration, purpose) if name.startswith(reward))
    return warehouse.read("samples", iteration=iteration, purpose=purpose, scorer=scorer).to_pylist()


@pytest.fixture
def warehouse(tmp_path):
    return new_run(tmp_path / "run")


def test_a_process_that_stays_keeps_its_lanes_while_they_fit(warehouse, tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "stays", True)

    def lanes_after(iteration, *options):
        add_rollout(warehouse, [("turn", fenced(FLIP))], iteration=iteration)
        result = invoke(warehouse.root, *options)
        assert result.exit_code == 0, result.output
        assert [row["correct"] for row in rows(warehouse, iteration=iteration)] == [True]
        return [lane.pid for pool, _tier in tiers._kept.values() for lane in pool.lanes]
    first = lanes_after(0, "--lanes", 2)
    assert len(first) == 2 and lanes_after(1, "--lanes", 2) == first
    assert lanes_after(2, "--lanes", 1) == first[:1]
    [other] = lanes_after(3, "--lanes", 1, "--memory-mib", 300)
    assert other not in first and not Path(f"/proc/{first[0]}").exists()
    (tmp_path / "own").mkdir()
    assert lanes_after(4, "--lanes", 1, "--import-path", tmp_path / "own") == []
    assert not Path(f"/proc/{other}").exists()


def test_lanes_of_a_command_that_failed_are_not_kept(warehouse, monkeypatch):
    monkeypatch.setattr(warm, "stays", True)
    monkeypatch.setattr(run, "samples_table", lambda *_: 1 / 0)
    add_rollout(warehouse, [("turn", fenced(FLIP))])
    assert invoke(warehouse.root).exit_code == 1 and not tiers._kept


def test_completions_become_rows(warehouse):
    answers = [fenced(FLIP), fenced(SAME), "no program", "```python\n" + FLIP, fenced("x = (\n"),
               fenced("x = 1\n"), fenced(RAISES), fenced(FLIP),
               fenced("def transform(g):\n    return g + 20\n")]
    add_rollout(warehouse, [("turn", answer) for answer in answers], part_size=4)
    result = invoke(warehouse.root)
    assert result.exit_code == 0, result.output
    found = rows(warehouse)
    assert [row["sample_index"] for row in found] == list(range(9))
    assert [row["error_class"] for row in found] == [
        None, None, "parsing", "parsing", "syntax", "missing_function", None, None, "invalid_output"]
    assert found[0]["reward"] == found[7]["reward"] == 10.0
    assert found[0]["correct"] and not found[1]["correct"]
    assert found[0]["fingerprint"] == found[7]["fingerprint"] != found[1]["fingerprint"]
    assert json.loads(found[0]["outputs"])["test"] == [[[9, 0], [0, 8]]]
    assert found[0]["code"] == FLIP
    assert found[8]["error_name"] == "range"
    assert found[2]["reward"] == 0.0 and not found[2]["valid_code"] and found[4]["valid_code"]
    assert json.loads(found[0]["reward_parts"]) == {"valid": 1.0, "correct_grids": 8.0, "pixel_score": 1.0}
    assert found[0]["nll_sampled"] == 0.5 and found[0]["logprob_min"] == -0.5
    manifest = warehouse.stage("score", iteration=0, purpose="train", scorer=found[0]["scorer"]).manifest()
    assert manifest["facts"]["programs_run"] == 6            # the two equal ones once, in different parts


def test_the_first_completion_of_a_group_with_its_outputs_is_marked(warehouse):
    answers = [fenced(SAME), fenced(FLIP), "no program", fenced(FLIP + "\n"), fenced(SAME),
               fenced("x = 1\n")]
    add_rollout(warehouse, [("turn", answer) for answer in answers])
    invoke(warehouse.root)
    assert [row["first_output"] for row in rows(warehouse)] == [True, True, None, False, False, None]


def test_outputs_are_compared_and_stored_with_the_augmentation_undone(warehouse):
    # Flipped left to right and turned a quarter, `fliplr` has become `flipud`.
    answers = [fenced(FLIP.replace("fliplr", "flipud")), fenced(FLIP)]
    add_rollout(warehouse, [("turn", answer) for answer in answers], **AUGMENTED)
    assert invoke(warehouse.root).exit_code == 0
    found = rows(warehouse)
    assert found[0]["reward"] == 10.0 and json.loads(found[0]["outputs"])["test"] == [[[9, 0], [0, 8]]]
    assert found[1]["reward"] < 10.0


def test_the_prefill_is_part_of_the_answer(warehouse):
    add_rollout(warehouse, [("turn", FLIP + "```")], prefill="Let me see.\n```python\n")
    assert invoke(warehouse.root).exit_code == 0
    assert rows(warehouse)[0]["correct"]


def test_a_second_run_has_nothing_to_do_and_another_scorer_adds_rows(warehouse):
    add_rollout(warehouse, [("turn", fenced(FLIP)), ("turn", "none")])
    assert invoke(warehouse.root).exit_code == 0
    again = invoke(warehouse.root)
    assert again.exit_code == 0
    assert re.fullmatch(r"Nothing to score: arc-v1-[0-9a-f]{10} has scored every complete rollout of .*\n",
                        again.output)
    other = invoke(warehouse.root, "--reward", "arc-exact-shaped")
    assert other.exit_code == 0 and "arc-exact-shaped-" in other.output
    assert [row["reward"] for row in rows(warehouse)] == [10.0, 0.0]
    assert [row["reward"] for row in rows(warehouse, "arc-exact")] == [1.0, -0.1]


def test_a_replaced_task_is_named_where_rewards_are_of_another_scorer_than_before(warehouse, tmp_path):
    add_rollout(warehouse, [("turn", fenced(FLIP))])
    invoke(warehouse.root)
    plain.train(warehouse)
    add_rollout(warehouse, [("turn", fenced(SAME))], iteration=1)
    [payload] = [json.loads(row["payload"]) for row in warehouse.read("tasks").to_pylist()
                 if row["task_id"] == "turn"]
    task = {"task_id": "turn", "kind": "grid", "payload": payload | {"test": payload["test"] * 2}}
    (tmp_path / "corrected.jsonl").write_text(json.dumps(task))
    replace_tasks(warehouse, (str(tmp_path / "corrected.jsonl"),))
    result = invoke(warehouse.root, "--iteration", 1)
    assert re.search(r"iteration 0 was trained on those of \S+: 1 replaced task \(turn\), or the options, "
                     "your", result.output), result.output
    [former] = re.findall(r"trained on those of (\S+):", result.output)
    assert invoke(warehouse.root, "--iteration", 0).exit_code == 0
    lines = invoke("diff", warehouse.root, former, "arc-v1").output.splitlines()
    assert lines[1] == "  replaced: turn" and lines[-1] == "  no verdict of a task changed", lines


def test_what_was_pruned_is_left_out_and_said(warehouse):
    for iteration in range(2):
        add_rollout(warehouse, [("turn", fenced(FLIP))], iteration=iteration)
    finish(warehouse, "train", iteration=0)
    prune_run(warehouse, 1, dry_run=False)
    said = "left out: 1 rollout up to iteration 0, pruned of the tokens"
    result = invoke(warehouse.root)
    assert result.exit_code == 0 and said in result.output and rows(warehouse, iteration=1)[0]["correct"]
    again = invoke(warehouse.root)
    assert again.exit_code == 0 and said in again.output and not warehouse.state.scorers(0, "train")


def test_a_killed_run_keeps_its_parts_and_finishes(warehouse):
    add_rollout(warehouse, [("turn", fenced(FLIP))] * 6, part_size=2)
    assert invoke(warehouse.root).exit_code == 0
    scorer = warehouse.state.scorers(0, "train")[0]
    folder = warehouse.folder("samples", iteration=0, purpose="train", scorer=scorer)
    kept = (folder / "part-00001.parquet").read_bytes()
    for name in ("part-00000.parquet", "part-00002.parquet"):
        (folder / name).unlink()
    warehouse = back_before(warehouse, "score", complete=True, iteration=0, purpose="train", scorer=scorer)
    assert invoke(warehouse.root).exit_code == 0
    assert len(rows(warehouse)) == 6
    assert (folder / "part-00001.parquet").read_bytes() == kept


def test_every_complete_rollout_that_is_due_is_scored(warehouse):
    for iteration in range(2):
        add_rollout(warehouse, [("turn", fenced(FLIP))], iteration=iteration)
    add_rollout(warehouse, [("turn", fenced(FLIP))], iteration=1, purpose="eval")
    add_rollout(warehouse, [("turn", fenced(FLIP))], iteration=2, complete=False)
    assert invoke(warehouse.root, "--iteration", "1").exit_code == 0
    assert not warehouse.state.scorers(0, "train")
    assert warehouse.state.scorers(1, "eval") and warehouse.state.scorers(1, "train")
    under_way = invoke(warehouse.root)
    assert under_way.exit_code == 75
    assert "The rollout of iteration 2 (train) is not complete: its parts so far" in under_way.output
    assert warehouse.state.scorers(0, "train") and not warehouse.state.scorers(2, "train")


def test_a_rollout_under_way_is_said_where_the_others_are_scored(warehouse):
    add_rollout(warehouse, [("turn", fenced(FLIP))])
    assert invoke(warehouse.root).exit_code == 0
    again = invoke(warehouse.root)
    assert again.exit_code == 0 and "Nothing to score: " in again.output
    finish(warehouse, "train", iteration=0)
    begin(warehouse, "rollout", iteration=1, purpose="train")
    early = invoke(warehouse.root)
    assert early.exit_code == 75 and "the rollout is under way. Run `score` again" in early.output
    assert invoke(warehouse.root, "--purpose", "eval").exit_code == 1


def test_a_rollout_that_has_begun_without_a_part_is_under_way_until_it_is_discarded(warehouse):
    begin(warehouse, "rollout", iteration=0, purpose="train")
    for arguments in ([], ["--iteration", "0"]):
        early = invoke(warehouse.root, *arguments)
        assert early.exit_code == 75 and "the rollout is under way. Run `score` again" in early.output
    discard(warehouse, 0, "train")
    assert invoke(warehouse.root, "--iteration", "0").exit_code == 1


def test_files_of_what_was_just_discarded_stay_and_are_counted(warehouse):
    add_rollout(warehouse, [("turn", fenced(FLIP))])
    discard(warehouse, 0, "train")
    assert prune_ended(warehouse, dry_run=False) == (
        "0 generations that no longer count, 0.0 MB: removed; 2 younger than an hour stay")
    assert list(warehouse.root.glob("completions/**/*.parquet"))


def test_the_parts_of_a_rollout_under_way_are_scored_and_the_rest_later(warehouse):
    answers = [("turn", fenced(FLIP))] * 4
    add_rollout(warehouse, answers, part_size=2, complete=False)
    last = warehouse.part_path("completions", 1, iteration=0, purpose="train")
    written = last.read_bytes()
    last.unlink()
    assert invoke(warehouse.root, "--iteration", "0").exit_code == 75
    folder, = warehouse.root.glob("samples/*/*/*/*")
    assert [path.name for path in sorted(folder.glob("part-*"))] == ["part-00000.parquet"]
    assert not warehouse.state.scorers(0, "train")
    last.write_bytes(written)
    assert invoke(warehouse.root, "--iteration", "0").exit_code == 75          # all parts, no manifest yet
    warehouse.stage("rollout", iteration=0, purpose="train").complete({}, range(2))
    assert invoke(warehouse.root, "--iteration", "0").exit_code == 0
    assert len(rows(warehouse)) == 4 and warehouse.state.scorers(0, "train")


def test_on_a_signal_the_part_in_hand_is_written_and_the_command_asks_for_a_requeue(warehouse, monkeypatch):
    add_rollout(warehouse, [("turn", fenced(FLIP))] * 4, part_size=2)
    table = run.samples_table

    def signalled(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return table(*arguments)
    with monkeypatch.context() as during:
        during.setattr(run, "samples_table", signalled)
        stopped = invoke(warehouse.root)
    assert stopped.exit_code == 75
    assert "Stopped because SIGTERM was received, with 1 of 2 parts scored." in stopped.output
    assert invoke(warehouse.root).exit_code == 0
    assert len(rows(warehouse)) == 4


def test_samples_of_completions_that_are_gone_stop_the_stage(warehouse):
    add_rollout(warehouse, [("turn", fenced(FLIP))] * 4, part_size=2)
    assert invoke(warehouse.root).exit_code == 0
    scorer, = warehouse.state.scorers(0, "train")
    folder = warehouse.folder("samples", iteration=0, purpose="train", scorer=scorer)
    back_before(warehouse, "score", complete=True, iteration=0, purpose="train", scorer=scorer)
    (folder / "part-00001.parquet").rename(folder / "part-00009.parquet")
    result = invoke(warehouse.root)
    assert result.exit_code == 1 and "Part 9 of score of iteration 0" in result.output


def test_score_before_any_rollout_says_what_is_missing(warehouse):
    result = invoke(warehouse.root)
    assert result.exit_code == 1
    assert f"no completions to score. Run `rollout {warehouse.root}` first." in result.output
    add_rollout(warehouse, [("turn", fenced(FLIP))])
    evals = invoke(warehouse.root, "--purpose", "eval")
    assert evals.exit_code == 1 and "no completions of purpose eval to score. Run" in evals.output


def test_the_default_reward_depends_on_the_kinds_of_task(tmp_path):
    stdio = ("stdio", {"cases": [{"input": "1 2", "output": "3"}]})
    answers = [("sum", fenced("print(3)\n")), ("sum", fenced(""))]
    run = new_run(tmp_path / "scripts", {"sum": stdio})
    add_rollout(run, answers)
    assert invoke(run.root).exit_code == 0
    assert [row["reward"] for row in rows(run, "exact-")] == [1.0, 0.0]
    run = new_run(tmp_path / "both", {"sum": stdio, "turn": TURN})
    add_rollout(run, [*answers, ("turn", fenced(FLIP)), ("turn", fenced(SAME))])
    assert invoke(run.root).exit_code == 0
    found = rows(run, "by-kind-")
    assert [row["reward"] for row in found] == [1.0, 0.0, 10.0, pytest.approx(10 / 9)]
    stage = run.stage("score", iteration=0, purpose="train", scorer=found[0]["scorer"])
    assert stage.settings()["rewards"] == {"grid": "arc-v1", "function": "exact", "stdio": "exact",
                                           "answer": "exact", "math": "exact", "graded": "graded"}


@pytest.mark.parametrize(("arguments", "message"), [
    (["--iteration", "5"], "Iteration 5 has no complete rollout to score. Run `rollout"),
    (["--iteration", "0", "--purpose", "distil-big"],
     "/run --api-model NAME --distil --label big --iteration 0` first."),
    (["--purpose", "eval-hard"], "has no completions of purpose eval-hard to score. Run `rollout "),
    (["--purpose", "eval-hard"], "/run --eval --label hard` first."),
    (["--purpose", "train-turn2"], "/run --turn 2` first."),
    (["--cpu-seconds", "0"], "The limit cpu_seconds is 0.0: it must be above 0 and at most"),
    (["--wall-seconds", "0.5"], "is below cpu_seconds"),
    (["--allow-import", "no_such_module"], "Error: A lane for running programs could not start: ImportError: "
     "--allow-import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"),
    (["--allow-import", "no_such_module", "--tier", "C"],
     "Error: A lane for running programs could not start: "
     "ImportError: --allow-import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"),
])
def test_bad_input_is_one_sentence_and_writes_nothing(warehouse, arguments, message):
    add_rollout(warehouse, [("turn", fenced(FLIP))])
    result = invoke(warehouse.root, *arguments)
    assert result.exit_code == 1 and message in result.output
    assert "Traceback" not in result.output and not (warehouse.root / "samples").exists()


def test_a_reward_of_grids_is_refused_without_grids_also_by_a_loop_before_it_samples(tmp_path, monkeypatch):
    run = new_run(tmp_path / "scripts", {"sum": ("stdio", {"cases": [{"input": "1 2", "output": "3"}]})})
    add_rollout(run, [("sum", fenced("print(3)\n"))])
    (run.root / "config.toml").write_text('[score]\nreward = "arc-exact-shaped"\n')
    monkeypatch.setenv("ROLLHOUSE_WARM", "off")
    (tmp_path / "tasks.jsonl").write_text(json.dumps({
        "task_id": "sum", "kind": "stdio", "messages": [{"role": "user", "content": "?"}],
        "payload": {"cases": [{"input": "1 2", "output": "3"}]}}) + "\n")
    (tmp_path / "sum.py").write_text("print(3)\n")
    starter = Path(__file__).parents[2] / "examples/starter/model"
    init = ["init", str(tmp_path / "new"), "--model", str(starter), "--tasks", str(tmp_path / "tasks.jsonl"),
            "--config", str(run.root / "config.toml")]
    tried = ["try", str(run.root), str(tmp_path / "sum.py"), "--task", "sum", "--reward", "arc-exact-shaped"]
    for result in (invoke(run.root), CliRunner().invoke(cli, ["loop", str(run.root), "1"]),
                   CliRunner().invoke(cli, init), CliRunner().invoke(score, tried)):
        assert result.exit_code == 1
        assert ("'arc-exact-shaped' is a reward of grids, and this run has none: its tasks are of kind "
                "stdio. Take `reward` out of [score] in config.toml") in result.output
    assert not (run.root / "samples").exists() and not (run.root / "loop.log").exists()
    assert not (tmp_path / "new").exists()
    assert invoke(run.root, "--reward", "exact").exit_code == 0


def test_completions_without_their_task_are_refused(warehouse):
    add_rollout(warehouse, [("lost", fenced(FLIP))])
    result = invoke(warehouse.root)
    assert result.exit_code == 1
    assert "completions of task lost, which is not among the run's tasks" in result.output
    assert not list(warehouse.root.glob("samples/**/*.parquet"))


@pytest.mark.parametrize("reward", [*REWARDS, "by-kind"])
def test_golden_answers_to_every_kind_deserve_what_each_reward_gives(reward):
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(), 1) as pool:
        assert check_golden(Executor(pool), Scorer(reward), KINDS) == len(GOLDEN)


def test_a_failing_golden_answer_stops_the_stage(warehouse, monkeypatch):
    add_rollout(warehouse, [("turn", fenced(FLIP))])
    broken = GOLDEN[0]._replace(code="import missing\ndef transform(grid):\n    return grid")
    monkeypatch.setattr("score.judging.golden.GOLDEN", [broken])
    result = invoke(warehouse.root)
    assert result.exit_code == 1
    assert "The golden answer 'perfect' got reward 0.0 instead of 10 (import_not_allowed" in result.output
    assert not (warehouse.root / "samples").exists()


def test_the_purpose_eval_is_every_evaluation(tmp_path):
    warehouse = new_run(tmp_path / "run")
    for purpose in ("train", "eval-mbpp", "eval-humaneval"):
        add_rollout(warehouse, [("turn", fenced(FLIP))], purpose=purpose)
    assert invoke(warehouse.root, "--iteration", "0", "--purpose", "eval").exit_code == 0
    purposes = ("train", "eval-mbpp", "eval-humaneval")
    assert [bool(warehouse.state.scorers(0, purpose)) for purpose in purposes] == [False, True, True]
    told = CliRunner().invoke(cli, ["summary", str(warehouse.root), "--line", "--purpose", "eval"])
    assert [line.split("  ")[1] for line in told.output.splitlines()] == ["eval-humaneval", "eval-mbpp"]


def test_a_reward_of_ones_own_is_not_told_that_what_nobody_could_judge_is_right(tmp_path):
    hidden = {"train": TURN["train"], "test": [{"input": [[1, 2], [3, 4]]}]}
    warehouse = new_run(tmp_path / "run", {"turn": TURN}, {"unknown": hidden})
    add_rollout(warehouse, [("unknown", fenced(FLIP)), ("turn", fenced(FLIP))], purpose="eval")
    reward = tmp_path / "reward.py"
    reward.write_text("def told(completions, correct, **columns):\n"
                      "    return [0.5 if ok is None else float(ok) for ok in correct]\n")
    assert invoke(warehouse.root, "--reward-file", f"{reward}:told").exit_code == 0
    assert [row["reward"] for row in rows(warehouse, "told", purpose="eval")] == [0.5, 1.0]


def test_tasks_without_solutions_have_outputs_and_no_verdict_and_make_a_submission(tmp_path):
    hidden = {"train": TURN["train"], "test": [{"input": [[1, 2], [3, 4]]}]}
    warehouse = new_run(tmp_path / "run", {"turn": TURN}, {"unknown": hidden, "other": hidden})
    add_rollout(warehouse, [("unknown", fenced(FLIP)), ("unknown", "none"), ("turn", fenced(FLIP))],
                purpose="eval")
    assert invoke(warehouse.root).exit_code == 0
    one, none, known = rows(warehouse, "arc-v1", purpose="eval")
    for row in (one, none):
        assert row["reward"] is None and row["correct"] is None and row["test_is_correct"] is None
    assert one["train_is_correct"] and json.loads(one["outputs"])["test"] == [[[2, 1], [4, 3]]]
    assert known["reward"] == 10.0
    file = tmp_path / "submission.json"
    export_submission(open_connection(warehouse.root), file)
    with pytest.raises(StageError, match="lacks 1 task, other"):
        submission_table(open_connection(warehouse.root), file)
    file.write_text(json.dumps(dict.fromkeys(("unknown", "other"), json.loads(file.read_text())["unknown"])))
    names, found = submission_table(open_connection(warehouse.root), file)
    [held_out] = [dict(zip(names, row, strict=True)) for row in found if row[0] == "heldout"]
    assert held_out["tasks"] == held_out["attempted"] == 2 and held_out["score"] is None
