"""RUN/config.toml: keys are the long options, flags win, mistakes are named."""

import errno
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from email.message import Message
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import click
import pytest
from click.testing import CliRunner, Result

from warehouse.cli import cli
from warehouse.options import (
    OURS,
    SAID,
    FiniteRange,
    RunFolder,
    _not_ours,
    check_config,
    names_of,
    room_command,
    run_argument,
    shows_errors,
)
from warehouse.stages.stop import StageStopped
from warehouse.store.errors import StageError, UnusableFile

ROOT = Path(__file__).parents[2]


@click.command("rollout")
@run_argument
@click.option("--group-size", type=click.IntRange(1), default=16)
@click.option("--augment", "augmentation", default="none")
@click.option("--split", "splits", multiple=True)
@click.option("--shuffle-pairs", is_flag=True)
@click.option("--fail", default="no",
              type=click.Choice(["no", "stage", "stop", "file", "bug", "gone", "option"]))
@shows_errors
def command(run: Path, fail: str, **values: Any) -> None:
    """A command with an option of every kind."""
    if fail == "stage":
        raise StageError("This is wrong. Do that.")
    if fail == "option":
        raise StageError("Lower --group-size, not --group.")
    if fail == "file":
        Path("/dev/null/x").stat()
    if fail == "gone":
        shutil.rmtree(run)
        (run / "tasks").stat()
    if fail == "bug":
        raise OSError("no file is to blame")
    if fail == "stop":
        raise StageStopped("Stopped. Run it again.")
    click.echo(values)


def call(folder: Path, config: str, *words: str) -> Result:
    (folder / "config.toml").write_text(config)
    return CliRunner().invoke(command, [str(folder), *words])


def test_keys_are_the_long_options_and_flags_win(tmp_path: Path) -> None:
    config = ('[rollout]\ngroup-size = 4\naugment = "all"\nsplit = ["a", "b"]\nshuffle-pairs = true\n'
              "[train]\nx = 1\n")
    told = {"group_size": 4, "augmentation": "all", "splits": ("a", "b"), "shuffle_pairs": True}
    assert call(tmp_path, config).output == f"{told}\n"
    assert call(tmp_path, config, "--group-size", "8").output == f"{told | {'group_size': 8}}\n"
    assert "'splits': ('a',)" in call(tmp_path, '[rollout]\nsplit = "a"\n').output


def test_a_message_about_an_option_says_that_the_file_has_it(tmp_path: Path) -> None:
    config, said = "[rollout]\ngroup-size = 4\n", "Error: Lower --group-size, not --group."
    assert f"{said} (config.toml has --group-size.)\n" in call(tmp_path, config, "--fail", "option").output
    typed = call(tmp_path, config, "--fail", "option", "--group-size", "5").output
    assert typed.endswith(f"{said}\n"), "the reader has just typed it"


