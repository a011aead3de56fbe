"""`warehouse warm`: commands run in forks as they run by themselves."""

import sys
from pathlib import Path

import pytest

from tests.warehouse.stages.warm_rooms import run


def test_a_command_has_its_words_folder_streams_and_exit_code(folder: Path) -> None:
    code, output, errors = run(folder, """
        mkdir deeper; cd deeper
        echo input | forked say hello
        echo input | forked say kept 2>&1 | tr a-z A-Z
        for tool in forked staying; do
          $tool exit 7; echo $?
          $tool fail; echo $?
          $tool crash 2>/dev/null; echo $?
          $tool nonsense --strange 2>/dev/null; echo $?
        done
        exit 5""")
    assert code == 5
    lines = output.splitlines()
    assert lines[0] == f"hello {folder}/deeper input"
    assert {f"kept {folder}/deeper input".upper(), "COMPLAINT"} <= set(lines[1:6])
    assert [line for line in lines if line.isdigit()] == ["7", "1", "1", "2"] * 2
    assert errors == "complaint\nError: It cannot be done.\nError: It cannot be done.\n"


def test_one_process_stays_for_its_command_and_a_new_one_follows_a_failure(folder: Path) -> None:
    code, output, _ = run(folder, "staying process; staying process; staying exit 3; staying process; "
                                  "forked process; forked process")
    rows = [line.split() for line in output.splitlines()]
    assert code == 0 and len(rows) == 5
    kept, again, anew, fork, other = rows
    assert kept[0] == again[0] and [kept[1], again[1]] == ["1", "2"] and kept[2] == "True"
    assert anew[0] != kept[0] and anew[1] == "1"
    assert fork[0] != other[0] and fork[1] == other[1] == "1" and fork[2] == "False"


def test_a_process_that_keeps_its_gpu_is_the_one_that_gives_it_up(folder: Path) -> None:
    _, output, _ = run(folder, "ROLLHOUSE_AWAKE=1 staying process; staying process; "
                               "CUDA_VISIBLE_DEVICES=1 staying process")
    awake, again, elsewhere = (line.split()[0] for line in output.splitlines())
    assert awake == again != elsewhere


def test_a_process_stays_where_a_command_is_refused_and_not_where_it_broke_something(folder: Path) -> None:
    code, output, _ = run(folder, "staying process; staying fail; staying --strange; staying process; "
                                  "staying crash; staying process; staying touch; staying process")
    kept, refused, crashed, touched = (line.split() for line in output.splitlines())
    assert code == 0 and refused[:2] == [kept[0], "3"]
    assert crashed[0] != kept[0] and touched[0] != crashed[0] and crashed[1] == touched[1] == "1"


def test_a_command_that_needs_a_new_process_gets_one(folder: Path) -> None:
    code, output, errors = run(folder, "staying process; echo kept | staying anew; echo $?; staying process")
    first, anew, spent, done, again = (line.split() for line in output.splitlines())
    assert code == 0 and done == ["0"] and errors == "It cannot be done here.\n"
    assert anew[1] != first[0] and anew[2:] == ["1", "kept"] and spent == ["True"]
    assert again == [anew[1], "2", "True"]          # it stays in its turn


def test_a_process_that_says_so_ends_with_its_command(folder: Path) -> None:
    code, output, _ = run(folder, "staying process; staying leave; echo $?; staying process")
    first, done, again = (line.split() for line in output.splitlines())
    assert code == 0 and done == ["0"] and first[0] != again[0] and again[1:] == ["1", "True"]


def test_two_at_once_do_not_wait_for_each_other(folder: Path) -> None:
    code, output, _ = run(folder, "staying wait there & while [ ! -s there ]; do sleep 0.02; done; "
                                  "staying process; kill %1")
    assert code == 0 and output.split()[1:] == ["1", "False"]


def test_a_command_with_another_environment_runs_by_itself(folder: Path) -> None:
    _, output, errors = run(folder, "staying process; OMP_NUM_THREADS=1 staying process; staying process; "
                                    "OMP_NUM_THREADS=2 forked process; OMP_NUM_THREADS=2 N=1 forked process",
                            OMP_NUM_THREADS="3")
    assert errors.splitlines() == [
        "staying imports by itself, because OMP_NUM_THREADS differs from `warehouse warm`.",
        "forked imports by itself, because N, OMP_NUM_THREADS differs from `warehouse warm`."]
    output = "\n".join(output.splitlines()[:3])
    first, changed, again = (line.split() for line in output.splitlines())
    assert [first[2], changed[2], again[2]] == ["True", "False", "True"] and again[1] == "2"


def test_the_prompts_of_a_terminal_which_a_script_drops_are_no_other_environment(folder: Path) -> None:
    _, output, errors = run(folder, "staying process; forked process; staying process",
                            PS1="(.venv) $ ", PS2="> ", PS4="++ ")
    assert not errors and [line.split()[2] for line in output.splitlines()] == ["True", "False", "True"]


@pytest.mark.parametrize("changed", ["ulimit -n 128", "umask 077", "renice -n 19 $BASHPID >&2"])
def test_a_command_with_other_limits_runs_by_itself(folder: Path, changed: str) -> None:
    _, output, _ = run(folder, f"staying process; ({changed}; staying process); staying process")
    assert [line.split()[2] for line in output.splitlines()] == ["True", "False", "True"]


def test_a_command_whose_streams_are_closed_runs_by_itself(folder: Path) -> None:
    code, output, _ = run(folder, "staying process; staying process <&-; forked say lost >&- </dev/null; "
                                  "echo on")
    assert code == 0 and [line.split()[-1] for line in output.splitlines()] == ["True", "False", "on"]


@pytest.mark.parametrize("tool", ["forked", "staying"])
def test_a_command_whose_output_cannot_be_written_was_not_killed(folder: Path, tool: str) -> None:
    code, output, errors = run(folder, f"""
        {tool} say lost </dev/null >/dev/full; echo $?
        {tool} say kept </dev/null 2>/dev/full; echo $?
        {tool} process | exit; echo ${{PIPESTATUS[0]}}; {tool} process""", PYTHONUNBUFFERED="")
    assert code == 0 and errors == "complaint\n"
    lines = output.splitlines()
    assert lines[:3] == ["120", f"kept {folder} ", "1"] and len(lines) == 5


def test_a_server_goes_on_where_it_cannot_say_why_a_command_imports_by_itself(folder: Path) -> None:
    code, output, _ = run(folder, f"""
        {sys.executable} serve.py bash -c "N=1 staying process 2>&1; staying process" 2>/dev/full""")
    assert code == 0 and [line.split()[2] for line in output.splitlines()] == ["False", "True"]


def test_a_server_within_another_runs_its_own_commands(folder: Path) -> None:
    code, output, errors = run(folder, f"""
        staying process; N=1 {sys.executable} serve.py bash -c "staying process; staying process"
        staying process""")
    first, inside, again, last = (line.split() for line in output.splitlines())
    assert code == 0 and not errors and first[0] == last[0] != inside[0] == again[0]
    assert [first[1], inside[1], again[1], last[1]] == ["1", "1", "2", "2"]


def test_errors_are_told_that_are_no_text(folder: Path) -> None:
    _, _, errors = run(folder, r"forked fail $'\xff'")
    assert errors == "Error: \\udcff\n"


def test_a_long_path_of_temporary_files_is_no_hindrance(folder: Path) -> None:
    (folder / ("d" * 120)).mkdir()
    code, output, _ = run(folder, "staying process", TMPDIR=str(folder / ("d" * 120)))
    assert code == 0 and output.split()[2] == "True"
