"""Rewards of the user's own, and the commands that look at verdicts."""

import json

import polars as pl
import pytest
from click.testing import CliRunner

from score.cli import score
from score.doctor import examine
from score.inspect.diff import changes, scored_by
from score.options import REWARDS as OFFERED
from score.rewards.named import REWARDS
from tests.building.runs import finish, new_run
from tests.building.texts import FLIP, SAME, add_rollout, fenced
from warehouse.stages.user_code import load_function

LONG = FLIP + "# " + "x" * 40 + "\n"


def invoke(*arguments: object):
    return CliRunner().invoke(score, [str(argument) for argument in arguments])


@pytest.fixture
def warehouse(tmp_path):
    warehouse = new_run(tmp_path / "run")
    add_rollout(warehouse, [("turn", fenced(code)) for code in (FLIP, LONG, SAME)] + [("turn", "nothing")])
    return warehouse


def rows(warehouse, scorer_name: str) -> list[dict]:
    scorer = next(name for name in warehouse.state.scorers(0, "train") if name.startswith(scorer_name))
    return warehouse.read("samples", iteration=0, purpose="train", scorer=scorer).to_pylist()


USER = """
import asyncio

def brevity(prompts, completions, completion_ids=None, **columns):
    assert len(prompts) == len(completions) == len(completion_ids)
    assert columns["train"][0][0]["input"] == [[1, 2], [3, 4]]
    return [1.0 / len(ids) if ok else None for ids, ok in zip(completion_ids, columns["correct"])]

async def later(completions, **columns):
    await asyncio.sleep(0)
    return [len(text) for text in completions]

def raises(completions, **columns):
    return [1 / 0 for _ in completions]

def short(completions, **columns):
    return [0.0]

def nan(completions, **columns):
    return [float("nan")] * len(completions)

def words(completions, **columns):
    return ["1.0"] * len(completions)

def leaves(completions, **columns):
    raise SystemExit(0)

def tells_much(completions, **columns):
    raise ValueError("a page" + chr(10) + "<html>" + "x" * 5000)

def single(completions, **columns):
    return 1.0

def lenient(completions, correct, correct_share, valid_outputs, **columns):
    rows = zip(correct, correct_share, valid_outputs)
    return [1.0 if right else 0.1 * share if valid else 0.9 for right, share, valid in rows]

def parts(completions, correct, **columns):
    return [{"right": 1, "length": -0.25 * len(text), "style": None} if ok
            else {"right": None} if text == "nothing" else {} for text, ok in zip(completions, correct)]

largest = max           # it has no signature that Python could read

def odd_part(completions, **columns):
    return [{"right": 1, "length": float("inf")}] * len(completions)

def large_parts(completions, **columns):
    return [{"right": 1e308, "length": 1e308}] * len(completions)

def of_a_column(completions, solution, **columns):
    return [0.0] * len(completions)

def of_no_column(completions, **columns):
    return columns["answer"]

def of_chats(completions, **columns):
    return [len(completion[0]["content"]) for completion in completions]

def of_few(completions):
    return [0.0] * len(completions)
"""


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USER)
    return path


def test_the_config_file_takes_the_options_by_their_names(warehouse):
    (warehouse.root / "config.toml").write_text(
        '[score]\nreward = "arc-exact-shaped"\n'
        'allow-import = ["csv"]\ncpu-seconds = 0.5\n')
    assert invoke(warehouse.root).exit_code == 0
    assert rows(warehouse, "arc-exact-shaped")[0]["reward"] == 1.0
    [identity] = warehouse.state.scorers(0, "train")
    settings = warehouse.stage("score", iteration=0, purpose="train", scorer=identity).settings()
    assert settings["limits"]["cpu_seconds"] == 0.5 and settings["imports"] == ["csv"]


def test_the_command_offers_every_registered_reward():
    assert set(REWARDS) == set(OFFERED)


def test_a_reward_of_the_users_own(warehouse, user_file):
    for name in ("brevity", "later"):
        result = invoke(warehouse.root, "--reward-file", f"{user_file}:{name}")
        assert result.exit_code == 0, result.output
        assert ("2 completions without reward: it does not apply" in result.output) == (name == "brevity")
        assert "machine failed" not in result.output
    found = rows(warehouse, "brevity-")
    assert [row["reward"] for row in found[2:]] == [None, None]
    assert found[0]["reward"] == 1 / found[0]["num_completion_tokens"] and found[0]["correct"]
    assert found[2]["correct"] is False and found[2]["error_class"] is None
    assert rows(warehouse, "later-")[3]["reward"] == len("nothing")
    before = set(warehouse.state.scorers(0, "train"))
    again = invoke(warehouse.root, "--reward-file", f"{user_file}:brevity")
    assert again.output.startswith("Nothing to score: brevity-")
    user_file.write_text(USER + "# another version\n")
    assert invoke(warehouse.root, "--reward-file", f"{user_file}:brevity").exit_code == 0
    assert len(warehouse.state.scorers(0, "train")) == len(before) + 1       # other code is another scorer