@pytest.mark.parametrize(("config", "sentence"), [
    ("[rollout]\ngroup-size = 4\ngroup_size = 5\n",
     "config.toml, line 3: [rollout] group_size is there twice, under two spellings. Leave one out."),
    ("[rollout]\ngroupsize = 4\n", "[rollout] has no option 'groupsize'. Did you mean 'group-size'?"),
    ("[rollout]\nnum_generations = 4\n", "no option 'num-generations'. Did you mean 'group-size'?"),
    ("[rollout]\nlearning_rate = 4\n", "has no option 'learning-rate'. `train` has 'learning-rate'."),
    ("[rollout]\nzyx = 4\n", "[rollout] has no option 'zyx'. Known: augment, fail, group-size,"),
    ("[rollouts]\n", "has a table [rollouts]. The tables are named after the commands"),
    ("[rollout\n", "is not valid TOML"),
    ("[rollout]\ngroup-size = 'many'\n", "[rollout] group-size = many: 'many' is not a valid integer."),
    ("[rollout]\ngroup-size = 4.5\n", "[rollout] group-size = 4.5: '4.5' is not a valid integer"),
    ("[rollout]\ngroup-size = true\n", "[rollout] group-size = true: it must be one integer."),
    ("[rollout]\ngroup-size = [4]\n", "[rollout] group-size = [4]: it must be one integer."),
    ("[rollout]\naugment = 2026-01-05\n", "[rollout] augment = 2026-01-05: it must be one text"),
    ("[rollout]\nsplit = ['a', {b = 1}]\n", "[rollout] split = {'b': 1}: it must be one text"),
    ("[rollout]\nfail = false\n", "[rollout] fail = false: it must be one of no, stage, stop, "),
    ("[rollout]\nfail = 'never'\n", "[rollout] fail = never: 'never' is not one of 'no', 'stage', 'stop'"),
    ("[rollout]\nshuffle-pairs = 'yes'\n", "[rollout] shuffle-pairs = yes: it must be true or false"),
    ("[rollout]\naugment = ''\n", "[rollout] augment = '': it is empty. Fix that line."),
    ("[rollout]\nsplit = ['a', '']\n", "[rollout] split = '': it is empty. Fix that line."),
    ("[[rollout]]\ngroup-size = 4\n", "'rollout' is not a table"),
    ("rollout = 5\n", "'rollout' is not a table"),
    ("group-size = 5\n", "line 1: 'group-size' is not a table. Put it below the [command] it is for"),
    ("[warehouse]\nscorers = 'a'\n", "[warehouse] has no key 'scorers'. Known: scorer, price-per-hour."),
    ("[warehouse]\nscorer = 5\n", "[warehouse] scorer = 5 is not text"),
    ("[links]\nmine = ['a']\n", "[links] mine = ['a'] is not text"),
])
def test_mistakes_in_the_file_are_one_sentence(tmp_path: Path, config: str, sentence: str) -> None:
    result = call(tmp_path, config)
    assert result.exit_code == 1 and sentence in result.output and "Traceback" not in result.output
    assert str(tmp_path / "config.toml") in result.output
    (tmp_path / "mine.toml").write_text(config.replace("fail =", "device ="))
    words = ["--model", "none", "--tasks", "synthetic:1", "--config", str(tmp_path / "mine.toml")]
    made = CliRunner().invoke(cli, ["init", str(tmp_path / "run"), *words])
    assert made.exit_code == 1 and str(tmp_path / "mine.toml") in made.output
    assert not (tmp_path / "run").exists()


def test_the_names_of_trl_lead_to_ours() -> None:
    """Click alone would take num_iterations for --iteration, which is something else."""
    table = (ROOT / "docs" / "tutorial.md").read_text().partition("| GRPOTrainer | here |")[2]
    for theirs, ours in OURS.items():
        assert f"`{theirs.replace('-', '_')}`" in table and f"`{ours}" in table.replace("--", "`"), theirs
        assert any(ours in names_of(room_command(stage))
                   for stage in ("rollout", "score", "train", "warehouse loop")), ours


@pytest.mark.parametrize(("command", "typed", "meant"), [
    ("score", "dif", "`score diff`"), ("train", "exprt", "`train export`"),
    ("warehouse", "summry", "'summary'"), ("reports", "buld", "'build'")])
def test_a_mistyped_command_is_not_taken_for_a_run(command: str, typed: str, meant: str) -> None:
    result = CliRunner().invoke(room_command(command), [typed, "runs/x", "--output", "y"])
    assert " command " in result.output and f"Did you mean {meant}?" in result.output


@pytest.mark.parametrize(("command", "option", "said"), [
    ("train", "--beta", "Did you mean '--kl-beta'?"),
    ("train", "--num-iterations", SAID["num-iterations"]),
    ("train", "--bf16", "Did you mean '--dtype'?"),
    ("train", "--gradient-accumulation-steps", SAID["gradient-accumulation-steps"]),
    ("train", "--save-steps", "Every iteration's policy is kept, or the last --keep-policies."),
    ("train", "--warmup-ratio", "Give --warmup-steps, a number of optimizer steps."),
    ("rollout", "--use-vllm", "That is automatic: leave it out."),
    ("train", "--eval-steps",
     "`warehouse loop` has '--eval-every', which may stand below [loop] of config.toml."),
    ("warehouse loop", "--eval-steps", "Did you mean '--eval-every'?"),
    ("warehouse loop", "--report-to", "Did you mean '--track'?"),
    ("warehouse loop", "--max_steps", SAID["max-steps"]),
    ("warehouse loop", "--learning-rate",
     "`train` has '--learning-rate', which may stand below [train] of config.toml.")])
