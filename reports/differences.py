"""What differs between runs: settings as a table, and gains as sentences that say which are beyond chance."""

from collections.abc import Sequence
from html import escape
from typing import Any

from reports.page import table
from reports.pairs import Pairing
from warehouse.inspect.results import paired_verdict
from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import counted
from warehouse.store.run_folder import Warehouse

SETTINGS_SQL = """\
SELECT $run AS run, stage, purpose, key, value, list(iteration ORDER BY iteration)::INTEGER[] AS iterations
FROM settings GROUP BY ALL"""
DIFFERENT_SQL = """\
WITH given AS (SELECT unnest($rows::STRUCT(run VARCHAR, stage VARCHAR, purpose VARCHAR, key VARCHAR,
                                           value VARCHAR, iterations INTEGER[])[], max_depth := 2)),
held AS (SELECT * EXCLUDE (iterations), unnest(iterations) AS iteration FROM given)
FROM differing_settings('held')"""
WIDEST = 60     # characters of a value
VERDICTS = {True: "beyond chance", False: "within chance", None: "too little to tell"}


def settings_notice(runs: Sequence[Warehouse], connections: Sequence[Connection],
                    names: Sequence[str]) -> str:
    """A table of the settings that differ, a column per run."""
    rows = [*_made_of(runs), *_setting_rows(differing_settings(connections, names), names)]
    if not rows:
        return '<p class="quiet">No setting of a complete stage differs.</p>'
    return table(["stage", "of", "setting", *names], rows)


def differing_settings(connections: Sequence[Connection], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of the view `settings_diff` over several runs that have connections of their own."""
    rows = [row for connection, name in zip(connections, names, strict=True)
            for row in rows_of(connection, SETTINGS_SQL, {"run": name})]
    return rows_of(connections[0], DIFFERENT_SQL, {"rows": rows}) if rows else []


def chance_notice(connection: Connection, first: str, pairings: Sequence[tuple[str, Pairing]]) -> str:
    """A sentence per pair of runs and what is paired: the gain, its interval, whether it is beyond chance."""
    lines = [gain_sentence(connection, first, name, pairing) for name, pairing in pairings]
    if len(lines) > 1:
        lines.append(f"Each of these {len(lines)} is judged by itself at 95%: where nothing differs, one of "
                     "twenty is beyond chance.")
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def gain_sentence(connection: Connection, first: str, name: str, pairing: Pairing) -> str:
    """What a run gains over the first on tasks in pairs, and whether that is beyond chance."""
    gains = [row["b"] - row["a"] for row in pairing.pairs]
    bounds, beyond = paired_verdict(connection, gains)
    interval = f" [{bounds[0]:+.3f}, {bounds[1]:+.3f}]" if bounds else ""
    return (f"{name} against {first}, {pairing.title}: pass@1 {sum(gains) / len(gains):+.3f}{interval} over "
            f"{counted(len(gains), 'task')}, {VERDICTS[beyond]}.")


def _made_of(runs: Sequence[Warehouse]) -> list[list[str]]:
    """Of the run itself what differs: base model, tokenizer, tasks."""
    facts = {"base model": [run.base_name for run in runs],
             "tokenizer": [str(run.facts.get("tokenizer_sha256"))[:12] for run in runs],
             "tasks": [str(run.state.tasks_sha256)[:12] for run in runs]}
    return [["run", "", name, *values] for name, values in facts.items() if len(set(values)) > 1]


def _setting_rows(different: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """A row per setting: stage, purposes where it is so, name, and what each run has."""
    cells: dict[tuple[str, str, str | None], dict[str, list[dict[str, Any]]]] = {}
    for row in different:
        place = row["stage"], row["key"], row["purpose"]
        cells.setdefault(place, {}).setdefault(row["run"], []).append(row)
    alike: dict[tuple[str, ...], list[str]] = {}
    for (stage, key, purpose), values in cells.items():
        shown = (stage, key, *(_values(values.get(name, [])) for name in names))
        alike.setdefault(shown, []).extend([purpose] if purpose else [])
    return [[row[0], ", ".join(purposes), *row[1:]] for row, purposes in alike.items()]


def _values(rows: Sequence[dict[str, Any]]) -> str:
    """The values of a run, each with its iterations where there are several."""
    if not rows:
        return ""
    shown = ["none" if row["value"] is None else _short(row["value"]) for row in rows]
    if len(rows) == 1:
        return shown[0]
    spans = [f"{row['first_iteration']}" if row["first_iteration"] == row["last_iteration"] else
             f"{row['first_iteration']}..{row['last_iteration']}" for row in rows]
    return ", ".join(f"{value} ({span})" for value, span in zip(shown, spans, strict=True))


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[:WIDEST - 2]}.."
