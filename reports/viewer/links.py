"""Addresses of pages, their parameters, and the targets of clicks on figures."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from reports.figures_learning import GROUP_KINDS
from warehouse.inspect.alarms import BY_REWARD, MISMATCH_SIGNALS, SHOWN_BY
from warehouse.sql.catalog import quoted
from warehouse.store.errors import StageError
from warehouse.store.names import completion_name

LONGEST = 10_000        # characters of a value
GAPS = ("mismatch", "ess", "ratios")
# The content of a figure's series, as a condition on the completions of the clicked iteration.
HOLDS = {
    ("shares", "truncated"): "truncated", ("shares", "no closed code block"): "NOT valid_code",
    ("shares", "no legal outputs"): "NOT valid_outputs",
    ("repetition", "ends in a loop"): "loop_tokens >= 32",
    ("length-split", "right"): "correct", ("length-split", "wrong"): "NOT correct",
    ("reward", "truncated"): "truncated", ("reward", "finished"): "NOT truncated",
}
FIRST_BY = {"lengths": "num_completion_tokens DESC", "entropy": "nll_sampled DESC",
            "repetition": "ngram4_unique_ratio", "reward": "reward DESC",
            "length-split": "num_completion_tokens DESC"}


def address(page: str, **query: Any) -> str:
    """A page of a run with its query; None and empty values are left out."""
    known = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{page}?{urlencode(known)}" if known else page


def completion(iteration: int, purpose: str, task_id: str, index: int) -> str:
    return address("completion", name=completion_name(iteration, purpose, task_id, index))


def iteration(number: int, purpose: str = "train", **query: Any) -> str:
    return address("iteration", iteration=number, purpose=purpose, **query)


def shows(signal: str, purpose: str, x: int) -> str:
    """The address of the completions that show a signal of an iteration best."""
    purpose = purpose or "train"
    table, condition, order = SHOWN_BY.get(signal, BY_REWARD)
    if signal in MISMATCH_SIGNALS:
        return address("gaps", iteration=x)
    if table == "samples":
        where = "" if condition == "true" else condition.replace("$1", str(x)).replace("$2", quoted(purpose))
        return iteration(x, purpose, where=where, order=order)
    where = ("(task_id, sample_index) IN (SELECT task_id, sample_index "
             f"FROM {table} WHERE trained_iteration = {x} AND iteration = {x} "
             f"AND purpose = {quoted(purpose)} AND {condition.replace('$1', str(x))} "
             f"ORDER BY {order} LIMIT 50)")
    return iteration(x, purpose, where=where)


def behind(figure: str, x: int, row: str = "", series: str = "") -> str:
    """The target of a click on a figure: at iteration x, on a row of a heat map or on a series."""
    if figure == "tasks" and row:
        return address("task", task=row)
    if figure in GAPS:
        return address("gaps", iteration=x)
    if figure == "alarms" and row:
        return shows(*row.partition(" ")[::2], x)
    if figure == "forgetting":
        return address("tasks", iteration=x)
    purpose = series.partition(", ")[2].replace("training", "train") if figure in ("passes", "reach") else ""
    where = HOLDS.get((figure, series), "")
    if figure == "errors" and series and series != "others":
        where = f"error_class = {quoted(series)}"
    if figure == "groups" and series in GROUP_KINDS:
        where = (f"group_id IN (SELECT group_id FROM groups WHERE {GROUP_KINDS[series]} "
                 f"AND iteration = {int(x)} AND purpose = 'train')")
    return iteration(x, purpose or "train", where=where, order=FIRST_BY.get(figure, ""))


class Query:
    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)

    def text(self, name: str, default: str | None = None) -> str:
        """A text; StageError if it is missing without a default."""
        value = self.values.get(name, default)
        if value is None:
            raise StageError(f"The address lacks '{name}'. Go there by a link of another page.")
        if len(value) > LONGEST or "\x00" in value:
            raise StageError(f"'{name}' of the address is not a text of up to {LONGEST:,} characters. "
                             "Shorten it.")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number from 0; StageError for anything else."""
        value = self.values.get(name, "" if default is None else str(default))
        if not (value.isdecimal() and value.isascii() and len(value) < 10):
            raise StageError(f"'{name}' of the address is '{value[:40]}', not a whole number. Correct it.")
        return int(value)
