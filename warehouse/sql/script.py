"""RUN/warehouse.sql: tables, views and macros of a run as one text with absolute paths."""

from contextlib import suppress
from importlib.resources import files

from warehouse.sql.catalog import quoted, rolled_views, stored_rows, table_views
from warehouse.sql.inventory import Inventory
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.run_folder import Warehouse
from warehouse.tasks.answers import END_OF_THOUGHTS, START_OF_THOUGHTS

MEASURE_FILES = ("macros.sql", "measures.sql")
VIEW_FILES = ("views.sql", "settings.sql", "adjusted.sql", "alarms.sql", "forensics.sql", "paired.sql",
              "logprobs.sql")
SQL_FILES = MEASURE_FILES + VIEW_FILES
RUNS_FILE = "runs.sql"      # in addition, if several runs are queried together
HIDDEN = ("stage_manifests", "policy_documents", "fresh_samples", "fresh_train_samples", "rolled_mismatch",
          "judged_signals", "share_noise", "gain_error", "bootstrapped", "variance_of", "chance",
          "chance_of_few", "luck", "signal_of", "is_cut_short", "is_asked")
SETTINGS = """\
-- DuckDB 2.0 rewrites windows into self-joins that read every file of a table; this keeps pruning alive.
SET disabled_optimizers = 'window_self_join';
SET TimeZone = 'UTC';
-- Parts never change once written, so what their footers say is read once.
SET parquet_metadata_cache = true;
"""
HEADER = """\
-- Tables, views and macros of {root}, written by Rollhouse. Made again by every `warehouse` and `reports`
-- command, so that it lists what is complete now; do not edit. Use: duckdb -init {script}

{settings}SELECT error({words}) FROM glob({entry});
"""


def definitions() -> str:
    """What every run has: tables without rows, and the macros and views on them."""
    return "\n".join([table_views(), shipped(*MEASURE_FILES), rolled_views(), shipped(*VIEW_FILES)])


def shipped(*names: str) -> str:
    """Files of SQL that come with Rollhouse, concatenated, with the patterns by which answers are found."""
    folder = files("warehouse.sql.texts")
    text = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    return text.replace("{START}", START_OF_THOUGHTS).replace("{END}", END_OF_THOUGHTS)


def keep_script(warehouse: Warehouse, inventory: Inventory) -> None:
    """Write RUN/warehouse.sql if it has changed; not for a run read at an earlier entry.

    It holds the tables, then the shipped macros and views, last the files of the run.
    """
    if warehouse.log.is_past:
        return
    path = warehouse.root / "warehouse.sql"
    named = " ".join(str(warehouse.root).splitlines())         # for comments, which end at a line break
    header = HEADER.format(root=named, settings=SETTINGS, script=shell_quote(f"{named}/warehouse.sql"),
                           entry=quoted(warehouse.log.next_path()), words=quoted(
        f"The run has changed since this file was written. warehouse sql {shell_quote(warehouse.root)} "
        "'SELECT 1' writes it anew."))
    text = "\n".join([header, definitions(), stored_rows(inventory)]).encode()
    # An archive may be read-only; every query still works, because connections run the text itself.
    with suppress(OSError, StageError):
        if not path.exists() or path.read_bytes() != text:
            replace_bytes(path, text)
