"""`warehouse check`: what is wrong with the stored files, and how much there is."""

from dataclasses import dataclass, field

from warehouse.care.findings import find_damage
from warehouse.care.part_findings import Footers
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
    report, footers = Report(), Footers(warehouse)
    for finding in find_damage(warehouse, quick=quick, footers=footers):
        (report.notes if finding.consequence == "note" else report.problems).append(finding.text)
    if report.problems:
        forget_verified(warehouse)
    else:
        footers.remember()
    report.num_parts, report.num_rows = len(footers.seen), sum(rows for *_, rows in footers.seen.values())
    return report
