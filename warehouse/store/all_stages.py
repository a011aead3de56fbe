"""Every stage of a run, finished or not, and what can be read of their manifests."""

from __future__ import annotations

from typing import Any

from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse
from warehouse.store.stage import Stage


def all_stages(warehouse: Warehouse, iteration: int | None = None) -> list[Stage]:
    """Rollouts, then scores, then trainings, finished or not; of one iteration or of all."""
    def numbers(table: str) -> list[int]:
        return [number for number in warehouse.iterations(table) if iteration in (None, number)]

    stages = [warehouse.stage("rollout", iteration=number, purpose=purpose)
              for number in numbers("completions") for purpose in warehouse.purposes("completions", number)]
    stages += [stage for number in numbers("samples") for purpose in warehouse.purposes("samples", number)
               for stage in score_stages(warehouse, number, purpose)]
    return stages + [warehouse.stage("train", iteration=number) for number in numbers("train_steps")]


def score_stages(warehouse: Warehouse, iteration: int, purpose: str) -> list[Stage]:
    """Every score of one rollout, finished or not."""
    folder = warehouse.root / "samples" / f"iteration={iteration}" / f"purpose={purpose}"
    return [warehouse.stage("score", iteration=iteration, purpose=purpose,
                            scorer=path.name.removeprefix("scorer="))
            for path in sorted(folder.glob("scorer=*"))]


def readable_manifest(stage: Stage) -> dict[str, Any] | None:
    """The manifest; None if there is none, or if it is damaged."""
    try:
        return stage.manifest()
    except StageError:
        return None
