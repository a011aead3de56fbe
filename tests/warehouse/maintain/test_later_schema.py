"""A run of today under a later schema: it opens, answers and goes on."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import warehouse
from tests.building.later_schema import LATER, later_schema
from tests.building.runs import change_document
from tests.building.sound import check_run
from tests.building.weather import SCORER, build_run, weather, write_iteration
from warehouse.cli import cli
from warehouse.sql.database import rows_of
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

COUNT = "SELECT count(*) AS num, count(surprise) AS filled, round(sum(reward), 6) AS total FROM samples"


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    return build_run(tmp_path / "run", iterations=2, num_tasks=2, group_size=2)


def add_iteration(run: Warehouse) -> None:
    write_iteration(run, 2, "train", weather("healthy", 2), np.random.default_rng(3), 2, 2)


def test_a_run_of_today_opens_under_a_later_schema_and_goes_on(run: Warehouse) -> None:
    [before] = rows_of(warehouse.open(run.root), "SELECT round(sum(reward), 6) AS total FROM samples")
    with later_schema():
        assert rows_of(warehouse.open(run.root), COUNT) == [{"num": 12, "filled": 0, **before}]
        rows = run.read("samples", ["reward", "surprise"], iteration=0, purpose="train", scorer=SCORER)
        assert rows["surprise"].null_count == rows.num_rows == 4
        with pytest.MonkeyPatch.context() as patched:
            add_later_columns(patched)
            add_iteration(open_warehouse(run.root))
        assert rows_of(warehouse.open(run.root), COUNT)[0]["filled"] == 4
        assert check_run(open_warehouse(run.root)).problems == []


def add_later_columns(patched: pytest.MonkeyPatch) -> None:
    """What makes rows fills the new columns."""
    write_part = Warehouse.write_part

    def filled(self, table, number, rows, **keys):
        import pyarrow as pa
        for name, kind in (("surprise", pa.float32()), ("added", pa.int32())):
            if table == {"surprise": "samples", "added": "prompts"}[name] and name in rows.column_names:
                values = pa.array([1] * rows.num_rows, kind)
                rows = rows.set_column(rows.column_names.index(name), name, values)
        return write_part(self, table, number, rows, **keys)
    patched.setattr(Warehouse, "write_part", filled)


def test_a_run_of_a_later_schema_is_refused_today(run: Warehouse) -> None:
    change_document(run.root / "warehouse.json", schema_version=LATER)
    with pytest.raises(StageError, match=rf"schema version {LATER}, this Rollhouse reads up to"):
        open_warehouse(run.root)


def test_a_run_of_version_1_is_refused(run: Warehouse) -> None:
    change_document(run.root / "warehouse.json", schema_version=1)
    done = CliRunner().invoke(cli, ["sql", str(run.root), "SELECT 1"])
    assert done.exit_code == 1 and "schema version 1, which Rollhouse 0.1.0 wrote" in done.output
