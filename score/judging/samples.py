"""The rows of the samples table: verdict, facts and repetition metrics of each completion."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from score.judging.completions import Item
from score.judging.judge import Judgement, Terms
from score.rewards.scorer import Scorer
from score.tasks.measures import Answer
from warehouse.store.errors import StageError
from warehouse.store.schema import CUT_OFF, arrow_schema

COPIED = ("iteration", "purpose", "task_id", "sample_index", "group_id", "policy_version", "finish_reason",
          "num_prompt_tokens", "num_completion_tokens")
MAX_PERIOD, MIN_REPEATS = 64, 3              # of a repeating tail


def samples_table(completions: pa.Table, items: Sequence[Item], judgements: Sequence[Judgement],
                  terms: Sequence[Terms], scorer: Scorer, tier: str,
                  repetitions: Mapping[str, np.ndarray]) -> pa.Table:
    """One row per completion, in the order of the completions part."""
    columns: dict[str, Any] = {name: completions.column(name) for name in COPIED}
    reasons = completions.column("finish_reason").to_pylist()
    fingerprints = [judgement.measures.fingerprint for judgement in judgements]
    columns |= {"scorer": [scorer.identity] * len(items),
                "truncated": [reason in CUT_OFF for reason in reasons],
                "split": [item.split for item in items], "sandbox_tier": [tier] * len(items),
                "first_output": first_outputs(completions.column("group_id").to_pylist(), fingerprints)}
    columns |= logprob_columns(completions) | dict(repetitions)
    rows = [verdict_row(item.answer, judgement, own)
            for item, judgement, own in zip(items, judgements, terms, strict=True)]
    schema = arrow_schema("samples")
    columns |= {name: [row[name] for row in rows] for name in schema.names if name not in columns}
    return pa.table({name: columns[name] for name in schema.names}).cast(schema)


def verdict_row(answer: Answer, judgement: Judgement, terms: Terms) -> dict[str, Any]:
    """The columns of one completion that come from running it; null where infrastructure failed."""
    outcome, measures = judgement.outcome, judgement.measures
    values: dict[str, Any] = {"correct": measures.correct, "valid_outputs": measures.valid_outputs}
    for name, split in (("train", measures.train), ("test", measures.test)):
        values |= {f"{name}_pixel_score": split.pixel_score, f"{name}_correct_grids": split.correct_grids,
                   f"{name}_is_correct": split.is_correct}
    if measures.hidden:
        values |= dict.fromkeys(name for name in values if name == "correct" or name.startswith("test_"))
    return (dict.fromkeys(values) if outcome.infrastructure else values) | {
        "valid_code": measures.valid_code, "reward": None if terms is None else float(sum(terms.values())),
        "reward_parts": None if terms is None else json.dumps(terms),
        "fingerprint": measures.fingerprint, "outputs": measures.outputs, "code": storable(answer.code),
        "error_class": None if outcome.error_class is None else str(outcome.error_class),
        "error_name": outcome.error_name, "error_message": storable(outcome.error_message),
        "cpu_seconds": outcome.cpu_seconds, "wall_seconds": outcome.wall_seconds,
        "max_rss_mib": outcome.max_rss_mib, "extra": json.dumps(measures.metrics),
    }


def first_outputs(group_ids: Sequence[str], fingerprints: Sequence[str | None]) -> list[bool | None]:
    """Whether each completion is the first of its group with its outputs; null where it has none.

    Groups lie whole in one part, so counting these rows counts the different outputs of a group.
    """
    first: dict[tuple[str, str | None], int] = {}
    return [None if pair[1] is None else first.setdefault(pair, place) == place
            for place, pair in enumerate(zip(group_ids, fingerprints, strict=True))]


def storable(text: str | None) -> str | None:
    """Text as valid UTF-8: a lone surrogate in a program becomes an escape."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def logprob_columns(completions: pa.Table) -> dict[str, Any]:
    """Sum, smallest and minus mean of the behaviour logprobs; StageError where a logprob is not a number.

    All null for rows of no policy: a model behind an API gives no logprobs.
    """
    if completions.column("policy_version").null_count == len(completions):
        return dict.fromkeys(("logprob_sum", "logprob_min", "nll_sampled"), [None] * len(completions))
    values, lengths = flatten(completions, "behaviour_logprobs")
    if not np.all(np.isfinite(values)):
        raise StageError("A completion has a behaviour logprob that is missing or not finite: the rollout "
                         "that wrote it is damaged. Remove its part and run `rollout` again.")
    values = values.astype(np.float64)
    filled = lengths > 0
    starts = (np.cumsum(lengths) - lengths)[filled]
    sums, smallest = np.zeros(len(lengths)), np.zeros(len(lengths))
    sums[filled] = np.add.reduceat(values, starts)
    smallest[filled] = np.minimum.reduceat(values, starts)
    return {"logprob_sum": sums, "logprob_min": smallest, "nll_sampled": -sums / np.maximum(lengths, 1)}


