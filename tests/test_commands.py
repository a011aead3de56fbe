"""Commands that pages name exist, with the options given there; those that are printed can be pasted."""

import ast
import importlib
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")),
         *sorted((ROOT / "examples").rglob("*.md"))]
SCRIPTS = sorted((ROOT / "examples").rglob("*.sh"))
PROGRAMS = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}
OPTION = r"--?[a-z][a-z0-9-]*"


def command_lines(page: Path) -> list[list[str]]:
    """Words of the commands in bash blocks, indented ones and quotes; TEXT stands for quoted words."""
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    snippets = re.findall(r"^```bash\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    snippets += [text] if page in SCRIPTS else []
    snippets += re.findall(r"(?<=\n\n)(?: {4}.*\n)+", prose)
    snippets += [" ".join(quoted.split()) for quoted in re.findall(r"`([^`]+)`", prose)]
    lines = []
    for snippet in snippets:
        code = re.sub(r"(^|\s)#.*", "", snippet.replace("\\\n", " "), flags=re.MULTILINE)
        code = re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", code)
        for line in re.split(r"\n|\||&&|;|\{|\$\(|\)", code):
            words = line.split()
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            lines += [words] if words else []
    return lines


def options_of(words: list[str]) -> set[str]:
    """The options among words."""
    return {word.partition("=")[0] for word in words if re.fullmatch(rf"{OPTION}(=.*)?", word)}


@cache
def known_options(program: Path) -> set[str]:
    """What a program's own text declares."""
    return set(re.findall(rf"\"({OPTION})\"", program.read_text())) | {"--help"}


def program_of(module: str) -> Path:
    """The file that `python -m MODULE` runs."""
    path = ROOT / module.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    for words in command_lines(page):
        if words[0] not in COMMANDS or len(words) == 1:
            continue
        module, _, name = COMMANDS[words[0]].partition(":")
        command, rest = getattr(importlib.import_module(module), name), words[1:]
        while rest and rest[0] in getattr(command, "commands", {}):
            command, rest = command.commands[rest[0]], rest[1:]
        assert not (isinstance(command, click.Group) and rest), f"{words} names no command"
        known = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts}
        assert options_of(rest) <= known | {"--help"}, words


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS, *PROGRAMS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_program_that_a_text_names_exists_with_its_options(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    for module, rest in re.findall(r"-m ((?:benchmarks|examples)\.[\w.]*\w)([^`#\n]*)", text):
        program = program_of(module)
        assert program.exists(), f"python -m {module}"
        assert options_of(re.sub(r"[\[\])]", " ", rest).split()) <= known_options(program), (module, rest)
    for script in re.findall(r"examples/[\w/.-]+\.(?:sh|py|yaml|toml|txt)\b", text):
        assert (ROOT / script).exists(), script


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {word for page in PAGES for words in command_lines(page) if words[0] == "make"
             for word in words[1:] if re.fullmatch(r"[a-z-]+", word)}
    assert {"demo", "install", "test"} <= named <= targets


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_a_script_that_runs_warm_changes_no_variable_of_its_commands(script: Path) -> None:
    """Else each of them imports by itself, a minute and a half of every iteration on a GPU."""
    _, _, warm = script.read_text().partition("exec warehouse warm")
    commands = "bash|rollout|score|train|warehouse|reports"
    assert not re.findall(rf"^ *(?:export .*|[A-Z_]+=\S* +(?:{commands})\b.*)", warm, re.MULTILINE)


def folders_in_printed_commands(program: Path) -> list[str]:
    """The folders that are filled in where a text of a program names a command, as the code has them."""
    found = []
    for node in ast.walk(ast.parse(program.read_text())):
        before = ""
        for value in node.values if isinstance(node, ast.JoinedStr) else []:
            if isinstance(value, ast.FormattedValue):
                code = ast.unparse(value.value)
                in_command = re.search(rf"({'|'.join(COMMANDS)})(?! of)( [a-z-]+)* $", before)
                found += [code] if in_command and re.search("root|run|path", code) else []
                before += "VALUE"
            else:
                before += ast.literal_eval(value)
    return found


@pytest.mark.parametrize("room", ["rollout", "score", "train", "warehouse", "reports"])
def test_commands_that_are_printed_can_be_pasted_where_the_folder_has_a_space(room: str) -> None:
    found = {program.name: folders for program in (ROOT / room).rglob("*.py")
             if (folders := folders_in_printed_commands(program))}
    assert found and all(code.startswith("shell_quote(") for codes in found.values() for code in codes), found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_commands_of_scripts_can_be_pasted_and_run_where_the_folder_has_a_space(script: Path) -> None:
    assert not re.findall(rf"({'|'.join(COMMANDS)})((?: [a-z]+)? \$(?:run|1)\b)", script.read_text())


def test_what_pages_launch_is_not_looked_for_in_the_folder_at_hand(tmp_path: Path) -> None:
    """`accelerate launch "$(which train)"` runs that file, as Python is given it here."""
    launched = Path(sys.executable).with_name("train")
    for name in ("train.py", "rollout.py", "warehouse.py"):
        (tmp_path / name).write_text("raise SystemExit('the file at hand')")
    done = subprocess.run([sys.executable, launched, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "RUN" in done.stdout, done.stderr


def test_no_page_launches_a_module_of_a_name_that_a_folder_may_have() -> None:
    for page in [*PAGES, *(ROOT / "examples").rglob("*.yaml"), *ROOT.glob("train/**/*.py")]:
        assert not re.search(r"(accelerate launch|torchrun)\b[^`\n]* -m train", page.read_text()), page


@pytest.mark.parametrize("missing", ["click", "pyarrow"])
def test_a_package_that_is_not_installed_is_one_sentence_with_the_way_out(missing: str) -> None:
    code = (f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['warehouse', 'doctor', 'score']\n"
            "from warehouse.entry import warehouse; warehouse()\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"Error: {missing} is not installed") and "pip install" in done.stderr


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(ignored: bool) -> None:
    code = ("import importlib, os, signal\n" + "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" * ignored
            + "load = importlib.import_module\n"
              "importlib.import_module = lambda name: (os.kill(os.getpid(), signal.SIGINT), load(name))[1]\n"
              "import sys; sys.argv = ['train', '--version']\n"
              "from warehouse.entry import train; train()\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0 if ignored else -signal.SIGINT, "")
