"""Rows for other tools: JSON lines, a folder for Hugging Face datasets."""

from pathlib import Path

from warehouse.sql.catalog import condition, of_purposes, quoted
from warehouse.sql.database import Connection, explain_errors, rows_of
from warehouse.store.commit import replace_file, saying_why
from warehouse.store.errors import StageError

ROWS = """
SELECT completions.iteration, completions.purpose, completions.task_id, completions.sample_index,
       completions.group_id, prompts.* EXCLUDE (iteration, purpose, group_id), completions.completion,
       completions.completion_ids, completions.behaviour_logprobs, completions.finish_reason,
       completions.policy_version, completions.policy_sha256, completions.version_segments, completions.seed,
       completions.temperature, completions.top_p, completions.top_k, completions.min_p,
       completions.repetition_penalty, completions.presence_penalty, completions.frequency_penalty,
       completions.max_tokens, completions.logprobs_mode, completions.engine, completions.dtype,
       samples.scorer, samples.reward, samples.correct, samples.error_class,
       trained.advantage, trained.old_logprobs
FROM (SELECT * FROM completions WHERE {where}) AS completions
JOIN (SELECT iteration, purpose, group_id, prompt, prompt_ids, prompt_format, format_options, prefill, flip,
             rotations, color_map, pair_order, shown_test
      FROM prompts WHERE {where}) AS prompts
    USING (iteration, purpose, group_id)
LEFT JOIN (SELECT iteration, purpose, task_id, sample_index, scorer, reward, correct, error_class FROM samples
           WHERE {where}) AS samples USING (iteration, purpose, task_id, sample_index)
LEFT JOIN (SELECT iteration, purpose, task_id, sample_index, advantage, old_logprobs FROM train_samples
           WHERE iteration = trained_iteration AND {where}) AS trained
    USING (iteration, purpose, task_id, sample_index)
ORDER BY completions.iteration, completions.purpose, completions.task_id, completions.sample_index
"""
CARD = """\
---
configs:
- config_name: default
  data_files:
{splits}---
# Completions exported from a Rollhouse run

One row per completion: prompt and completion as text and token ids, the log probabilities under the
distribution each token was drawn from, sampling parameters, reward. `load_dataset("{folder}")` reads it.
"""


def export_rows(connection: Connection, output: Path, kind: str, *,
                iterations: tuple[int, ...] = (), purpose: str | None = None) -> list[Path]:
    """Write the completions of the given iterations (all by default) as `kind`; the files written."""
    where = f"{condition({'iteration': iterations})} AND {of_purposes([purpose] if purpose else [])}"
    held = rows_of(connection, f"SELECT iteration, purpose, count(*) AS num FROM completions WHERE {where} "
                               "GROUP BY ALL ORDER BY ALL")
    if not held:
        raise StageError("No complete rollout fits. Look at what there is: SELECT DISTINCT iteration, "
                         "purpose FROM completions")
    rows = ROWS.format(where=where)
    if kind == "jsonl":
        compression = "zstd" if output.suffix == ".zst" else "uncompressed"
        return [_copy(connection, rows, output, f"FORMAT json, COMPRESSION {compression}")]
    names = sorted({row["purpose"].replace("-", "_") for row in held})      # datasets takes no "-" in a name
    files = [_copy(connection, f"SELECT * FROM ({rows}) WHERE replace(purpose, '-', '_') = {quoted(name)}",
                   output / "data" / f"{name}-00000-of-00001.parquet",
                   "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 1024") for name in names]
    splits = "".join(f"  - split: {name}\n    path: data/{name}-*.parquet\n" for name in names)
    card = output / "README.md"
    with saying_why(card):
        card.write_text(CARD.format(splits=splits, folder=output.name), encoding="utf-8")
    return [*files, card]


def _copy(connection: Connection, query: str, path: Path, options: str) -> Path:
    """Write a query's rows to a file that appears whole, or to a device or pipe, which stays one."""
    with explain_errors():
        replace_file(path, lambda written: connection.execute(
            f"COPY ({query}) TO {quoted(written)} ({options}, USE_TMP_FILE false)"))
    return path
