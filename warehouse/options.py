"""Command-line pieces that all rooms share: the RUN argument, its config file, and the display of errors."""

import difflib
import errno
import functools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from warehouse.consent import GuardedOption
from warehouse.inspect.render import plain
from warehouse.objects.place import sync_copy
from warehouse.stages import stop, warm
from warehouse.stages.space import lacks_memory
from warehouse.stages.stop import StageStopped
from warehouse.store.commit import TWINS, by_address
from warehouse.store.config_file import dashed, place_in, read_config
from warehouse.store.errors import STOPPED_EXIT_CODE, NoRun, StageError, first_line, printable

STAGE_OF = {"eval": "rollout"}          # by tables of config.toml that have other names
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
# Settings of TRL's GRPOConfig, where ours has a name that is not alike.
OURS = {"num-generations": "group-size", "max-completion-length": "max-tokens", "beta": "kl-beta",
        "epsilon": "clip-low", "epsilon-high": "clip-high", "loss-type": "loss",
        "lr-scheduler-type": "schedule", "steps-per-generation": "updates-per-batch",
        "reward-funcs": "reward-file",
        "per-device-train-batch-size": "tokens-per-batch", "save-total-limit": "keep-policies",
        "report-to": "track", "eval-steps": "eval-every", "generation-batch-size": "num-tasks",
        "bf16": "dtype", "fp16": "dtype",
        "max-prompt-length": "max-prompt-tokens", "vllm-max-model-length": "max-prompt-tokens",
        "chat-template-kwargs": "format-option",
        "vllm-importance-sampling-mode": "correction"}
LONG = "`warehouse loop RUN ITERATIONS` says how long to train."
EVALUATION = "Options of `rollout` for evaluations stand below [eval] of config.toml, as group-size = 8."
SAID = {"eval-options": EVALUATION, "num-generations-eval": EVALUATION,
        "num-iterations": "For N of them, `train --replay N-1` trains rows again in the next iterations, and "
                          "N times the --updates-per-batch takes as many steps; add --correction bypass.",
        "gradient-accumulation-steps": "Accumulation is automatic (--tokens-per-batch); an iteration takes "
                                       "--updates-per-batch optimizer steps.",
        **dict.fromkeys(("save-steps", "save-strategy"),
                        "Every iteration's policy is kept, or the last --keep-policies."),
        "warmup-ratio": "Give --warmup-steps, a number of optimizer steps.",
        "max-steps": LONG, "num-train-epochs": LONG, "output-dir": "RUN is the folder of everything.",
        **dict.fromkeys(("use-vllm", "vllm-mode", "vllm-enable-sleep-mode", "gradient-checkpointing",
                         "use-liger-kernel"), "That is automatic: leave it out."),
        "resume": "The same command again resumes.",
        "resume-from-checkpoint": "The same command again resumes."}
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
Command = TypeVar("Command", bound=click.Command)
click.IntRange.name, click.FloatRange.name = "integer", "float"        # as messages and --help call a value


def with_version(command: Command) -> Command:
    """Give a command and its subcommands -h as well as --help, and --version."""
    command.context_settings.update(HELP)
    return click.version_option(package_name="rollhouse", prog_name="rollhouse")(command)


