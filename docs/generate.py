"""Write the reference pages from the code: python -m docs.generate writes docs/reference/*.md."""

import importlib
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import click

from warehouse.sql.dictionary import described_columns, described_macros, described_views
from warehouse.store.config_file import TABLES as CONFIG_TABLES
from warehouse.store.schema import KEYS, TABLES

FOLDER = Path(__file__).with_name("reference")
ALARMS = Path(__file__).parents[1] / "warehouse" / "sql" / "texts" / "alarms.sql"
COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}
WIDTH = 100
FIRST_VIEWS = ("iteration_stats", "task_results", "pass_curve", "mismatch", "stages")     # the main ones
WRITTEN = "Made by `python -m docs.generate`."
# The keys of --json; tests/warehouse/inspect/test_json.py compares them with the commands.
RAISED = "Raised signals: [keys](#alarms)."
OF_STAGE = "Seconds of the stage; null for an evaluation."
ABLE = "Object with the keys below."
ABOUT, INTERVAL, ROWS = "What the entry is about, or null.", "Its 95% interval.", "Parts and rows checked."
CHANCE = "Of `gain`, `gain_k` and `gain_reward`; Holm-corrected for the arms."
LASTED = "`split`: seconds in the last iteration."
COUNTED = "First, last and number of iterations that raised it."
JSON_KEYS: dict[str, dict[str, str]] = {
    "warehouse summary RUN --json": {
        "run": "Run folder.", "run_id": "Id of the run, also after a copy or move.", "model": "Base model.",
        "entry": "Last entry of the log.", "policy": "Newest policy version.",
        "next": "Stage that is due: `stage`, `iteration`, `purpose`.",
        "iterations": "One object per scored iteration and evaluation, as in the next command.",
        "alarms": RAISED},
    "warehouse summary RUN --iteration I --json": {
        "...": "Columns of [iteration_stats](schema.md#iteration_stats).",
        "own_reward": "True for a reward function of yours.",
        "rollout": OF_STAGE, "score": OF_STAGE, "train": OF_STAGE},
    "warehouse watch RUN --json": {
        "fired": "Whether an alarm fired; the exit code is then 3.", "since": "First iteration judged.",
        "back": "Policy to go back to, or null.",
        "mend": "True if something other than the step size must be fixed first.", "alarms": RAISED},
    "warehouse check RUN --json": {
        "problems": "Broken invariants, one sentence each.",
        "unfinished": "Those of `problems` that running the stage again mends.",
        "notes": "Remarks, not errors.", "changes": "What --fix leaves out, one sentence each.",
        "left": "Problems left after --fix; without it all. The exit code is 1 if there are any.",
        "num_parts": ROWS, "num_rows": ROWS},
    "reports compare RUN OTHER.. --json": {
        "runs": "Names of the runs.", "settings": "Rows of [settings_diff](schema.md#settings_diff).",
        "gains": "Per common iteration and purpose: `run`, `other` and a row of `gains_of_runs`."},
    "warehouse log RUN --json": {
        "number": "Number of the entry; negative for runs older than the log.",
        "at": "Time, UTC; null if unknown.", "host": "Machine and job.", "command": "Command line.",
        "seconds": "Of who left or completed a stage.",
        "kind": "Transition, for example `begun` or `completed`.", "stage": ABOUT, "iteration": ABOUT,
        "purpose": ABOUT, "policy": "Newest policy.", "what": "The transition as a sentence.",
        "changes": "Settings changed since the previous stage of this kind: `name`, `before`, `now`."},
    "warehouse loop RUN N --json": {
        "event": "`iteration`, `evaluation`, `alarm`, `rescue`, `lost`, `split`, `disk`, `failed`, or "
                 "`done` if nothing was left to train.",
        "at": "Seconds since 1970.",
        "...": "`iteration`, `evaluation`: as `summary --iteration I --json`.",
        "signals": "`alarm`: signals that fired.", "back": "`alarm`: policy to go back to, or null.",
        "from": "`rescue`: policy given up.", "to": "`rescue`: policy to continue from.",
        "why": "`rescue`: reason.", "factor": "`rescue`: factor of the learning rate.",
        "device": "`lost`: GPU on which a process ended.",
        "left_out": "`lost`: whether this GPU is left out from now on.",
        "engines": "`split`: engines from now on.", "trainers": "`split`: training processes from now on.",
        "sampling": LASTED, "training": LASTED,
        "needed": "`disk`: bytes of the policies to come, more than `free`.", "free": "`disk`: free bytes.",
        "command": "`failed`, `lost`: command.", "exit_code": "`failed`, `lost`: its exit code."},
    "warehouse arms RUN ARMS.TOML --json": {
        "arm": "Name of the arm, or `parent`.", "title": "Settings as text.",
        "settings": "Settings by option.", "run": "Run folder.", "pass_1": "pass@1.",
        "pass_k": "pass@k, k from --evaluate.", "gain": "Difference to the parent's pass@1.",
        "gain_low": INTERVAL, "gain_high": INTERVAL, "gain_k": "Difference to the parent's pass@k.",
        "gain_k_low": INTERVAL, "gain_k_high": INTERVAL, "reward": "Mean reward.",
        "gain_reward": "Difference to the parent's mean reward.",
        "gain_reward_low": INTERVAL, "gain_reward_high": INTERVAL,
        "p_value": CHANCE, "p_k": CHANCE, "p_reward": CHANCE,
        "num_tasks": "Held-out tasks compared.",
        "kl": "KL per token from the arm's policy to the common start, on its evaluation.",
        "staleness": "Policies since the last one shared with the sampler, of the oldest rows.",
        "ess": "ESS of the last optimizer step.", "steps": "Optimizer steps.",
        "clipped": "Share of clipped tokens.",
        "sha256": "Of the newest policy.",
        "late": "Learning rate below a tenth of its peak.",
        "seconds": "Seconds of the arm's stages.", "cost": "Dollars, if config.toml has `price-per-hour`.",
        "error": "Why the arm failed.", "stopped": "With --stop-behind: the arm it was clearly behind.",
        "changed": "Sentence if the evaluation has another scorer than the training; else empty.",
        "other_scorers": "Of the evaluation, if not the parent's; else null."},
    "score gold SOURCE --output FILE": {
        "task_id": "Task.", "right": "Whether its solution is right.", "reason": "Why not.",
        "limited": "Whether it ran into a limit.", "needs": "Options or payload that make it right.",
        "pays": "Program that passes and solves nothing.",
        "pays_share": "Largest share of tests that one passes."},
    "warehouse doctor --json": {
        "rollout": ABLE, "score": ABLE, "train": ABLE, "able": "Whether the stage can work.",
        "lines": "Findings, as sentences.", "command": "Command that gets what is missing, or null.",
        "architecture": "With --model: class of the model.", "model_type": "Type in its config.",
        "adapter": "How an adapter is trained: `prompts`, `because`, `targets`; or `refused`.",
        "full": "The same for all weights.",
        "dtypes": "By dtype: mean nats between engine and trainer on a tiny random copy, or why vLLM "
                  "does not serve it.",
        "served_adapter": "The same for an adapter served apart from the base."}}
