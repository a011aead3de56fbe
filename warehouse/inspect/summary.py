"""One screen about a run: a row per iteration, sparklines of trends, evaluations apart."""

from collections.abc import Iterable
from typing import Any

from warehouse.inspect.advice import advise, settings_between
from warehouse.inspect.alarms import alarm_count_lines, last_rollback, raised_alarms
from warehouse.inspect.render import mean, short_share, stretches
from warehouse.inspect.story import cost_lines, story_lines
from warehouse.ledger.entries import Branched, RolledBack, TasksChanged
from warehouse.ledger.state import RunState
from warehouse.sql.database import Connection, rows_of
from warehouse.sql.inventory import Inventory, table_of
from warehouse.store.errors import StageError, counted
from warehouse.store.names import is_of
from warehouse.store.run_folder import Warehouse

BARS = "▁▂▃▄▅▆▇█"
TRENDS = {"pass_at_1": "pass@1", "pass_at_k": "pass@{k}", "reward_mean": "reward",
          "truncated_share": "truncated", "tokens_mean": "tokens"}
# KL(mu, pi_old): for rows of the trained policy the engine's mismatch only, else also the steps between.
GAPS = {"mismatch_kl_fresh": "mismatch", "off_policy_kl": "off-policy"}
STAGES = ("rollout", "score", "train")
QUERY = """
SELECT iteration, purpose, pass_at_1, max_k, pass_at_max_k, reward_mean, truncated_share, tokens_mean,
       mismatch_kl_fresh, CASE WHEN mismatch_kl_fresh IS NULL THEN mismatch_kl END AS off_policy_kl,
       zero_variance_share, num_completions, num_tasks, num_missing, scorer, own_reward, rollout, score,
       train, iteration IN (FROM given_up) AS given_up
FROM iteration_stats
LEFT JOIN (SELECT iteration, coalesce(purpose, 'train') AS purpose,
                  coalesce(bool_or(settings ->> '$.user_code' IS NOT NULL) FILTER (stage = 'score'), false)
                      AS own_reward,
                  sum(seconds) FILTER (stage = 'rollout' AND purpose = 'train') AS rollout,
                  sum(seconds) FILTER (stage = 'score' AND purpose = 'train') AS score,
                  sum(seconds) FILTER (stage = 'train') AS train
           FROM stages WHERE scorer IS NULL OR stage <> 'score' OR (iteration, purpose, scorer) IN (
               SELECT (iteration, purpose, scorer) FROM scorers WHERE chosen)
           GROUP BY ALL) USING (iteration, purpose)
WHERE {where} ORDER BY iteration, purpose
"""
REACH = """
SELECT iteration, k, pass_at_k FROM pass_curve JOIN iteration_stats USING (iteration, purpose)
WHERE purpose = 'train' AND k = k_of('train') AND k BETWEEN 2 AND max_k ORDER BY iteration
"""
PARTS = """
SELECT part, list(CASE WHEN iteration NOT IN (FROM given_up) THEN mean END ORDER BY iteration) AS means
FROM part_means WHERE purpose = 'train' GROUP BY part HAVING count(*) > 1 ORDER BY part
"""


def summary_lines(warehouse: Warehouse, connection: Connection, inventory: Inventory,
                  last: int = 20) -> list[str]:
    """The screen: what the run is, trends, last iterations, evaluations, unfinished stages, what is next."""
    rows = rows_of(connection, QUERY.format(where="true"))
    train = [row for row in rows if row["purpose"] == "train"]
    evaluations = [row for row in rows if row["purpose"] != "train"]
    alarms = raised_alarms(connection, since=last_rollback(warehouse), examples=False)
    lines = [_title(warehouse, connection, inventory), *turning_points(warehouse.state),
             *story_lines(connection, alarms), *advise(warehouse, connection, alarms).lines]
    if train:
        trends = [*_trends(train, rows_of(connection, REACH)), *_parts(connection), ""]
        lines += ["", *trends] if len(train) > 1 else [""]
        lines += _table(train[-last:], "iteration")
        if len(train) > last:
            lines.append(f"({counted(len(train) - last, 'earlier iteration')}: --last {len(train)})")
    if evaluations:
        lines += ["", *_table(evaluations[-last:], "evaluation")]
    spent = cost_lines(warehouse, connection)
    lines += [*(["", *spent] if spent else []), *_remarks(rows, inventory)]
    despite = ", if it is to go on despite the alarm" if any(alarm.fired for alarm in alarms) else ""
    state = warehouse.state
    due = f"Next{despite}: {state.due().stage} {state.run}"
    lines += ["", *(f"Open again since a repair: {state.again(life)}" for life in state.reopened),
              due if rows else f"Nothing is scored yet. {due}"]
    return [*lines, *alarm_count_lines(warehouse, alarms)]