def test_no_field_of_a_payload_takes_the_place_of_what_was_measured(tmp_path, user_file):
    names = ("prompts", "completions", "completion_ids", "correct", "outputs", "self", "where")
    run = new_run(tmp_path / "named", {"t": ("stdio", {"cases": [{"input": "", "output": "7"}],
                                                       **dict.fromkeys(names, "mine")})})
    add_rollout(run, [("t", fenced("print(7)")), ("t", fenced("print(8)"))])
    user_file.write_text("def told(prompts, completions, completion_ids, correct, outputs, **columns):\n"
                         "    assert all('```' in text for text in completions) and prompts[0] != 'mine'\n"
                         "    assert all(len(ids) > 9 for ids in completion_ids)\n"
                         "    return [float(ok) for ok, out in zip(correct, outputs) if out['test']]\n")
    result = invoke(run.root, "--reward-file", f"{user_file}:told")
    assert result.exit_code == 0, result.output
    assert [row["reward"] for row in rows(run, "told-")] == [1.0, 0.0]


def test_the_parts_of_a_users_reward_are_added_up_and_kept(warehouse, user_file):
    """A part that is None does not apply; the reward does not if none does."""
    assert invoke(warehouse.root, "--reward-file", f"{user_file}:parts").exit_code == 0
    found = rows(warehouse, "parts-")
    lengths = [len(fenced(code)) for code in (FLIP, LONG)]
    assert [row["reward"] for row in found] == [*(1 - length / 4 for length in lengths), 0, None]
    assert [json.loads(row["reward_parts"] or "null") for row in found] == [
        *({"right": 1, "length": -length / 4} for length in lengths), {}, None]


@pytest.mark.parametrize(("name", "message"), [
    ("odd_part", "{'right': 1, 'length': inf} for completion 0"),
    ("large_parts", "{'right': 1e+308, 'length': 1e+308} for completion 0"),
    ("raises", "raised ZeroDivisionError: division by zero (line 14). Nothing of this part was written;"),
    ("leaves", "raised SystemExit: 0 (line 26)"), ("tells_much", "raised ValueError: a page (line 29)"),
    ("largest", "raised TypeError: "),
    ("of_a_column", "cannot be called: missing a required argument: 'solution'. It gets prompts, "),
    ("of_no_column", "raised KeyError: 'answer' (line 54). It gets prompts, completions, completion_ids, tr"),
    ("of_chats", "). Prompts and completions are texts, also of chats. Nothing of this part was"),
    ("of_few", "unexpected keyword argument 'prompts'. It gets prompts, completions, completion_ids, train"),
    ("short", "returned 1 rewards for 4 completions"), ("nan", "returned nan for completion 0 of the part"),
    ("words", "returned '1.0' for completion 0"), ("single", "returned float, not a list with one number"),
    ("missing", "defines no function 'missing'")])
def test_a_user_reward_that_fails_writes_nothing(warehouse, user_file, name, message):
    result = invoke(warehouse.root, "--reward-file", f"{user_file}:{name}")
    assert result.exit_code == 1 and message in result.output and "Traceback" not in result.output
    assert not (warehouse.root / "samples").exists()


def test_a_second_reward_file_is_not_dropped_unseen(warehouse, user_file):
    twice = [word for name in ("lenient", "short") for word in ("--reward-file", f"{user_file}:{name}")]
    result = invoke(warehouse.root, *twice)
    assert result.exit_code == 2 and "--reward-file stands twice, and takes one value." in result.output
    assert not (warehouse.root / "samples").exists()


@pytest.mark.parametrize(("text", "message"), [
    ("mine", "--reward-file mine is not FILE.py:NAME"), ("none.py:f", "/none.py. Name")])
def test_a_user_reward_that_cannot_be_found(warehouse, text, message):
    result = invoke(warehouse.root, "--reward-file", text)
    assert result.exit_code == 1 and message in result.output


def test_a_reward_that_is_typed_takes_the_place_of_a_file_in_the_config(warehouse, user_file):
    (warehouse.root / "config.toml").write_text(f'[score]\nreward-file = "{user_file}:brevity"\n')
    assert invoke(warehouse.root, "--reward", "exact").exit_code == 0
    assert [identity.rpartition("-")[0] for identity in warehouse.state.scorers(0, "train")] == ["exact"]
    result = invoke(warehouse.root, "--reward", "exact", "--reward-file", f"{user_file}:brevity")
    assert result.exit_code == 1 and "Leave one of them out" in result.output


