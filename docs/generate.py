"""Write the reference pages from the code: python -m docs.generate writes docs/reference/*.md."""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import click

from warehouse.sql.dictionary import described_columns, described_macros, described_views
from warehouse.store.config_file import TABLES as CONFIG_TABLES
from warehouse.store.schema import TABLES

FOLDER = Path(__file__).with_name("reference")
ALARMS = Path(__file__).parents[1] / "warehouse" / "sql" / "texts" / "alarms.sql"
COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}
WIDTH = 100
FIRST_VIEWS = ("iteration_stats", "task_results", "pass_curve", "mismatch", "stages")     # the main ones
WRITTEN = "`python -m docs.generate` writes this page."
# The keys of --json; tests/warehouse/inspect/test_json.py compares them with the commands.
JSON_KEYS: dict[str, dict[str, str]] = {
    "warehouse summary RUN --json": {
        "run": "Folder of the run.", "run_id": "Id that the run keeps when it is copied or moved.",
        "model": "The base model.", "entry": "Number of the last entry of the log.",
        "policy": "Newest policy version.",
        "next": "The stage that is due: `stage`, `iteration`, `purpose`.",
        "iterations": "One object per scored iteration and evaluation, as in the next command.",
        "alarms": "Raised signals, as described under [alarms](#alarms)."},
    "warehouse summary RUN --iteration I --json": {
        "...": "Every column of `iteration_stats` ([schema.md](schema.md#iteration_stats)).",
        "own_reward": "Whether a function of yours was the reward.",
        "rollout": "Seconds of the rollout; null for an evaluation.",
        "score": "Seconds of scoring; null for an evaluation.",
        "train": "Seconds of training; null for an evaluation."},
    "warehouse watch RUN --json": {
        "fired": "Whether an alarm fired. The exit code is then 3.",
        "since": "First iteration that was judged.",
        "back": "The policy to go back to; null if there is none.",
        "mend": "True if something other than the step size must be fixed first.",
        "alarms": "Raised signals, as described under [alarms](#alarms)."},
    "warehouse check RUN --json": {
        "problems": "Broken invariants, one sentence each. The exit code is 1 if there are any.",
        "unfinished": "Of `problems` those that a stage mends when it is run again.",
        "notes": "Remarks that are not errors.",
        "changes": "What --fix leaves out, one sentence each.",
        "left": "Of `problems` those that are there after --fix; without it all.",
        "num_parts": "Parts that were checked.",
        "num_rows": "Rows that were checked."},
    "reports compare RUN OTHER.. --json": {
        "runs": "Names of the runs.", "settings": "Rows of `settings_diff` ([reading.md](../reading.md)).",
        "gains": "For each iteration and purpose that both have `run`, `other` and a row of "
                 "`gains_of_runs(run, other)`."},
    "warehouse log RUN --json": {
        "number": "Number of the entry. Negative numbers describe runs older than the log.",
        "at": "Time in UTC; null if unknown.", "host": "Machine that wrote the entry.",
        "command": "The command line.", "kind": "Kind of transition, for example `begun` or `completed`.",
        "stage": "The stage it is about, or null.", "iteration": "Its iteration.", "purpose": "Its purpose.",
        "what": "The same in one sentence.",
        "changes": "Settings that differ from the previous stage of this kind: `name`, `before`, `now`."},
    "warehouse loop RUN N --json": {
        "event": "`iteration`, `evaluation`, `alarm`, `rescue`, `lost`, `split`, `disk`, `failed`, or "
                 "`done` if nothing was left to train.",
        "at": "Seconds since 1970.",
        "...": "`iteration`, `evaluation`: the row that `summary --iteration I --json` prints.",
        "signals": "`alarm`: names of the signals that fired.",
        "back": "`alarm`: the policy to go back to, or null.",
        "from": "`rescue`: the policy that was given up.", "to": "`rescue`: the policy to continue from.",
        "why": "`rescue`: the reason.", "factor": "`rescue`: factor of the learning rate.",
        "device": "`lost`: the GPU on which a process ended, while others go on.",
        "left_out": "`lost`: whether this GPU is left out from now on.",
        "engines": "`split`: engines from now on.", "trainers": "`split`: processes that train from now on.",
        "sampling": "`split`: seconds of the last iteration.",
        "training": "`split`: seconds of the last iteration.",
        "needed": "`disk`: bytes of the policies to come, if more than `free`.",
        "free": "`disk`: free bytes.",
        "command": "`failed`, `lost`: the command.", "exit_code": "`failed`, `lost`: its exit code."},
    "warehouse arms RUN ARMS.TOML --json": {
        "arm": "Name of the arm, or `parent`.", "title": "Its settings as text.",
        "settings": "Its settings by option.", "run": "Its run folder.", "pass_1": "pass@1.",
        "pass_k": "pass@k, with k the value of --evaluate.", "gain": "Difference to the parent's pass@1.",
        "gain_low": "Lower end of its 95% interval.", "gain_high": "Upper end of its 95% interval.",
        "gain_k": "Difference to the parent's pass@k.", "gain_k_low": "Lower end of its 95% interval.",
        "gain_k_high": "Upper end of its 95% interval.", "reward": "Mean reward.",
        "gain_reward": "Difference to the parent's mean reward.",
        "gain_reward_low": "Lower end of its 95% interval.",
        "gain_reward_high": "Upper end of its 95% interval.",
        "p_value": "Of the gain in pass@1, or in the reward if no policy solves anything; corrected for "
                   "the number of arms (Holm).",
        "num_tasks": "Held-out tasks that were compared.",
        "kl": "KL per token from the arm's policy to the one that all start from, on its evaluation.",
        "staleness": "Policies since the last one shared with the sampler, of the oldest rows.",
        "ess": "Effective sample size of the last optimizer step, as a share.",
        "steps": "Optimizer steps.", "seconds": "Seconds of the arm's stages.",
        "cost": "Their price in dollars, if config.toml has a price per hour.",
        "error": "Why the arm failed.", "stopped": "Which arm it was clearly behind, with --stop-behind.",
        "changed": "If the evaluation has rewards of another scorer than the training, which; else empty."},
    "warehouse doctor --json": {
        "rollout": "Whether this machine can sample: an object with the keys below.",
        "score": "Whether it can isolate programs: the same keys.",
        "train": "Whether it can train: the same keys.",
        "able": "Whether the stage can work.", "lines": "What was found, as sentences.",
        "command": "The command that gets what is missing, or null.",
        "architecture": "With --model: class name of the model.", "model_type": "Type in its config.",
        "adapter": "How an adapter is trained: `prompts`, `because`, `targets`; or `refused`.",
        "full": "How all weights are trained: the same keys.",
        "dtypes": "By dtype: mean nats between engine and trainer on a tiny random copy, or why vLLM "
                  "does not serve it.",
        "served_adapter": "The same with an adapter served apart from the base."}}