def summary_facts(warehouse: Warehouse, connection: Connection) -> dict[str, Any]:
    """The same for programs: docs/reference/json.md lists the keys."""
    alarms = raised_alarms(connection, since=last_rollback(warehouse), examples=False)
    state = warehouse.state
    return {"run": str(warehouse.root), "run_id": warehouse.run_id, "model": warehouse.model,
            "entry": state.head, "policy": state.newest, "next": state.due()._asdict(),
            "iterations": rows_of(connection, QUERY.format(where="true")),
            "alarms": [alarm._asdict() for alarm in alarms]}


def iteration_rows(connection: Connection, iteration: int, purpose: str = "train") -> list[dict[str, Any]]:
    """The numbers of one iteration, or of each of its evaluations; StageError if it is not scored."""
    found = rows_of(connection, QUERY.format(where=f"iteration = {int(iteration)}"))
    if rows := [row for row in found if is_of(row["purpose"], purpose)]:
        return rows
    others = ", ".join(row["purpose"] for row in found)
    raise StageError(f"Iteration {iteration} ({purpose}) has no complete scores to sum up. " + (
        f"It has those of --purpose {others}." if others else "Run `score` on it first."))


def line_of(row: dict[str, Any]) -> str:
    pieces = [f"iteration {row['iteration']}" + ("" if row["purpose"] == "train" else f"  {row['purpose']}")]
    if row["own_reward"] and row["reward_mean"] is not None:
        pieces.append(f"reward {row['reward_mean']:.3f}")
    pieces += [f"pass@1 {short_share(row['pass_at_1'])}"] if row["pass_at_1"] is not None else []
    if row["max_k"] and row["max_k"] > 1:
        pieces.append(f"pass@{row['max_k']} {short_share(row['pass_at_max_k'])}")
    pieces.append(f"truncated {short_share(row['truncated_share'])}")
    pieces += [f"{name} {row[key]:.1e}" for key, name in GAPS.items() if row[key] is not None]
    pieces += ["no group with different rewards"] if row["zero_variance_share"] == 1 else []
    pieces += [f"{stage} {row[stage]:.1f} s" for stage in STAGES if row[stage] is not None]
    return "  ".join(pieces)


def latest_iteration(connection: Connection, purpose: str = "train") -> int:
    scored = [row["iteration"] for row in rows_of(connection, "SELECT iteration, purpose FROM scorers")
              if is_of(row["purpose"], purpose)]
    if not scored:
        raise StageError(f"Nothing of purpose '{purpose}' is scored yet. Run `score` first.")
    return max(scored)


def sparkline(values: list[float | None], width: int = 60) -> str:
    """Values as a line of bars between their minimum and maximum; a gap for a missing value."""
    # The mean of each stretch, so that a short spike still shows.
    values = [mean(values[first:end]) for first, end in stretches(len(values), width)]
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(" " if value is None else BARS[round((value - low) / span * 7) if span else 0]
                   for value in values)


def _title(warehouse: Warehouse, connection: Connection, inventory: Inventory) -> str:
    [row] = rows_of(connection, "SELECT count(*) AS num_tasks FROM tasks")
    num_completions = sum(held.manifest["facts"].get("num_completions", 0) for held in inventory.stages
                          if held.manifest and held.stage.name == "rollout")
    parts = {part: facts for held in inventory.stages for part, facts in held.parts.items()}
    parts |= {part: {} for part in inventory.parts["tasks"]}
    size = sum(facts["bytes"] if facts else part.stat().st_size for part, facts in parts.items()
               if facts or part.exists())
    return (f"{warehouse.root}  base {warehouse.base_name}  {counted(row['num_tasks'], 'task', ',')}  "
            f"{counted(num_completions, 'completion', ',')}  {size / 1e6:,.1f} MB of rows  "
            f"policies 0..{warehouse.state.newest}{_rollbacks(warehouse.state)}")


def _rollbacks(state: RunState) -> str:
    """Which policies repeat earlier ones, as ` (11 is 7 again)`; '' if the run never went back."""
    again = [f"{version} is {to} again" for version in state.versions
             if (to := state.policies[version].rolled_back_to) is not None]
    return f" ({', '.join(again)})" if again else ""


def turning_points(state: RunState) -> list[str]:
    """One line per change of the tasks and per rollback: to which policy, why, and the settings since.

    In a branch those of the parent count that led to its policies.
    """
    lines, trained = [], state.of_stage("train")
    branched = max((number for number, entry in state.entries.items() if isinstance(entry.what, Branched)),
                   default=-1)
    repeated = {policy.rolled_back_to for policy in state.policies.values()}
    for number, entry in sorted(state.entries.items()):
        begun = [life.iteration for life in state.of_stage("rollout", purpose="train") if life.begun < number]
        if isinstance(entry.what, TasksChanged) and (added := entry.what.change.get("added")) and begun:
            lines.append(f"{counted(len(added), 'task')} added after iteration {max(begun)}")
        if not isinstance(entry.what, RolledBack) or (number < branched and entry.what.to not in repeated):
            continue
        line = f"Went back to policy {entry.what.to}" + (f": {entry.what.why}" if entry.what.why else "")
        later = next((life for life in trained if life.begun > number), None)
        if later:
            former = [life for life in trained if life.begun < number][-1:]
            changed = settings_between(former[0], later) if former else []
            if (factor := state.rate(later.iteration)) != 1:
                changed.insert(0, f"learning rate {later.settings['learning_rate'] * factor:g}")
            line += f"; {', '.join(changed)} from iteration {later.iteration} on" if changed else ""
        lines.append(line)
    return lines


