"""Rows for other tools, as JSON lines or Parquet."""

from pathlib import Path

from warehouse.sql.catalog import condition, of_purposes, quoted
from warehouse.sql.database import Connection, check_asks, explain_errors, rows_of
from warehouse.store.commit import replace_file
from warehouse.store.errors import StageError

ROWS = """
SELECT completions.iteration, completions.purpose, completions.task_id, completions.sample_index,
       completions.group_id, prompts.* EXCLUDE (iteration, purpose, group_id), completions.completion,
       completions.completion_ids, completions.behaviour_logprobs, completions.support_ids,
       completions.finish_reason,
       completions.policy_version, completions.policy_sha256, completions.version_segments, completions.seed,
       completions.temperature, completions.top_p, completions.top_k, completions.min_p,
       completions.repetition_penalty, completions.presence_penalty, completions.frequency_penalty,
       completions.max_tokens, completions.logprobs_mode, completions.engine, completions.dtype,
       tasks.messages, tasks.payload,
       samples.scorer, samples.reward, samples.reward_parts, samples.correct, samples.error_class,
       trained.advantage, trained.old_logprobs
FROM (SELECT * FROM completions WHERE {where}) AS completions
JOIN (SELECT iteration, purpose, group_id, prompt, prompt_ids, prompt_format, format_options, prefill, flip,
             rotations, color_map, pair_order, shown_test
      FROM prompts WHERE {where}) AS prompts
    USING (iteration, purpose, group_id)
LEFT JOIN (SELECT task_id, messages, payload FROM tasks) AS tasks USING (task_id)
LEFT JOIN (SELECT iteration, purpose, task_id, sample_index, scorer, reward, reward_parts, correct,
                  error_class
           FROM samples WHERE {where}) AS samples USING (iteration, purpose, task_id, sample_index)
LEFT JOIN (SELECT iteration, purpose, task_id, sample_index, advantage, old_logprobs FROM train_samples
           WHERE iteration = trained_iteration AND {where}) AS trained
    USING (iteration, purpose, task_id, sample_index)
ORDER BY completions.iteration, completions.purpose, completions.task_id, completions.sample_index
"""
PLAIN = "FORMAT json, COMPRESSION uncompressed"
FORMATS = {"": PLAIN, ".jsonl": PLAIN, ".json": PLAIN, ".zst": "FORMAT json, COMPRESSION zstd",
           ".parquet": "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 1024"}


def export_rows(connection: Connection, output: Path, *, iterations: tuple[int, ...] = (),
                purpose: str | None = None, chosen: str | None = None) -> None:
    """Write the completions of the given iterations (all by default): JSON lines, or Parquet by the suffix.

    `chosen` is a condition on the columns that are written. The file appears complete; a device or a pipe
    stays one.
    """
    if output.suffix not in FORMATS:
        raise StageError(f"{output} has no known format. Name a file that ends in .jsonl, .jsonl.zst or "
                         ".parquet.")
    where = f"{condition({'iteration': iterations})} AND {of_purposes([purpose] if purpose else [])}"
    if not rows_of(connection, f"SELECT 1 FROM completions WHERE {where} LIMIT 1"):
        raise StageError("No complete rollout matches. List them: SELECT DISTINCT iteration, "
                         "purpose FROM completions")
    rows = ROWS.format(where=where)
    if chosen:
        rows = f"SELECT * FROM ({rows}) AS exported WHERE {chosen}\n"
        check_asks(connection, rows)
    with explain_errors():
        replace_file(output, lambda written: connection.execute(
            f"COPY ({rows}) TO {quoted(written)} "
            f"({FORMATS[output.suffix]}, USE_TMP_FILE false)"))