def repetition_columns(completions: pa.Table) -> dict[str, np.ndarray]:
    tokens, lengths = flatten(completions, "completion_ids")
    unique4, top4 = ngram_shares(tokens, lengths, 4)
    return {"unique_token_ratio": ngram_shares(tokens, lengths, 1)[0],
            "ngram3_unique_ratio": ngram_shares(tokens, lengths, 3)[0],
            "ngram4_unique_ratio": unique4, "ngram4_top_share": top4,
            "loop_tokens": loop_tokens(tokens, lengths)}


def ngram_shares(tokens: np.ndarray, lengths: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Per completion, distinct n-grams over n-grams and the share of the most frequent one, each [B].

    Where there is no n-gram they are 1 and 0. `tokens` are the ids of all completions one after the other,
    `lengths` [B] how many belong to each.
    """
    rows, ends = np.repeat(np.arange(len(lengths)), lengths), np.repeat(np.cumsum(lengths), lengths)
    starts = np.flatnonzero(np.arange(len(tokens)) + size <= ends)
    grams = pa.table({"row": rows[starts], **{str(step): tokens[starts + step] for step in range(size)}})
    counts = grams.group_by(grams.column_names).aggregate([([], "count_all")])
    found = counts.group_by("row").aggregate([("count_all", name) for name in ("count", "sum", "max")])
    places, num_distinct, num_grams, most = (column.to_numpy() for column in found.columns)
    distinct, top = np.ones(len(lengths)), np.zeros(len(lengths))
    distinct[places], top[places] = num_distinct / num_grams, most / num_grams
    return distinct, top


def loop_tokens(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Tokens in the repeating tail, [B]: the longest end of period <= 64 with 3 periods or more; else 0."""
    ends = np.cumsum(lengths)
    longest = np.zeros(len(lengths), np.int64)
    position = np.arange(len(tokens))
    row_start = np.repeat(ends - lengths, lengths)
    last_differing = np.empty(len(tokens) + 1, np.int64)
    for period in range(1, min(MAX_PERIOD, int(lengths.max(initial=0)) // MIN_REPEATS) + 1):
        # A position differs when the token one period earlier is another or belongs to another completion.
        differs = position - period < row_start
        differs[period:] |= tokens[period:] != tokens[:-period]
        last_differing[0] = -1
        np.maximum.accumulate(np.where(differs, position, -1), out=last_differing[1:])
        equal_tail = ends - 1 - last_differing[ends]
        tail = np.where(lengths > 0, equal_tail + period, 0)
        longest = np.maximum(longest, np.where(tail >= MIN_REPEATS * period, tail, 0))
    return longest


def flatten(completions: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """All values of a list column one after the other, and the length of each list."""
    column = completions.column(name).combine_chunks()
    lengths = np.diff(column.offsets.to_numpy()) if len(column) else np.zeros(0, np.int64)
    if column.null_count:
        raise StageError(f"A completion has no {name}: the rollout that wrote it is damaged, or was pruned. "
                         "Run `warehouse check` to see.")
    return column.flatten().to_numpy(zero_copy_only=False), lengths.astype(np.int64)
