"""Which completions a person should look at, and everything the page shows about each."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from warehouse.inspect.alarms import Alarm
from warehouse.inspect.show import find_completion
from warehouse.sql.database import Connection, explain_errors, rows_of

LONGEST_TEXT = 2000

KEYS = "iteration, purpose, task_id, sample_index"
# Each query gives keys only, from scalar columns; the texts of the few chosen are fetched afterwards.
PICKS = {
    "alarm": ("Shows an alarm", ""),
    "right": ("Right", f"""
        SELECT {KEYS} FROM samples WHERE iteration = $last AND purpose = 'train' AND correct
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY sample_index) = 1
        ORDER BY task_id LIMIT 8"""),
    "nearly": ("Highest reward, not right", f"""
        SELECT {KEYS} FROM samples
        WHERE iteration = $last AND purpose = 'train' AND NOT correct AND reward IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY reward DESC, sample_index) = 1
        ORDER BY reward DESC, task_id LIMIT 6"""),
    "new": ("Newly solved", f"""
        SELECT {KEYS} FROM samples
        JOIN (SELECT task_id, first_solved FROM task_history WHERE first_solved > first_iteration
              ORDER BY first_solved DESC, task_id LIMIT 6) AS solved USING (task_id)
        WHERE iteration = first_solved AND purpose = 'train' AND correct
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY sample_index) = 1
        ORDER BY iteration DESC, task_id"""),
    "forgotten": ("Forgotten", f"""
        SELECT {KEYS} FROM samples
        JOIN (SELECT task_id, last_iteration FROM task_history WHERE forgotten
              ORDER BY best_rate DESC, task_id LIMIT 6) AS lost USING (task_id)
        WHERE iteration = last_iteration AND purpose = 'train'
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY reward DESC NULLS LAST, sample_index) = 1
        ORDER BY task_id"""),
    "truncated": ("Truncated", f"""
        SELECT {KEYS} FROM samples WHERE purpose = 'train' AND truncated
        ORDER BY iteration DESC, task_id, sample_index LIMIT 6"""),
    "loops": ("Loops", f"""
        SELECT {KEYS} FROM samples WHERE purpose = 'train' AND (loop_tokens >= 32 OR finish_reason = 'loop')
        ORDER BY iteration DESC, loop_tokens DESC, task_id, sample_index LIMIT 6"""),
    "failed": ("Failed", f"""
        SELECT {KEYS} FROM samples
        WHERE iteration = $last AND purpose = 'train' AND error_class IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY error_class, error_name ORDER BY task_id, sample_index) = 1
        ORDER BY error_class, error_name LIMIT 8"""),
    "evaluation": ("Evaluation", f"""
        SELECT {KEYS} FROM (
            SELECT {KEYS} FROM samples
            WHERE purpose LIKE 'eval%'
              AND iteration = (SELECT max(iteration) FROM scorers WHERE purpose LIKE 'eval%')
            QUALIFY row_number() OVER (PARTITION BY purpose, task_id ORDER BY correct DESC, sample_index) = 1)
        QUALIFY row_number() OVER (PARTITION BY purpose ORDER BY task_id) <= 6
        ORDER BY purpose, task_id"""),
}


class Sample(NamedTuple):
    """A completion for the browser: why it was chosen, its row, its prompt and its task."""

    kinds: list[str]
    row: dict[str, Any]
    prompt: str
    payload: dict[str, Any]
    outputs: dict[str, Any]


def chosen_samples(connection: Connection, alarms: Sequence[Alarm] = ()) -> list[Sample]:
    """The completions worth a look, each once, with every reason it was chosen for."""
    from tqdm import tqdm
    query = "SELECT max(iteration) AS last FROM scorers WHERE purpose = 'train'"
    last = rows_of(connection, query)[0]["last"]
    reasons: dict[tuple[Any, ...], list[str]] = {}
    for alarm in alarms:
        for task, index in alarm.examples:
            reasons.setdefault((alarm.first_iteration, alarm.purpose, task, index), ["alarm"])
    for kind, (_, query) in PICKS.items():
        if not query:
            continue
        parameters = {"last": -1 if last is None else last} if "$last" in query else {}
        with explain_errors():
            keys = connection.execute(query, parameters).fetchall()
        for key in keys:
            reasons.setdefault(key, []).append(kind)
    samples = [_sample(connection, key, kinds) for key, kinds in tqdm(
        reasons.items(), desc="samples", unit="sample", leave=False, disable=None)]
    return [sample for sample in samples if sample]


def _sample(connection: Connection, key: tuple[Any, ...], kinds: list[str]) -> Sample | None:
    """Everything about a completion; None where its text is not at hand."""
    iteration, purpose, task, _index = key
    row = find_completion(connection, *key)
    if row is None:
        return None
    prompt = rows_of(connection, "SELECT prompt FROM prompts WHERE iteration = $1 AND purpose = $2 AND "
                                 "group_id = $3", [iteration, purpose, row["group_id"]])
    payload = rows_of(connection, "SELECT payload FROM tasks WHERE task_id = $1", [task])
    return Sample(kinds, row, prompt[0]["prompt"] if prompt else "",
                  _parse(payload[0]["payload"] if payload else None), _parse(row["outputs"]))


def _parse(text: str | None) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}


def shorten(text: str, most: int = LONGEST_TEXT) -> str:
    """Text cut in its middle, so that both how it begins and how it ends can be read."""
    if len(text) <= most:
        return text
    return f"{text[:most // 2]}\n[... {len(text) - most:,} characters ...]\n{text[-most // 2:]}"