def test_an_option_of_trl_or_of_another_command_is_answered(command: str, option: str, said: str) -> None:
    """Click alone would take num_iterations for --iteration, which is something else."""
    room, *sub = command.split()
    result = CliRunner().invoke(room_command(room), [*sub, "run", option, "2"])
    assert result.exit_code == 2 and result.output.endswith(f"Error: No such option '{option}'. {said}\n")


@pytest.mark.parametrize(("config", "line"), [
    ("# mine\n[train]\nseed = 1\n\n[rollout]\naugment = 'all'\ngroupsize = 4\n", 7), ("\n[rollouts]\n", 2),
    ("[score]\nseed = 1\n[rollout]\n  'group-size' = 'x'\n", 4), ("[train]\n[warehouse]\nscorer = 5\n", 3)])
def test_the_line_of_a_mistake_is_named(tmp_path: Path, config: str, line: int) -> None:
    assert f"config.toml, line {line}: " in call(tmp_path, config).output.replace(" has a table", ":  ")


@pytest.mark.parametrize(("config", "said"), [
    ("loss = 'bnpo'", "[train] There is no loss 'bnpo'. That of TRL is dapo with clip-high = 0.2."),
    ("schedule = 'linear'", "[train] --schedule linear needs --total-steps"),
    ("schedule = 'linear'\nloss = 'mine.py:none'", "")])        # which would be run
def test_options_that_contradict_each_other_are_refused_with_their_file(tmp_path: Path, config: str,
                                                                        said: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[train]\n{config}\n")
    with pytest.raises(StageError, match=re.escape(f"{path}: {said}")) if said else nullcontext():
        check_config(path)


def test_evaluations_have_a_table_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "[rollout]\ngroup-size = 16\nnum-tasks = 8\ntop-p = 0.9\n[eval]\ngroup-size = 4\nmax-tokens = 99\n")

    def options(*words: str) -> tuple[Any, ...]:
        given = room_command("rollout").make_context("rollout", [*words]).params
        return given["group_size"], given["num_tasks"], given["top_p"], given["max_tokens"]
    assert options(str(tmp_path))[:3] == (16, 8, 0.9)
    assert options(str(tmp_path), "--eval") == options("--eval", str(tmp_path)) == (4, None, 0.9, 99)
    typed = "--max-tokens", "7", str(tmp_path), "--eval", "--num-tasks", "3", "--group-size", "2"
    assert options(*typed) == (2, 3, 0.9, 7)


@pytest.mark.parametrize(("config", "said"), [
    ("[eval]\ngroup-size = 0\n", "line 2: [eval] group-size = 0: 0 is not in the range"),
    ("[eval]\nloss = 'dapo'\n", "line 2: [eval] has no option 'loss'. `train` has"),
    ("[loop]\neval-options = 'x'\n", "[loop] has no option 'eval-options'. Options of `rollout` for")])