def test_diff_counts_changed_rewards_correctness_and_signs(warehouse, user_file):
    assert invoke(warehouse.root).exit_code == 0
    assert invoke(warehouse.root, "--reward-file", f"{user_file}:lenient").exit_code == 0
    against = " against ".join(sorted(warehouse.state.scorers(0, "train")))
    result = invoke("diff", warehouse.root, "arc-v1", "lenient", "--examples", 1)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[:7] == [
        f"4 completions in 1 task, {against}", '  reward: "arc-v1" -> "lenient"',
        f'  user_code: null -> "{load_function(f"{user_file}:lenient", "").content_hash}"',
        "  another reward: 4 (100.0%)",
        "  another correctness: 0 (0.0%)", "  another sign (-, 0, +) of the advantage: 1 (25.0%)",
        "  mean reward: 5.2778 -> 0.7250"]
    assert "  0/turn/3: reward 0 -> 0.9, advantage before scaling -5.278 -> 0.175" in result.output
    assert invoke("diff", warehouse.root, "arc-v1", "lenient", "--examples", 1, "--purpose",
                  "train").output == result.output
    refused = invoke("diff", warehouse.root, "arc-v1", "lenient", "--purpose", "eval")
    assert refused.exit_code == 1 and "'arc-v1' has scored anything of 'eval' in" in refused.output


def test_diff_shows_how_limits_and_the_source_of_a_reward_changed(warehouse, user_file):
    options = ("--reward-file", f"{user_file}:lenient")
    assert invoke(warehouse.root, *options).exit_code == 0
    before, = warehouse.state.scorers(0, "train")
    user_file.write_text(user_file.read_text().replace("else 0.9", "else 0.8"))
    assert invoke(warehouse.root, *options, "--memory-mib", 600).exit_code == 0
    after, = {*warehouse.state.scorers(0, "train")} - {before}
    lines = invoke("diff", warehouse.root, before, after).output.splitlines()
    assert lines[1].startswith("  limits: ") and lines[2].startswith("  user_code: ")
    assert [line.strip()[0] for line in lines[3:6]] == ["@", "-", "+"] and "0.8" in lines[5]


def test_diff_has_the_means_of_completions_that_both_measured(warehouse, user_file):
    assert invoke(warehouse.root).exit_code == 0
    assert invoke(warehouse.root, "--reward-file", f"{user_file}:brevity").exit_code == 0
    first, second = ({row["sample_index"]: row["reward"] for row in warehouse.read(
        "samples", iteration=0, purpose="train", scorer=scorer).to_pylist()}
        for scorer in sorted(warehouse.state.scorers(0, "train")))
    both = [index for index, reward in second.items() if reward is not None]
    means = [sum(rewards[index] for index in both) / 2 for rewards in (first, second)]
    result = invoke("diff", warehouse.root, "arc-v1", "brevity")
    assert len(first) == 4 and len(both) == 2
    assert result.output.splitlines()[6] == (f"  mean reward: {means[0]:.4f} -> {means[1]:.4f}, "
                                             "of the 2 that both gave one")


def test_diff_counts_signs_of_advantages_only_where_there_are_any(warehouse):
    add_rollout(warehouse, [("turn", "nothing"), ("turn", fenced(FLIP))], purpose="eval")
    for reward in ("arc-v1", "exact"):
        assert invoke(warehouse.root, "--reward", reward).exit_code == 0
    (first, *_), (second, *_) = (scored_by(warehouse, name) for name in ("arc-v1", "exact"))
    found = changes(first, second)
    assert {*found.filter(pl.col("sign_changed").is_null())["purpose"]} == {"eval"}
    assert found["sign_changed"].null_count() == 2 and found.height == 6
    assert "of the advantage" in invoke("diff", warehouse.root, "arc-v1", "exact").output
    only = invoke("diff", warehouse.root, "arc-v1", "exact", "--purpose", "eval").output
    assert "another reward: " in only and "of the advantage" not in only


def test_a_score_beside_the_one_that_was_trained_on_says_once_which_counts(warehouse):
    add_rollout(warehouse, [("turn", "nothing")], purpose="eval")
    assert invoke(warehouse.root).exit_code == 0
    trained, = warehouse.state.scorers(0, "train")
    finish(warehouse, "train", {"scorer": trained}, {"scorer": trained}, iteration=0)
    output = invoke(warehouse.root, "--reward", "exact").output
    exact, = {*warehouse.state.scorers(0, "train")} - {trained}
    assert output.count("SQL, summary") == 1
    assert "rewards are those of" not in output      # nothing is to be trained
    assert (f"train, SQL, summary and reports go on with {trained}: iteration 0 was trained on its rewards; "
            f"`score diff {warehouse.root} {trained} {exact}` compares") in output


