"""The options of `score`: what each is, for the command line and config.toml; `try` and `gold` share some."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import click
from click.core import ParameterSource

from score.sandbox.limits import Limits
from warehouse.fields import iteration_field, option
from warehouse.options import PURPOSE_HELP, SHARD_HELP, TIME_LIMIT_HELP
from warehouse.stages.shard import Shard
from warehouse.store.errors import StageError

REWARDS = ("arc-v1", "arc-v2-no-pixel-score", "arc-exact-shaped", "exact", "tests-share", "graded")


@dataclass(frozen=True)
class RewardOptions:
    """How measures become a reward."""

    reward: str | None = option(None, "Reward. [default: by kind of task]", choices=REWARDS, group="Reward")
    reward_file: str | None = option(None, "Your own reward function, with TRL's signature.",
                                     metavar="FILE.py:NAME", guarded="reward")


def settled_reward(options: RewardOptions) -> RewardOptions:
    """A --reward that was typed takes the place of a reward file that config.toml names."""
    source = click.get_current_context().get_parameter_source
    if source("reward") is not ParameterSource.COMMANDLINE:
        return options
    if source("reward_file") is ParameterSource.COMMANDLINE:
        raise StageError("--reward and --reward-file are two rewards. Leave one of them out.")
    return replace(options, reward_file=None)


@dataclass(frozen=True)
class LimitOptions:
    """What one program may use."""

    cpu_seconds: float = option(1.0, "CPU time, all inputs together.", group="Limits")
    wall_seconds: float | None = option(None, "Wall time. [default: 5 x CPU]")
    memory_mib: int = option(512, "Memory on top of an empty process.")
    output_kib: int = option(64, "Size of the answer.")

    @property
    def limits(self) -> Limits:
        return Limits(**{**vars(self), "wall_seconds": self.wall_seconds or 5 * self.cpu_seconds})


@dataclass(frozen=True)
class LaneOptions:
    """What programs may import, and the lanes that run them."""

    allow_import: tuple[str, ...] = option(
        (), "Module that programs may import, for example scipy; repeatable.", metavar="MODULE",
        group="Imports and lanes")
    import_path: tuple[str, ...] = option(
        (), "Folder of your own modules for --allow-import.", guarded="",
        type=click.Path(exists=True, file_okay=False))
    preload: tuple[str, ...] = option(
        (), "Import this module once per lane, not per program.", metavar="MODULE", guarded="")
    lanes: int | None = option(None, "Programs at once. [default: one per usable core]", least=1)


@dataclass(frozen=True)
class TierOptions:
    """Isolation of programs."""

    tier: str | None = option(None, "Required isolation. [default: best available]",
                              choices=("A", "B", "C"), group="Isolation")
    unsafe_no_sandbox: bool = option(
        False, "Run programs without isolation, which every row records.", guarded="")


@dataclass(frozen=True)
class ScoreOptions:
    """Every option of `score`, and its run."""

    run: Path
    reward: RewardOptions = field(default_factory=RewardOptions)
    iteration: int | None = iteration_field("Rollouts", "all unscored")
    purpose: str | None = option(None, PURPOSE_HELP)
    limits: LimitOptions = field(default_factory=LimitOptions)
    lanes: LaneOptions = field(default_factory=LaneOptions)
    isolation: TierOptions = field(default_factory=TierOptions)
    shard: Shard = option(Shard(), SHARD_HELP,
                          parse=Shard.parse, metavar="INDEX/COUNT", group="Run and resume")
    time_limit: float | None = option(None, TIME_LIMIT_HELP, least=0)
    grace: float = option(30.0, "Seconds to finish the current part after SIGTERM or SIGINT.", least=0)