class TitledCommand(click.Command):
    """A command that lists its options in groups in --help, each begun by an option with a `title`.

    If an option has two long names, the second, of an earlier version, is accepted and hidden. Commands in
    `beside` are called after this one's name: `score RUN`, `score diff RUN A B`.
    """

    def __init__(self, *arguments: Any, beside: Sequence[click.Command] = (),
                 check: Callable[[dict[str, Any]], None] = lambda _values: None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.check = check      # StageError for option values that contradict each other
        self.commands = {str(command.name): command for command in beside}
        for command in beside:
            command.context_settings = {**HELP, **command.context_settings}

    def main(self, args: Sequence[str] | None = None,  # type: ignore[override]
             prog_name: str | None = None, **options: Any) -> Any:
        """Run the command, or the subcommand named by the first word."""
        words = list(sys.argv[1:] if args is None else args)
        if words and words[0] in self.commands:
            return self.commands[words[0]].main(words[1:], f"{self.name} {words[0]}", **options)
        return super().main(words, prog_name, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click takes the last of a repeated option; of two reward functions that would drop one unseen.

        A mistyped subcommand would pass for RUN.
        """
        near = difflib.get_close_matches(args[0], self.commands, 1) if args else []
        if near and not os.path.exists(args[0]):
            raise click.UsageError(f"There is neither a command nor a folder '{args[0]}'. Did you mean "
                                   f"`{self.name} {near[0]}`?", ctx)
        try:
            named = self.make_parser(ctx).parse_args(list(args))[2]
        except click.NoSuchOption as error:
            if said := meant(error.option_name, names_of(self), "--"):
                raise click.UsageError(f"No such option '{error.option_name}'. {said}", ctx) from error
            raise
        for parameter in {parameter for parameter in named if named.count(parameter) > 1}:
            if isinstance(parameter, GuardedOption) and not (parameter.multiple or parameter.is_flag):
                both = "FILE.py" in str(parameter.metavar)
                raise click.UsageError(f"{parameter.opts[0]} stands twice, and takes one value. "
                                       + ("Write a function that does both." if both else "Leave one out."))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in the order in which the options were declared."""
        title, groups = "Options", dict[str, list[tuple[str, str]]]()
        for parameter in self.get_params(ctx):
            title = getattr(parameter, "title", title)
            record = parameter.get_help_record(ctx)
            if record and isinstance(parameter, click.Option):
                names = re.sub(r"(--[\w-]+), --[\w-]+", r"\1", record[0]).removesuffix(" RANGE")
                groups.setdefault(title, []).append((names, record[1]))
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _load_config(context: click.Context, _parameter: click.Parameter, value: str) -> Path:
    """Fill the command's defaults from RUN/config.toml: one table per command, flags win."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "30")  # a log file needs few lines
    try:
        run = sync_copy(value, config_only=True)
        context.default_map = config_defaults(context.command, run / "config.toml")
    except StageError as error:
        raise click.ClickException(str(error)) from error
    return run


def _load_first_config(context: click.Context, parameter: click.Parameter,
                       value: tuple[str, ...]) -> tuple[str, ...]:
    """The same for several runs, with the config file of the first."""
    return (str(_load_config(context, parameter, value[0])), *value[1:])


at_option = click.option("--at", type=click.IntRange(min=0), default=None, metavar="ENTRY",
                         help="Read the run as of this entry of `warehouse log`.")


def open_run(run: str | Path, at: int | None = None) -> Any:
    """The Warehouse of a run folder; imported when a command runs, so that `--help` is fast."""
    from warehouse.store.run_folder import open_warehouse
    return open_warehouse(run, at)


def check_config(path: Path, kinds: Iterable[str] = ()) -> None:
    """StageError for config values that any command would refuse, alone, together or for `kinds` of tasks.

    Values with a function of the user's own are not checked together: nobody has trusted the file yet.
    """
    commands: dict[str, click.Command] = {}
    for entry in entry_points(group="rollhouse"):
        room = entry.load()
        commands |= {**getattr(room, "commands", {}), room.name: room}
    for name, table in read_config(path).items():
        if command := commands.get(STAGE_OF.get(name, name)):
            given = config_defaults(command, path, name)
            if isinstance(command, TitledCommand) and ".py:" not in str(given):
                try:
                    evaluates = {"evaluate": True} if name == "eval" else {}
                    command.check(in_effect(command, table) | evaluates | {"kinds": set(kinds)})
                except StageError as error:
                    raise StageError(f"{path}: [{name}] {error}") from error


def config_defaults(command: click.Command, path: Path, table: str = "", *,
                    others: bool = False) -> dict[str, Any]:
    """Values of the command's table, or another, by parameter name; keys are long options without dashes.

    `others` says that the table may hold options which the command lacks.
    """
    table = table or str(command.name)
    return checked_options(command, read_config(path).get(table, {}), path, table, others=others)


def use_eval_table(context: click.Context, _flag: click.Parameter, evaluates: bool) -> bool:
    """With --eval, take the options that nobody typed from [eval] of config.toml, then from [rollout]."""
    if evaluates:
        if context.get_parameter_source("evaluate") is not ParameterSource.COMMANDLINE:
            raise click.ClickException("config.toml has eval = true, so that nothing would be sampled to "
                                       "train on. Leave it out, and type --eval.")
        shared = {name: value for name, value in (context.default_map or {}).items()
                  if name not in ("num_tasks", "carry_over")}       # said of training iterations
        path = Path(context.params["run"]) / "config.toml"
        context.default_map = shared | config_defaults(context.command, path, "eval")
    return evaluates


def names_of(command: click.Command) -> dict[str, click.Parameter]:
    return {option.removeprefix("--"): parameter for parameter in command.params for option in parameter.opts
            if option.startswith("--") and parameter.expose_value}


def in_effect(command: click.Command, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of a command by name, with its value in `settings`, else its default."""
    names = names_of(command)
    given = {str(names[key].name): value for key, value in settings.items() if key in names}
    return {str(parameter.name): parameter.default for parameter in command.params} | given


def meant(name: str, known: Iterable[str], dashes: str = "") -> str:
    """What a name that a command does not know may mean, in a sentence: its option, or another command's."""
    name = dashed(name.strip("-"))
    if name in SAID:
        return SAID[name]
    ours = OURS.get(name, name)
    for stage in ("rollout", "score", "train", "warehouse loop"):
        if ours not in known and ours in names_of(room_command(stage)):
            table = stage.removeprefix("warehouse ")
            return f"`{stage}` has '{dashes}{ours}'" + (f", which may stand below [{table}] of config.toml."
                                                        if dashes else ".")
    near = [ours] if ours in known else difflib.get_close_matches(name, known, 1)
    return f"Did you mean '{dashes}{near[0]}'?" if near else ""


def checked_options(command: click.Command, settings: Mapping[str, Any], path: Path, table: str, *,
                    others: bool = False) -> dict[str, Any]:
    """The settings of a file's table by parameter name; StageError with the line of an invalid one."""
    known = names_of(command)
    defaults: dict[str, Any] = {}
    for key, setting in settings.items():
        parameter = known.get(dashed(key))
        if not isinstance(parameter, click.Option):
            if others:
                continue
            once = {other: name for name, other in reversed(known.items())}.values()
            raise StageError(f"{place_in(path, table, key)}: [{table}] has no option '{key}'. "
                             + (meant(key, known) or f"Known: {', '.join(sorted(once))}."))
        if parameter.name in defaults:
            raise StageError(f"{place_in(path, table, key)}: [{table}] {key} is there twice, under two "
                             "spellings. Leave one out.")
        values = setting if isinstance(setting, list) and parameter.multiple else [setting]
        for value in values:
            if problem := _problem(parameter, value):
                shown = str(value).lower() if isinstance(value, bool) else value or repr(value)
                raise StageError(f"{place_in(path, table, key)}: [{table}] {key} = {shown}: "
                                 f"{problem} Fix that line.")
        defaults[str(parameter.name)] = values if parameter.multiple else setting
    return defaults


def room_command(name: str) -> click.Command:
    """A stage's command, or 'warehouse loop', found as installed: rooms do not import each other."""
    name, _, sub = name.partition(" ")
    [entry] = entry_points(group="rollhouse", name=name)
    command: click.Command = entry.load()
    return command.commands[sub] if isinstance(command, click.Group) and sub else command


def check_stages(run: Path, **words: Sequence[str]) -> None:
    """StageError for options that a stage would refuse, before anything is sampled."""
    names = "rollout", "score", "train"
    commands = [room_command(name) for name in names]
    sampled, *others = (command.make_context(name, [str(run), *words.get(name, ())]).params
                        for command, name in zip(commands, names, strict=True))
    together = {"group_size": sampled["group_size"]} | others[0] | others[1]     # what is asked of a scorer
    for command, values in zip(commands, (sampled, together, together), strict=True):
        assert isinstance(command, TitledCommand)
        command.check(values)


def untrusted(run: Path) -> str:
    """Why a stage would refuse the run's config.toml, which is not trusted; "" if none would."""
    for table in ("rollout", "eval", "score", "train"):
        command = room_command(STAGE_OF.get(table, table))
        for key, value in config_defaults(command, run / "config.toml", table).items():
            for option in command.params:
                if (isinstance(option, GuardedOption) and option.name == key
                        and (said := option.refusal(value, run, table))):
                    return said
    return ""


def _problem(option: click.Option, value: Any) -> str:
    """Why a TOML value does not fit the option; '' if it fits."""
    if option.is_flag:
        return "" if isinstance(value, bool) else "it must be true or false."
    if value == "":
        return "it is empty."
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        choices = getattr(option.type, "choices", ())
        return f"it must be one {'of ' * bool(choices)}{', '.join(choices) or option.type.name}."
    if isinstance(value, float) and isinstance(option.type, click.types.IntParamType):
        return f"'{value}' is not a valid integer."
    try:
        option.type.convert(value, option, None)
    except click.BadParameter as error:
        return error.message
    return ""


class FiniteRange(click.FloatRange):
    """A number within bounds; NaN, which passes all bounds, and infinity are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error that names the option."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """The bounds for --help, without click's x<=None for a missing one."""
        return "" if self.min is None and self.max is None else super()._describe_range()


class RunFolder(click.Path):
    """A run's folder or address; an empty word, as of an unset variable, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or a usage error if it is empty."""
        if not value:
            self.fail("it is empty. Name the folder of the run; this one is `.`.", param, ctx)
        self.readable = False       # what reads a file says why it cannot
        return super().convert(value, param, ctx)


run_folder = click.argument("run", type=RunFolder(path_type=Path))      # without its config file
run_argument = click.argument("run", type=RunFolder(), is_eager=True, callback=_load_config)
runs_argument = click.argument("runs", nargs=-1, required=True, type=RunFolder(), is_eager=True,
                               metavar="RUN.. [QUERY]", callback=_load_first_config)
PURPOSE_HELP = "train, eval (every evaluation), eval-SPLIT, distil, train-turn2 .. [default: all]"
SHARD_HELP = "Parts of worker INDEX of COUNT, from 0."
TIME_LIMIT_HELP = "Stop after this many seconds with exit code 75."
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
strict_option = click.option("--strict", is_flag=True,
                             help="Exit with 1 on damage instead of leaving it out.")


def as_line(facts: dict[str, Any]) -> str:
    """Facts as one line of JSON; numbers that are not finite become null, dates text."""
    return json.dumps(plain(facts))


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise StageError("The current folder was deleted. Change to another, then type the command "
                         "again.") from error


def shows_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Print a StageError as one line with its exit code, a stop with 75; a bug keeps its traceback."""
    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        if context := click.get_current_context(silent=True):
            _refuse_empty(context)
        try:
            _check_folder()
            code = warm.hand_over()
            if code is not None:
                sys.exit(code)
            stop.interrupted = False
            command(*arguments, **options)
            if stop.interrupted:        # after 0, an interrupted script would continue
                raise StageStopped("SIGINT was received; nothing is left to do.")
        except StageError as error:
            # Commands to run next, and the run, are named so that it works anywhere; files where they lie.
            named = "|".join([".*" if isinstance(error, NoRun) else "`[^`]+`",
                              *(rf"{re.escape(str(root))}(?![\w/-])" for root in TWINS)])
            said = re.sub(r"\b(s3|gs|az):/(?!/)", r"\1://", str(error))     # a Path has one slash
            said = re.sub(named, lambda words: by_address(words[0]), said)
            shown = click.ClickException(printable(said + _not_typed(said, context)))
            shown.exit_code = error.exit_code  # type: ignore[misc]
            raise shown from error
        except StageStopped as stopped:
            click.echo(by_address(str(stopped)), err=True)
            sys.exit(STOPPED_EXIT_CODE)
        except BaseException as error:
            warm.sound = False
            if isinstance(error, KeyboardInterrupt) and stop.interrupted:       # for the second time
                click.echo("Stopped at once; finished work is kept. Run the same command again.", err=True)
                sys.exit(STOPPED_EXIT_CODE)
            if gone := _gone([options.get("run"), *options.get("runs", ())], error):
                raise click.ClickException(f"{gone} was moved or removed while it was worked on. "
                                           "Name its new place, or restore it from a copy.") from error
            if isinstance(error, Exception) and (problem := _not_ours(error)):
                raise click.ClickException(f"{problem}, then run the same command again; what was written "
                                           "before is kept.") from error
            raise
    return guarded


def _not_typed(said: str, context: click.Context | None) -> str:
    """Which options of a message nobody typed, because config.toml has them."""
    mentioned, source = set(re.findall(r"--[a-z][\w-]*", said)), ParameterSource.DEFAULT_MAP
    names = [] if context is None or "config.toml" in said else [
        name for parameter in context.command.params for name in parameter.opts
        if name in mentioned and context.get_parameter_source(str(parameter.name)) is source]
    return f" (config.toml has {', '.join(names)}.)" if names else ""


def _refuse_empty(context: click.Context) -> None:
    """A usage error for an empty text, as of an unset variable: it would pass for a missing option."""
    for parameter in context.command.params:
        given = context.params.get(parameter.name) if parameter.type is click.STRING else None
        if "" in (given if isinstance(given, tuple) else [given]) and parameter.default != "":
            raise click.BadParameter("it is empty. Leave it out, or give a value.", context, parameter)


def _gone(runs: Sequence[str | Path | None], error: BaseException) -> str | Path | None:
    """The run of a missing file, if the whole run is missing; None otherwise."""
    for run in runs:
        if run and isinstance(error, FileNotFoundError) and not Path(run).exists() and (
                Path(str(error.filename)).is_relative_to(Path(run).resolve())):
            return run
    return None


def _not_ours(error: Exception) -> str:
    """What the machine lacks or refuses, with the way out; '' for a bug."""
    if lacks_memory(error):
        return f"There is not enough memory ({first_line(error)}). Provide more, or give less work at a time"
    if isinstance(error, OSError) and error.filename and not isinstance(error, FileNotFoundError):
        return f"{error.filename} cannot be used: {error.strerror or error}. Fix that"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full ({error.strerror}). Free some space"
    return ""
