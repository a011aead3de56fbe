"""`warehouse check`: what is wrong with the stored files, and how much there is."""

from dataclasses import dataclass, field

from warehouse.care.findings import EXPECTED, TABLES, files_of, find_damage
from warehouse.sql.verified import forget_verified
from warehouse.store.run_folder import Warehouse


@dataclass
class Report:
    """What is wrong: `problems` break an invariant, `notes` are only worth knowing."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_parts: int = 0
    num_rows: int = 0


def check_run(warehouse: Warehouse, *, quick: bool = False) -> Report:
    """Check names, manifests, checksums and footers, then (unless `quick`) the rows of every part."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    report = Report()
    for finding in find_damage(warehouse, quick=quick):
        (report.notes if finding.consequence == "note" else report.problems).append(finding.text)
    if report.problems:
        forget_verified(warehouse)
    for part in (path for table in TABLES for path in files_of(warehouse.root / table)):
        if part.suffix == ".parquet" and EXPECTED.fullmatch(part.name):
            report.num_parts += 1
            try:
                report.num_rows += pq.read_metadata(part).num_rows
            except (pa.ArrowInvalid, OSError):
                continue  # it is among the problems
    return report