def _trends(rows: list[dict[str, Any]], reached: list[dict[str, Any]]) -> list[str]:
    """Sparklines over iterations, with gaps where a rollback gave one up.

    pass@k has one k, and a gap if fewer than nine of ten tasks have it.
    """
    lines, passes = [], {row["iteration"]: row["pass_at_k"] for row in reached}
    for key, name in (TRENDS | GAPS).items():
        values = [None if row["given_up"] else passes.get(row["iteration"]) if key == "pass_at_k" else
                  row[key] for row in rows]
        known = [value for value in values if value is not None]
        if known:
            if len({_short(key, value) for value in known}) == 1:       # no curve of what no digit shows
                values = [None if value is None else known[0] for value in values]
            lines.append(f"{name.format(k=reached[0]['k'] if reached else ''):<10} {sparkline(values)}  "
                         f"{_short(key, known[0])} → {_short(key, known[-1])}")
    return lines


def _parts(connection: Connection) -> list[str]:
    """Sparklines of the parts of the reward, if it has several."""
    parts = rows_of(connection, PARTS)
    lines = [f"{row['part']:<10} {sparkline(row['means'])}  {known[0]:.2g} → {known[-1]:.2g}"
             for row in parts if (known := [mean for mean in row["means"] if mean is not None])]
    return ["parts of the reward:", *lines] if len(lines) > 1 else []


def _table(rows: list[dict[str, Any]], kind: str) -> list[str]:
    sizes = sorted({row["max_k"] for row in rows if row["max_k"]})
    top = f"pass@{sizes[-1]}" if len(sizes) == 1 else "pass@max"
    # Measures and their heads, which are as wide as the column.
    heads = {"pass_at_1": " pass@1", "pass_at_max_k": f"{top:>8}", "reward_mean": " reward",
             "truncated_share": "truncated", "tokens_mean": " tokens", "zero_variance_share": "zero-var"}
    if sizes == [1]:
        del heads["pass_at_max_k"]
    if kind == "iteration":
        gaps = [key for key in GAPS if any(row[key] is not None for row in rows)] or ["mismatch_kl_fresh"]
        heads |= {key: f"{GAPS[key]:>10}" for key in gaps}
        heads |= {"rollout": " rollout", "score": "  score", "train": "  train"}
    purpose_width = max(len(row["purpose"]) for row in rows)

    def line(iteration: int | str, purpose: str, cells: Iterable[str]) -> str:
        which = "" if kind == "iteration" else f"  {purpose:<{purpose_width}}"
        return " ".join([f"{iteration:>9}{which}", *cells])

    return [line("iteration", "purpose", heads.values()),
            *(line(row["iteration"], row["purpose"], (
                *(f"{_short(key, row[key], digits=1 if key == 'tokens_mean' else 2):>{len(head)}}"
                  for key, head in heads.items()), *([" given up"] if row["given_up"] else [])))
              for row in rows)]


def _remarks(rows: list[dict[str, Any]], inventory: Inventory) -> list[str]:
    lines = []
    if missing := sum(row["num_missing"] for row in rows):
        lines.append(f"{counted(missing, 'reward', ',')} left out, not measured (reward is null).")
    scorers = sorted({row["scorer"] for row in rows})
    if len(scorers) > 1:
        lines.append(f"Several scorers: {', '.join(scorers)}. Rewards of different scorers do not "
                     "compare; choose one in config.toml ([warehouse] scorer) or read all_samples.")
    unfinished = {(table_of(held.stage, part), held.stage.identity["iteration"],
                   held.stage.identity.get("purpose", ""))
                  for held in inventory.stages if held.manifest is None for part in held.parts
                  if not (held.stage.life and held.stage.warehouse.state.is_given_up(held.stage.life))}
    for table, iteration, purpose in sorted(unfinished):
        lines.append(f"Under way: {table} of iteration {iteration}" + (f", {purpose}" if purpose else "")
                     + " (left out until its stage is complete; `warehouse sql --partial` includes it)")
    return ["", *lines] if lines else []


def _short(key: str, value: float | None, digits: int = 2) -> str:
    """A measure in few characters; '' if it is missing."""
    if value is None:
        return ""
    if key in GAPS:
        return f"{value:.1e}"
    if key in STAGES:
        return f"{value:.1f} s"
    return short_share(value) if key.startswith("pass") or key.endswith("share") else f"{value:.{digits}f}"