def test_diff_of_a_scorer_with_itself_finds_nothing(warehouse):
    assert invoke(warehouse.root).exit_code == 0
    same, identity, _ = scored_by(warehouse, "arc-v1")
    result = invoke("diff", warehouse.root, "arc-v1", identity)
    assert result.exit_code == 1 and f"Both are {identity}. Name two scorers" in result.output
    found = changes(same, same)
    assert found.height == 4
    assert not found.select("reward_changed", "correct_changed", "sign_changed").to_numpy().any()
    result = invoke("diff", warehouse.root, "arc-v1", "arc-v9")
    assert result.exit_code == 1 and "No scorer called 'arc-v9' has scored anything" in result.output


def test_explain_shows_program_outputs_and_parts(warehouse):
    assert invoke(warehouse.root).exit_code == 0
    result = invoke("explain", warehouse.root, "0/turn/2")
    assert result.exit_code == 0, result.output
    shown = ["test 1: wrong", "  input   expected   output", "   0 9     9 0        0 9",
             "   8 0     0 8        8 0"]
    assert "\n".join(shown) in result.output
    assert "reward 1.111 = valid 1 + correct_grids 0 + pixel_score 0.1111" in result.output
    wrong = invoke("explain", warehouse.root, "0/turn/9")
    assert wrong.exit_code == 1 and "no completion 0/turn/9 in complete stages. List" in wrong.output
    assert "does not name a completion" in invoke("explain", warehouse.root, "turn").output
    assert "There is no completion 7/eval/turn/0" in invoke("explain", warehouse.root, "7/eval/turn/0").output


def test_explain_names_the_evaluation_that_has_the_completion(tmp_path):
    warehouse = new_run(tmp_path / "run")
    for purpose in ("train", "eval"):
        add_rollout(warehouse, [("turn", fenced(FLIP))] * (2 if purpose == "eval" else 1), purpose=purpose)
    said = invoke("explain", warehouse.root, "0/turn/1").output
    assert "no completion 0/turn/1 in complete stages: did you mean 0/eval/turn/1?" in said
    assert "List them with" in invoke("explain", warehouse.root, "0/turn/2").output


def test_explain_elides_what_would_move_the_cursor(tmp_path):
    warehouse = new_run(tmp_path / "run")
    add_rollout(warehouse, [("turn", "\x1b[2J\x07 evil \u202e")])
    assert invoke(warehouse.root).exit_code == 0
    output = invoke("explain", warehouse.root, "0/turn/0").output
    assert "\x1b" not in output and "\u202e" not in output and "\\x1b[2J\\x07 evil \\u202e" in output


def test_try_runs_a_file_and_says_what_it_would_get(warehouse, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(FLIP)
    result = invoke("try", warehouse.root, path, "--task", "turn")
    assert result.exit_code == 0 and result.output.count(": right") == 3 and "reward 10 = " in result.output
    path.write_text("def transform(g):\n    return open('/etc/passwd')\n")
    result = invoke("try", warehouse.root, path, "--task", "turn")
    assert "sandbox_violation: PermissionError" in result.output and "reward 0" in result.output
    result = invoke("try", warehouse.root, path, "--task", "other")
    assert result.exit_code == 1 and "has no task other" in result.output
    path.write_bytes(b"\xff\xfe")
    result = invoke("try", warehouse.root, path, "--task", "turn")
    assert result.exit_code == 1 and "is not UTF-8 text" in result.output


def test_doctor_names_the_tier():
    found = examine()
    assert found.able and found.facts["tier"] in ("A", "B", "C")
    assert any("tier C (seccomp): holds" in line for line in found.lines)


def test_without_any_tier_score_refuses_unless_told(warehouse, monkeypatch):
    monkeypatch.setattr("score.sandbox.tiers.missing_for", lambda layers: "switched off" if layers else None)
    result = invoke(warehouse.root)
    assert result.exit_code == 1
    assert "cannot be isolated on this machine (A: switched off; B: switched" in result.output
    assert not (warehouse.root / "samples").exists()
    result = invoke(warehouse.root, "--unsafe-no-sandbox")
    assert result.exit_code == 0 and "tier D: no isolation" in result.output
    assert {row["sandbox_tier"] for row in rows(warehouse, "arc-v1")} == {"D"}


def test_shards_share_the_parts(tmp_path):
    warehouse = new_run(tmp_path / "run")
    add_rollout(warehouse, [("turn", fenced(FLIP))] * 6, part_size=2)
    first = invoke(warehouse.root, "--shard", "0/2")
    assert first.exit_code == 0
    assert "shard 0/2 of iteration 0 train is done; left to the other shards: 1 part\n" in first.output
    assert not warehouse.state.scorers(0, "train")
    assert invoke(warehouse.root, "--shard", "1/2").exit_code == 0
    assert len(rows(warehouse, "arc-v1")) == 6
    assert "is not INDEX/COUNT" in invoke(warehouse.root, "--shard", "2/2").output