ALARM_KEYS = {
    "signal": "Name of the [signal](alarms.md).", "purpose": "`train`, or the evaluation.",
    "fired": "True if it fired and is not over.", "first_iteration": COUNTED, "last_iteration": COUNTED,
    "num_iterations": COUNTED, "value": "Measured value.", "level": "Level beyond which it is raised.",
    "above": "True if larger is worse.", "meaning": "The signal in words.",
    "examples": "Completions that show it: task and sample index.",
    "errors": "Errors that became more frequent.",
    "spoils_next": "True if the policy that sampled is sound and the next one is not.",
    "over": "True if it fired, but results have since been as good as before."}


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
    """The help of every command; of a group of options that an earlier command has only the title."""
    lines, written = [], dict[str, str]()
    for name, command in commands().items():
        context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH,
                                help_option_names=["-h", "--help"],
                                show_default=command.context_settings.get("show_default"))
        text = re.sub(r"^  ((-h, )?--help|--version) .*\n?", "", command.get_help(context),
                      flags=re.MULTILINE)
        text = re.sub(r"\s+\[1<=x<=\d+\]", "", text)        # as many as this machine has cores
        usage, *paragraphs = map(str.rstrip, text.split("\n\n"))
        usage = re.sub(r"Usage: | \[OPTIONS\]| COMMAND \[ARGS\]\.\.\.", "", usage)
        shown, titles, other = list[str](), list[str](), ""
        for each in paragraphs:
            title, _, options = (each + "\n").partition(":\n")
            if title == "Options":
                shown.append(options.rstrip())
            elif written.setdefault(each, name) != name:
                other = written[each]
                titles.append(title)
            elif title != "Commands":           # their help follows
                shown.append(each)
        lines += [f"## `{usage}`", "", "```text", "\n\n".join(filter(None, shown)), "```", "",
                  *([f"As in `{other}`: {', '.join(titles)}.", ""] if titles else [])]
    return page("Commands", "`--help` of every command.", *lines)


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
                 ("[eval]", "as [rollout], which it overrides for `rollout --eval`"),
                 ("[warehouse]", "`scorer`: the scorer that views and `train` read; `price-per-hour`: "
                                 "dollars per hour of the machine, for the cost in `summary`"),
                 ("[links]", "any name: a page of `reports serve` that the run's page links to")])]
    return page("Configuration", "The tables and keys of a run's `config.toml`.", *lines)