ALARM_KEYS = {
    "signal": "Name of the signal ([alarms.md](alarms.md)).", "purpose": "`train`, or the evaluation.",
    "fired": "False if it was raised once only.", "first_iteration": "First iteration that raised it.",
    "last_iteration": "Last iteration that raised it.", "num_iterations": "Iterations that raised it.",
    "value": "Measured value.", "level": "Level beyond which it is raised.",
    "above": "True if larger values are worse.", "meaning": "The signal in words.",
    "examples": "Completions that show it: task and sample index.",
    "errors": "Errors that became more frequent.",
    "spoils_next": "True if the policy that sampled is sound and the next one is not.",
    "over": "True if it fired, but results have since been as good as before it."}


def pages() -> dict[str, str]:
    """Name and text of every reference page."""
    return {"alarms.md": alarms_page(), "commands.md": commands_page(), "config.md": config_page(),
            "json.md": json_page(), "schema.md": schema_page()}


def page(title: str, intro: str, *lines: str) -> str:
    """A page: its title, who writes it, what it is for, and the rest."""
    return "\n".join([f"# {title}", "", f"{intro} {WRITTEN}", "", *lines]).rstrip() + "\n"


def table(*heads: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A Markdown table."""
    return ["|".join(heads), "|".join("---" for _ in heads),
            *("|".join(cell.replace("|", "\\|") or " " for cell in row) for row in rows), ""]


def commands() -> dict[str, click.Command]:
    """Every command by the words that call it."""
    found: dict[str, click.Command] = {}
    for name, place in COMMANDS.items():
        module, _, attribute = place.partition(":")
        found |= _with_subcommands(name, getattr(importlib.import_module(module), attribute))
    return found


def _with_subcommands(name: str, command: click.Command) -> dict[str, click.Command]:
    found = {name: command}
    for word, each in sorted(getattr(command, "commands", {}).items()):
        if each.hidden:
            continue
        found |= _with_subcommands(f"{name} {word}", each)
    return found


def commands_page() -> str:
    """The help of every command."""
    lines = []
    for name, command in commands().items():
        context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH,
                                help_option_names=["-h", "--help"])
        text = re.sub(r"^  ((-h, )?--help|--version) .*\n?", "", command.get_help(context),
                      flags=re.MULTILINE)
        text = re.sub(r"\n+Options:\n*(?=\n\w|$)", "\n", text)
        text = re.sub(r"\s+\[1<=x<=\d+\]", "", text)        # as many as this machine has cores
        lines += [f"## {name}", "", "```text", text.strip(), "```", ""]
    return page("Commands", "The `--help` of every command.", *lines)


def config_page() -> str:
    """The keys of config.toml."""
    known = {str(command.name): command for command in reversed(commands().values())}
    lines = ["`RUN/config.toml` has one table per command. A key is the option's name without the two "
             "leading dashes; [commands.md](commands.md) says what each means and takes. A flag is `true` or "
             "`false`, an option that may be repeated a list. Options on the command line win. Paths are "
             "relative to the folder in which a command is typed.", "",
             *table("table", "keys", rows=[
                 *((f"[{name}]", ", ".join(_keys(known[name])))
                   for name in CONFIG_TABLES if name in known and name != "warehouse"),
                 ("[warehouse]", "`scorer`: the scorer that views and `train` read; `price-per-hour`: "
                                 "dollars per hour of the machine, for the cost in `summary`"),
                 ("[links]", "any name: a page of `reports serve` that the run's page links to")])]
    return page("Configuration", "The tables and keys of a run's `config.toml`.", *lines)


def _keys(command: click.Command) -> list[str]:
    """Keys of a command's table, those that take a list with brackets."""
    return [f"`{max(each.opts, key=len).removeprefix('--')}{' = [..]' if each.multiple else ''}`"
            for each in command.params
            if isinstance(each, click.Option) and each.expose_value and not each.hidden]


def json_page() -> str:
    """The keys of --json."""
    lines = []
    for command, keys in JSON_KEYS.items():
        lines += [f"## `{command}`", "", *_key_table(keys)]
    lines += ["## alarms", "", *_key_table(ALARM_KEYS)]
    return page("JSON output", "What `--json` prints: one object per line, keys as below. "
                "Exit codes are the same as without `--json`.", *lines)


def _key_table(keys: dict[str, str]) -> list[str]:
    return table("key", "meaning", rows=[(f"`{key}`", text) for key, text in keys.items()])


def alarms_page() -> str:
    """The signals of warehouse watch, as the SQL defines them."""
    rows = []
    calls = re.compile(r"signal_of\(('\w+'.*?)\)(?=,?\n\s*(?:signal_of|--)|\]\) AS held)", re.DOTALL)
    for call in calls.findall(ALARMS.read_text()):
        name, value, level, rises, at_once, meaning = _arguments(call)
        sign = ">" if rises == "true" else "<"
        rows.append((f"`{name.strip(chr(39))}`", meaning.strip("'"), f"`{value} {sign} {level}`",
                     "" if at_once == "NULL" else f"`{sign} {at_once}`"))
    return page(
        "Alarms", "The signals that `warehouse watch` evaluates, in the order causes first. "
        "[collapse.md](../collapse.md) says what to do when one fires.",
        "A signal is *raised* if its condition holds. It *fires* if it is raised in two iterations in a row, "
        "if the last column holds, or if it is raised together with `solving_falls` or `errors`.", "",
        "The names in the conditions are columns of the views `iteration_stats`, `adjusted` and "
        "`train_steps`. `usual_x` is the run's own history: the best mean of three iterations, or the median "
        "of the first three. `best_x` is the best mean of three iterations in a row among the last thirty. "
        "`chance` is three standard errors of a share, at least 0.05. `x_margin` is the distance from the "
        "best in standard errors, larger the more iterations the best was chosen from. `solving`, `reach` "
        "and `reward` are pass@1, pass@k and mean reward with the difficulty of the drawn tasks taken "
        "out.", "",
        *table("signal", "meaning", "raised if", "fires at once if", rows=rows))


def _arguments(call: str) -> list[str]:
    """The arguments of a call of SQL, split at commas that no bracket or quote encloses."""
    found, depth, quoted = [""], 0, False
    for letter in call:
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter in "([") - (letter in ")]")
        if letter == "," and not depth and not quoted:
            found.append("")
        else:
            found[-1] += letter
    return [" ".join(each.split()) for each in found]


