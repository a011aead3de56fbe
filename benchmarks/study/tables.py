"""Tables of docs/studies.md from the results of studies.

    python -m benchmarks.study.tables FOLDER
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import comb
from pathlib import Path
from statistics import mean, median
from typing import Any

import click
import numpy as np

from benchmarks.study.results import read_results
from benchmarks.study.run import OUT_OF_TIME

Result = dict[str, Any]
PLAIN, SOLVING = 1, 2           # columns of a curve: pass@1, and the same with equal tasks


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def main(folder: Path) -> None:
    """Print a table of every study whose runs FOLDER holds."""
    runs: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in read_results(folder):
        judged = result["evaluations"] or len(result["looks"]) > result["onset"]
        if result["ended"] != OUT_OF_TIME and judged:
            runs[result["study"]][result["kind"]].append(result)
    tables = {"drill": drill_lines, "healthy": healthy_lines, "long": long_lines, "claims": claim_lines,
              "recipe": recipe_lines, "turns": turns_lines, "regime": regime_lines}
    for study in (name for name in runs if name.partition("-")[0] in tables):
        click.echo("\n".join([f"\n{study}", *tables[study.partition("-")[0]](runs[study])]))


def drill_lines(kinds: dict[str, list[Result]]) -> Iterable[str]:
    """Of every way to break a run: whether and when it fired, what was lost by then, and at the worst.

    In time: no more than a fifth was lost, or that happened in this very iteration.
    """
    yield ("| broken by | fired | in time | iterations after onset | pass@1 lost by then | at worst "
           "| before onset | by |")
    yield "|---|---|---|---|---|---|---|---|"
    for kind, runs in kinds.items():
        caught = [(run, moment) for run in runs for moment in [first_alarm(run)] if moment is not None]
        delays = [moment - run["onset"] for run, moment in caught]
        lost = [lost_by(run, moment) for run, moment in caught]
        signals = Counter(alarm.partition("@")[0] for run, moment in caught
                          for alarm in run["looks"][moment]["fired"])
        early = sum(bool(run["looks"][run["onset"] - 1]["fired"]) for run in runs if run["onset"])
        prompt = sum(moment == run["onset"] or min(lost_by(run, moment), lost_by(run, moment - 1)) <= 0.2
                     for run, moment in caught)
        yield (f"| {kind} | {len(delays)} of {len(runs)} | {prompt} | {shown(delays, '.0f')} | "
               f"{shown(lost, '.0%')} | {median(lost_by(run, None) for run in runs):.0%} | {early} | "
               f"{', '.join(name for name, _ in signals.most_common(4))} |")


def shown(values: list[float], style: str) -> str:
    """Median and largest."""
    return f"{median(values):{style}}, {max(values):{style}}" if values else ""


def first_alarm(run: Result) -> int | None:
    """The first iteration from the onset on after which an alarm stood for an iteration since then."""
    onset = run["onset"]
    return next((place for place, look in enumerate(run["looks"]) if place >= onset
                 and any(int(alarm.rpartition("-")[2]) >= onset for alarm in look["fired"])), None)


def lost_by(run: Result, moment: int | None) -> float:
    """Share of the best pass@1 that is gone at an iteration; None: at the worst that came."""
    curve = [row[SOLVING] for row in run["curves"]]
    if moment is None:
        return min(1.0, max(1 - curve[place] / max(curve[:place + 1])
                            for place in range(run["onset"], len(curve))))
    moment = max(0, min(moment, len(curve) - 1))
    return min(1.0, 1 - curve[moment] / max(curve[:moment + 1]))


def healthy_lines(kinds: dict[str, list[Result]]) -> Iterable[str]:
    """Of every healthy setting: what it reached, and what fired or was raised."""
    yield "| setting | pass@1, first and last two | fired | signals |"
    yield "|---|---|---|---|"
    for kind, runs in kinds.items():
        first, last = (mean(mean(row[SOLVING] for row in run["curves"][part]) for run in runs)
                       for part in (slice(0, 2), slice(-2, None)))
        fired = [{alarm.partition("@")[0] for look in run["looks"] for alarm in look["fired"]}
                 for run in runs]
        signals = Counter(name for names in fired for name in names)
        names = ", ".join(f"{name} {count}" for name, count in signals.most_common())
        yield f"| {kind} | {first:.2f}, {last:.2f} | {sum(map(bool, fired))} of {len(runs)} | {names} |"


def long_lines(kinds: dict[str, list[Result]]) -> Iterable[str]:
    """pass@1 of every fourth iteration."""
    for kind, runs in kinds.items():
        for run in runs:
            curve = [row[PLAIN] for row in run["curves"]]
            points = " ".join(f"{value:.2f}" for value in curve[::4] + curve[-1:])
            yield (f"{kind} {run['seed']}: {points}"
                   f"; {len(run['looks'])} iterations, {run['ended'][:60]}; first alarm {first_alarm(run)}")


def regime_lines(kinds: dict[str, list[Result]]) -> Iterable[str]:
    """Of every arm, by seed: when a fifth of pass@1 was lost, what fired first, and held-out pass@k."""
    yield ("| arm | iterations until a fifth of the best pass@1 was lost | best pass@1, and at the end "
           "| fired first | held-out pass@1 | pass@8 |")
    yield "|---|---|---|---|---|---|"
    for kind, runs in kinds.items():
        runs.sort(key=lambda run: run["seed"])
        curves = [smooth([row[PLAIN] for row in run["curves"]]) for run in runs]
        lasted = [lost_at(curve) for curve in curves]
        ends = ", ".join(f"alive at {len(curve) + 9}" if moment is None else str(moment + 9)
                         for curve, moment in zip(curves, lasted, strict=True))
        levels = ", ".join(f"{max(curve):.2f} {curve[-1]:.2f}" for curve in curves)
        first = "; ".join(", ".join(list(by_time(run["looks"][-1]["fired"]))[:3]) or "none" for run in runs)
        cells = []
        for k in (1, 8):
            values = by_task([run for run in runs if run["evaluations"]], k)
            low, high = np.quantile(resampled(values), [0.025, 0.975]) if len(values) else (0, 0)
            cells.append(f"{values.mean():.3f} ({low:.3f} .. {high:.3f})" if len(values) else "not measured")
        yield f"| {kind} | {ends} | {levels} | {first} | {' | '.join(cells)} |"


def smooth(curve: list[float]) -> list[float]:
    """Mean of each value and the nine before it, from the tenth on."""
    return [mean(curve[place - 9:place + 1]) for place in range(9, len(curve))]


def lost_at(curve: list[float]) -> int | None:
    """The first place at which a fifth of the best so far is gone."""
    return next((place for place in range(len(curve)) if curve[place] < 0.8 * max(curve[:place + 1])), None)


def by_time(alarms: list[str]) -> list[str]:
    """Alarms signal@first-last in the order in which they began."""
    return sorted(alarms, key=lambda alarm: int(alarm.partition("@")[2].partition("-")[0]))


def claim_lines(kinds: dict[str, list[Result]]) -> Iterable[str]:
    """pass@1 of the last policy on all tasks, and the same less what rows of its own policy gave the loss."""
    yield "| staleness: setting | pass@1: mean | by seed | less staleness 0, same seeds |"
    yield "|---|---|---|---|"
    measured = {kind: {run["seed"]: np.array([right / number for _, number, right in sorted(run["final"])])
                       for run in runs if run["ended"] == "done"} for kind, runs in kinds.items()}
    for kind, own in sorted((kind, own) for kind, own in measured.items() if own):
        loss = kind.split()[1].rstrip(",")
        beside = {"three": "0: dapo token-truncate"}.get(loss) or next(
            (name for name in (f"0: {loss} token-truncate", f"0: {loss}") if name in measured), kind)
        fresh = measured.get(beside, {}) if beside != kind else {}
        values, less = {seed: own[seed].mean() for seed in sorted(own)}, ""
        if seeds := sorted(own.keys() & fresh.keys()):
            gains = np.array([own[seed] - fresh[seed] for seed in seeds])[..., None]
            [[low], [high]] = intervals(gains)
            less = f"{gains.mean():+.3f} ({low:+.3f} .. {high:+.3f})"
        of_seeds = ", ".join(f"{value:.3f}" for value in values.values())
        yield f"| {kind} | {mean(values.values()):.3f} | {of_seeds} | {less} |"


def recipe_lines(kinds: dict[str, list[Result]]) -> Iterable[str]:
    """Held-out pass@1 and pass@16, and their gain over the base with 95% bootstrap intervals over tasks."""
    base = {k: by_task(kinds["base"], k) for k in (1, 16)}
    yield "| recipe | seeds | pass@1 | gain | pass@16 | gain | training pool, last three |"
    yield "|---|---|---|---|---|---|---|"
    for kind, runs in kinds.items():
        cells = []
        for k in (1, 16):
            values = by_task(runs, k)
            gain = values - base[k]
            low, high = np.quantile(resampled(gain), [0.025, 0.975])
            cells.append(f"{values.mean():.3f} | {gain.mean():+.3f} ({low:+.3f} .. {high:+.3f})")
        pool = mean([row[PLAIN] for run in runs for row in run["curves"][-3:]] or [0])
        yield f"| {kind} | {len(runs)} | {' | '.join(cells)} | {pool:.3f} |"


def turns_lines(kinds: dict[str, list[Result]]) -> Iterable[str]:
    """Held-out tasks after each arm, and the second arm less the first with 95% intervals.

    Seeds of both arms, and tasks, are drawn with replacement together.
    """
    yield ("| trained on | seeds | tokens sampled to train | pass@1 | pass@16 | solved by 128 | by 64 + 64 "
           "| right answers |")
    yield "|---|---|---|---|---|---|---|---|"
    measured = {}
    for kind, runs in kinds.items():
        runs.sort(key=lambda run: run["seed"])
        measured[kind] = np.array([turn_measures(run) for run in runs])
        tokens = mean(sum(row[2] for row in run["sampled"] if row[0].startswith("train")) for run in runs)
        answers = [(right, number) for run in runs for _, number, right in run["answers"]]
        cells = " | ".join(f"{value:.3f}" for value in measured[kind].mean(axis=(0, 1)))
        yield (f"| {kind} | {len(runs)} | {tokens:,.0f} | {cells} | "
               f"{sum(right for right, _ in answers) / sum(number for _, number in answers):.3f} |")
    for other in ("first turns", "first turns, equal tokens"):
        first, both = ({run["seed"]: place for place, run in enumerate(kinds.get(kind, []))}
                       for kind in (other, "both turns"))
        if seeds := sorted(first.keys() & both.keys()):
            yield f"both turns less {other}:"
            yield from gain_lines(np.array([measured["both turns"][both[seed]] - measured[other][first[seed]]
                                            for seed in seeds]))


def gain_lines(gains: np.ndarray) -> Iterable[str]:
    """Mean gains with 95% intervals over seeds and tasks; gains are [seeds, tasks, measures]."""
    lows, highs = intervals(gains)
    for place, name in enumerate(("pass@1", "pass@16", "solved by 128", "by 64 + 64")):
        of_seeds = ", ".join(f"{gain:+.3f}" for gain in gains[:, :, place].mean(axis=1))
        yield (f"{name}: {gains[:, :, place].mean():+.3f} ({lows[place]:+.3f} .. {highs[place]:+.3f}); "
               f"by seed {of_seeds}")


def intervals(gains: np.ndarray) -> np.ndarray:
    """95% intervals [2, measures] of the means of [seeds, tasks, measures], both drawn with replacement."""
    draws, (num_seeds, num_tasks, _) = np.random.default_rng(0), gains.shape
    means = [gains[draws.integers(0, num_seeds, num_seeds)][
        :, draws.integers(0, num_tasks, num_tasks)].mean(axis=(0, 1)) for _ in range(4000)]
    return np.quantile(np.array(means), [0.025, 0.975], axis=0)


def turn_measures(run: Result) -> list[tuple[float, ...]]:
    """Of every held-out task pass@1, pass@16, and whether 128 first turns, or 64 and 64 answers, solve it."""
    early, answered = dict(run["parents"]), {task: right for task, _, right in run["answers"]}
    return [(c / n, 1 - comb(n - c, 16) / comb(n, 16), c > 0, early[task] + answered.get(task, 0) > 0)
            for _, task, n, c in sorted(run["evaluations"])]


def by_task(runs: list[Result], k: int) -> np.ndarray:
    """Unbiased pass@k of every held-out task, mean over runs; arXiv 2107.03374 eq. 1."""
    values: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for _, task, n, c in run["evaluations"]:
            values[task].append(1 - comb(n - c, k) / comb(n, k))
    return np.array([mean(values[task]) for task in sorted(values)])


def resampled(values: np.ndarray, resamples: int = 4000) -> np.ndarray:
    """Means of values drawn with replacement."""
    places = np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    return values[places].mean(axis=1)


if __name__ == "__main__":
    main()