def _keys(command: click.Command) -> list[str]:
    """Keys of a command's table, those that take a list with brackets."""
    return [f"`{next(opt for opt in each.opts if opt[:2] == '--')[2:]}{' = [..]' if each.multiple else ''}`"
            for each in command.params
            if isinstance(each, click.Option) and each.expose_value and not each.hidden]


def json_page() -> str:
    """The keys of --json."""
    lines = []
    for command, keys in JSON_KEYS.items():
        lines += [f"## `{command}`", "", *_key_table(keys)]
    lines += ["## alarms", "", *_key_table(ALARM_KEYS)]
    return page("JSON output", "`--json` prints one object per line. Exit codes are those without it.",
                *lines)


def _key_table(keys: dict[str, str]) -> list[str]:
    """A table of keys; neighbours of one meaning share a row."""
    return table("key", "meaning", rows=[(", ".join(f"`{key}`" for key in group), text)
                                         for text, group in groupby(keys, keys.__getitem__)])


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
        "Alarms", "Signals of `warehouse watch`, causes first. What to do: [collapse.md](../collapse.md).",
        "A signal is *raised* if its condition holds. It *fires* if raised in two iterations in a row, or "
        "together with `solving_falls` or `errors`, or if the last column holds.", "",
        "Names in the conditions are columns of `iteration_stats`, `adjusted` and `train_steps` "
        "([schema](schema.md)). `usual_x`, `first_solving`: best mean of three iterations, or median of "
        "the first three. `best_x`: best mean of three in a row among the last thirty; `reward_at_best`: "
        "mean reward in those of `best_solving`. `tokens_median`: median length. `num_programs`: "
        "completions with code. `num_updated`: completions over all steps. `is_rounded`: trained in "
        "bfloat16. `two_fall`: two iterations in a row far below the best. `chance`, `chance_of_few`: "
        "three standard errors of a share, at least 0.05. `x_margin`: standard errors below the best that "
        "chance explains. `solving`, `reach`, `reward`: pass@1, pass@k, mean reward, adjusted to tasks of "
        "average difficulty, which later iterations correct.",
        "", *table("signal", "meaning", "raised if", "fires at once if", rows=rows))


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
    names = [column.name for column in KEYS]
    columns["keys"] = [row for row in columns["completions"] if row[0] in names]
    texts = {"keys": "Columns that identify a completion.", **texts}
    shown = list(dict.fromkeys(["keys", *TABLES, *FIRST_VIEWS, *texts]))
    for number, view in enumerate(shown):
        rows, known = columns[view], dict[str, str]()
        for other in shown[:number]:            # one that this view has all columns of
            if len(columns[other]) > max(1, len(known)) and set(columns[other]) <= set(rows):
                known = {row[0]: other for row in columns[other]}
        whole = set(known.values())
        known |= {row[0]: described[row] for row in rows if row in described and row[0] not in known}
        new = [row for row in rows if row[0] not in known]
        described |= dict.fromkeys(new, view)
        lines += [f"## {view}", "", texts[view], ""]
        lines += table("column", "type", "meaning", rows=new) if new else []
        if known:
            groups = {other: [name for name in known if known[name] == other] for other in known.values()}
            lines += ["As in " + "; ".join(f"[{other}](#{other})" if other in whole else
                                           f"[{other}](#{other}): {', '.join(map('`{}`'.format, names))}"
                                           for other, names in groups.items()) + ".", ""]
    lines += ["## Macros", "", *(f"- `{call}`: {text}" for call, text in described_macros().values())]
    return page(
        "Schema", "Tables, views, columns and macros of `warehouse sql`; `warehouse schema NAME` prints one.",
        "They show complete stages only; `--partial` adds parts of unfinished ones. `samples` shows one "
        "scorer of each iteration ([which one](../reading.md#several-scorers)), `all_samples` all. With "
        "several runs every table has a first column `run`.", "", *lines)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