def schema_page() -> str:
    """Every table, view, column and macro; a column that an earlier table has is described there."""
    lines, described = list[str](), dict[tuple[str, ...], str]()
    columns, texts = described_columns(), described_views()
    for view in dict.fromkeys([*TABLES, *FIRST_VIEWS, *texts]):
        known: dict[str, list[str]] = {}
        for row in columns[view]:
            known.setdefault(described.setdefault(row, view), []).append(row[0])
        new = [row for row in columns[view] if described[row] == view]
        lines += [f"## {view}", "", texts[view], ""]
        lines += table("column", "type", "meaning", rows=new) if new else []
        lines += [f"As in [{other}](#{other}): {', '.join(f'`{name}`' for name in names)}.\n"
                  for other, names in known.items() if other != view]
    lines += ["## Macros", "", *(f"- `{call}`: {text}" for call, text in described_macros().values())]
    return page(
        "Schema",
        "Every table, view, column and macro of `warehouse sql`; `warehouse schema NAME` prints one.",
        "Tables and views show complete stages only. `--partial` adds the parts of unfinished stages. If an "
        "iteration was scored several times, `samples` shows one scorer "
        "([which one](../reading.md#several-scorers)) and `all_samples` shows all. With several runs every "
        "table has a first column `run`.", "", *lines)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
