"""`warehouse check`, and beyond it what the rows of sound parts have to be: no command writes others."""

from pathlib import Path

from tests.building.row_checks import row_problems
from warehouse.maintain import check
from warehouse.store.errors import StageError
from warehouse.store.manifests import STEMS
from warehouse.store.run_folder import TABLES_OF, Warehouse


def check_run(warehouse: Warehouse, iteration: int | None = None, *, quick: bool = False) -> check.Report:
    """What `warehouse check` finds, and unless `quick` what is wrong with rows."""
    report = check.check_run(warehouse, iteration, quick=quick)
    found: list[str] = []
    for stage in [] if quick else warehouse.stages(iteration):
        for table in TABLES_OF[stage.name]:
            folder = warehouse.folder(table, **stage.identity)
            keys = stage.identity if stage.name != "train" else {
                "iteration" if table == "train_steps" else "trained_iteration": stage.identity["iteration"]}
            for part in sorted(folder.glob(f"{STEMS.get(table, 'part')}-*.parquet")):
                if not any(str(part) in problem for problem in report.problems):
                    found += [f"{part}: {problem}" for problem in problems_of(warehouse, table, keys, part)
                              if not any(problem in known for known in report.problems)]
    return report._replace(problems=report.problems + found)


def problems_of(warehouse: Warehouse, table: str, keys: dict[str, object], part: Path) -> list[str]:
    """What is wrong with the rows of a part."""
    try:
        return row_problems(warehouse, table, keys, part)
    except StageError as error:
        return [str(error)]