def test_mistakes_in_the_table_of_evaluations_are_named(tmp_path: Path, config: str, said: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(config)
    with pytest.raises(StageError, match=re.escape(said)):
        check_config(path)


def test_a_file_cannot_make_every_rollout_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[rollout]\neval = true\n")
    result = CliRunner().invoke(room_command("rollout"), [str(tmp_path)])
    assert result.exit_code == 1 and "nothing would be sampled to train on" in result.output


def test_a_config_that_every_command_takes_is_taken(tmp_path: Path) -> None:
    assert check_config(ROOT / "examples" / "demo" / "config.toml") is None
    (tmp_path / "config.toml").write_text("[warehouse]\nscorer = 'a'\n[queries]\nb = 'SELECT 1'\n"
                                          "[sql]\nfull = true\n"
                                          "[build]\noutput = 'x.html'\n[summary]\nlast = 3\n"
                                          "[score]\nallow-import = 'csv'\n[train]\nlearning-rate = 1\n")
    assert check_config(tmp_path / "config.toml") is None


@pytest.mark.parametrize("content", [b"a = '\xff'", b"a = " + b"[" * 100_000])
def test_a_config_that_is_no_text_of_toml_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(StageError, match="is not valid TOML"):
        check_config(tmp_path / "config.toml")


@pytest.mark.parametrize("name", ["rollout", "score", "train", "warehouse", "reports"])
def test_every_command_says_its_version_and_answers_to_h(name: str) -> None:
    [entry] = entry_points(group="rollhouse", name=name)
    command = entry.load()
    told = CliRunner().invoke(command, ["--version"])
    assert told.output == f"rollhouse, version {version('rollhouse')}\n"
    long, short = CliRunner().invoke(command, ["--help"]), CliRunner().invoke(command, ["-h"])
    assert long.output == short.output and "Usage:" in short.output
    for sub in getattr(command, "commands", {}):
        shown = CliRunner().invoke(command, [sub, "-h"])
        assert shown.exit_code == 0 and "Usage:" in shown.output, sub
    assert not re.search(r"\.\.\.$", CliRunner().invoke(command, ["-h"], terminal_width=80).output[80:],
                         re.MULTILINE)


@pytest.mark.parametrize("name", ["rollout", "score", "train"])
def test_help_has_every_option_once_under_a_title(name: str) -> None:
    [entry] = entry_points(group="rollhouse", name=name)
    command = entry.load()
    told = CliRunner().invoke(command, ["--help"]).output
    titles = re.findall(r"^(\S.*):$", told, re.MULTILINE)
    assert len(titles) > 4 and len(set(titles)) == len(titles) and "Options" not in titles
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            line = rf"^  (-h, )?{parameter.opts[0]}( |$)"
            assert len(re.findall(line, told, re.MULTILINE)) == 1, parameter.opts[0]
    groups = re.split(r"^\S.*:$", told, flags=re.MULTILINE)[1:]
    assert all(1 <= len(re.findall("^  -", group, re.MULTILINE)) <= 13 for group in groups)


def test_help_names_no_bound_that_is_none() -> None:
    option = click.Option(["--penalty"], type=FiniteRange(), show_default=True, default=1.0)
    shown = option.get_help_record(click.Context(click.Command("x")))
    assert shown and shown[1] == "[default: 1.0]"


def test_a_file_that_cannot_be_used_is_one_sentence_and_a_bug_is_none(tmp_path: Path) -> None:
    told = call(tmp_path, "", "--fail", "file")
    assert told.exit_code == 1 and told.stderr.startswith(
        "Error: /dev/null/x cannot be used: Not a directory. Fix that, then run the same command again")
    assert isinstance(call(tmp_path, "", "--fail", "bug").exception, OSError)
    (tmp_path / "run").mkdir()
    told = call(tmp_path / "run", "", "--fail", "gone")
    assert told.exit_code == 1
    assert told.stderr.startswith(f"Error: {tmp_path}/run was moved or removed while it")
    assert _not_ours(HTTPError("http://x", 404, "Not Found", Message(), None)) == (
        "http://x cannot be used: HTTP Error 404: Not Found. Fix that")
    made = CliRunner().invoke(cli, ["init", "/proc/x", "--model", str(ROOT / "examples/starter/model"),
                                    "--tasks", "synthetic:1"])
    assert made.exit_code == 1 and made.stderr.startswith("Error: /proc/x cannot be made: its filesystem")
    with open("/dev/full", "w") as full:
        printed = subprocess.run([sys.executable, "-c", "from warehouse.cli import cli; cli(['schema'])"],
                                 stdout=full, stderr=subprocess.PIPE, text=True)
    assert printed.returncode == 1 and printed.stderr.startswith(
        "Error: The disk is full (No space left on device). Free some space, then run")


@pytest.mark.parametrize("words", [["init", "", "--model", "m", "--tasks", "synthetic:1"], ["summary", ""],
                                   ["tasks", "add", ""]])
def test_the_folder_of_a_variable_that_is_not_set_is_not_this_one(words: list[str], tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 2 and "it is empty. Name the folder of the run" in told.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--augment", ""], ["--augment="], ["--split", "a", "--split", ""]])
def test_a_text_that_is_empty_is_not_taken_for_one_that_is_left_out(tmp_path: Path, words: list[str]) -> None:
    told = call(tmp_path, "", *words)
    assert told.exit_code == 2 and re.search("'--(augment|split)': it is empty. Leave it", told.stderr)


def test_a_stage_error_exits_with_1_and_a_stop_with_75(tmp_path: Path) -> None:
    failed, stopped = call(tmp_path, "", "--fail", "stage"), call(tmp_path, "", "--fail", "stop")
    assert (failed.exit_code, failed.output) == (1, "Error: This is wrong. Do that.\n")
    assert (stopped.exit_code, stopped.output) == (75, "Stopped. Run it again.\n")


def test_texts_are_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("# für alle\n[rollout]\nseed = 3\n", encoding="utf-8")
    said = subprocess.run(
        [sys.executable, "-c", "import sys; from pathlib import Path; from reports.page import asset\n"
         "from warehouse.sql.database import empty_connection; empty_connection(); asset('page.css')\n"
         "from warehouse.store.config_file import read_config; print(read_config(Path(sys.argv[1])))",
         str(tmp_path / "config.toml")],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True, text=True)
    assert said.stdout == "{'rollout': {'seed': 3}}\n", said.stderr


def test_a_run_that_may_not_be_read_is_no_usage_error(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, **_: Any) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(Path, "read_text", denied)
    refused = CliRunner().invoke(cli, ["summary", str(tmp_path)])
    assert refused.exit_code == 1 and "cannot be read: Permission denied. Fix that." in refused.output


def commands_of_a_run() -> list[tuple[str, click.Command]]:
    """Every command that is given a run, by its name."""
    found = []
    for entry in entry_points(group="rollhouse"):
        commands = [(entry.name, entry.load())]
        for name, command in commands:      # grows as it goes
            inner = getattr(command, "commands", {})
            commands += [(f"{name} {each}", inner[each]) for each in inner]
            if any(isinstance(each.type, RunFolder) for each in command.params):
                found.append((name, command))
    return [each for each in found if each[0] != "warehouse demo"]     # which starts a process of its own


# What these commands ask for before they look for a run.
MORE = {"train logprobs": ["--policy", "0"], "warehouse sql": ["-c", "SELECT 1"],
        "warehouse prune": ["--ended"], "warehouse discard": ["--training"]}


@pytest.mark.parametrize(("name", "given"), commands_of_a_run(), ids=lambda each: each if isinstance(
    each, str) else "")
def test_a_file_where_a_run_is_expected_is_named_as_what_it_is(tmp_path: Path, name: str,
                                                               given: click.Command) -> None:
    file, words = tmp_path / "notes.md", MORE.get(name, [])[:]
    file.write_text("mine")
    for each in given.params:
        if isinstance(each, click.Argument) and each.required:
            other = getattr(each.type, "choices", ["0/turn/0"])[0]
            path = file if isinstance(each.type, RunFolder | click.Path) else other
            words += [str(path)] * max(1, each.nargs)
        elif each.required:
            words += [each.opts[-1], {"output": str(tmp_path / "o"), "to": "jsonl"}.get(str(each.name), "1")]
    with pytest.raises(click.ClickException) as refused:
        click.Command.main(given, words, name, standalone_mode=False)
    assert refused.value.exit_code == 1
    cause = refused.value.__cause__
    assert isinstance(cause, UnusableFile) and (cause.path, cause.problem) == (file, "file")


def test_a_place_below_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    said = CliRunner().invoke(cli, ["summary", str(tmp_path / "notes.md" / "run")])
    assert said.exit_code == 1 and "warehouse init" in said.stderr


def test_a_current_folder_that_was_deleted_is_one_sentence(tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    told = CliRunner().invoke(cli, ["summary", "/nowhere"])
    assert told.exit_code == 1 and told.stderr.startswith("Error: The current folder was deleted. Change to")
