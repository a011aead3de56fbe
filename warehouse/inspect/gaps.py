"""Tokens on which engine and trainer disagree most, shown in their text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.sql.catalog import condition, quoted
from warehouse.sql.database import Connection, rows_of
from warehouse.sql.vocabulary import load_tokenizer
from warehouse.store.errors import StageError
from warehouse.store.names import completion_name
from warehouse.store.run_folder import Warehouse

WORST = """
SELECT $1::INTEGER AS trained_iteration,
       task_id, sample_index, iteration, purpose, position, token_id, behaviour_logprob, old_logprob, gap,
       policy_version, engine, host
FROM token_gaps($1) WHERE {keys} ORDER BY abs(gap) DESC, task_id, sample_index, position LIMIT $2
"""
# The completions with the largest maximal gap hold the largest gaps: tokens of others are not read.
HOLDERS = """
SELECT iteration, purpose, task_id, sample_index FROM train_samples
WHERE trained_iteration = $1 AND log_ratio_abs_max IS NOT NULL
ORDER BY log_ratio_abs_max DESC, iteration, purpose, task_id, sample_index LIMIT $2"""
KEY = ("iteration", "purpose", "task_id", "sample_index")
CONTEXT = 12  # tokens on each side
AROUND = f"""
SELECT completion_ids[greatest($5 - {CONTEXT} + 1, 1):$5] AS before,
       completion_ids[$5 + 2:$5 + 1 + {CONTEXT}] AS after
FROM completions WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4"""


class Gap(NamedTuple):
    """A token on which engine and trainer disagree: its row of WORST, and the surrounding text."""

    row: dict[str, Any]
    before: str
    token: str
    after: str

    @property
    def name(self) -> str:
        """The name of its completion, as `score explain` takes it."""
        return completion_name(*(self.row[key] for key in KEY))


def worst_gaps(warehouse: Warehouse, connection: Connection, iteration: int | None, num: int) -> list[Gap]:
    """The tokens of a training iteration with the largest gaps; by default of the last one."""
    if iteration is None:
        trained = rows_of(connection, "SELECT max(trained_iteration) AS latest FROM train_samples")
        iteration = trained[0]["latest"]
    holders = rows_of(connection, HOLDERS, [iteration, num]) if iteration is not None else []
    rows = rows_of(connection, WORST.format(keys=among(holders)), [iteration, num]) if holders else []
    if not rows:
        raise StageError("No old logprobs are stored for that iteration. Run `train` on it first.")
    decode, gaps = decoder(warehouse, connection), []
    for row in rows:
        [around] = rows_of(connection, AROUND, [row[key] for key in (*KEY, "position")])
        gaps.append(Gap(row, decode(around["before"]), decode([row["token_id"]]), decode(around["after"])))
    return gaps


def among(holders: list[dict[str, Any]]) -> str:
    """The condition that a row is of these completions; iterations come first, so other files stay unread."""
    def key_of(row: dict[str, Any]) -> str:
        return ", ".join(quoted(row[name]) if isinstance(row[name], str) else str(row[name]) for name in KEY)

    keys = ", ".join(f"({key_of(row)})" for row in holders)
    chosen = condition({name: sorted({str(row[name]) for row in holders}) for name in KEY[:2]})
    return f"{chosen} AND ({', '.join(KEY)}) IN ({keys})"


def decoder(warehouse: Warehouse, connection: Connection) -> Callable[[list[int]], str]:
    """Token ids to text: with the base model's tokenizer.json, else token by token with the run's vocabulary.

    If neither is available, the bare ids.
    """
    path = Path(warehouse.model) / "tokenizer.json"
    if path.exists():
        tokenizer = load_tokenizer(path)
        return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
    texts = {row["token_id"]: row["token"] for row in rows_of(connection, "FROM vocabulary")}
    if not texts:
        return lambda ids: " ".join(map(str, ids)) + " "
    return lambda ids: "".join(texts.get(number, f"<{number}>") for number in ids)
