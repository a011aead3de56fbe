"""Groups that a rollout carried over: which of them wait for an iteration to go on with them."""

from warehouse.stages.due import is_left_out
from warehouse.store.commit import ensure_local
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import Warehouse

PURPOSE = "train"       # evaluations are never carried over, nor are later turns


def carried_groups(warehouse: Warehouse, iteration: int) -> list[str]:
    """Groups that a complete rollout left unfinished, in the order of its plan."""
    stage = warehouse.stage("rollout", iteration=iteration, purpose=PURPOSE)
    return _group_ids(warehouse, "carried", iteration) if stage.is_complete() else []


def taken_groups(warehouse: Warehouse, after: int, *, complete: bool = False) -> dict[str, int]:
    """Groups in the plans of the iterations after this one, each with the last that has it.

    A plan counts for none once its iteration was given up: left out of training before it was sampled. One
    that is trained counts also while a repair lets it be sampled again. With `complete` those alone count
    whose rollout is.
    """
    taken: dict[str, int] = {}
    for iteration in (number for number in warehouse.iterations("completions") if number > after):
        rollout = warehouse.stage("rollout", iteration=iteration, purpose=PURPOSE)
        if rollout.is_complete() or not (complete or is_left_out(warehouse, iteration)):
            taken |= dict.fromkeys(_group_ids(warehouse, "prompts", iteration), iteration)
    return taken


def waiting_groups(warehouse: Warehouse, before: int, *, complete: bool = False) -> dict[int, list[str]]:
    """Groups carried over by iterations before this one that no plan has taken since, by the iteration.

    With `complete` those, too, that are taken and whose rollout is under way.
    """
    carried = {iteration: groups for iteration in warehouse.iterations("completions") if iteration < before
               and (groups := carried_groups(warehouse, iteration))}
    taken = taken_groups(warehouse, min(carried), complete=complete) if carried else {}
    waiting = {iteration: [group for group in groups if taken.get(group, 0) <= iteration]
               for iteration, groups in carried.items()}
    return {iteration: groups for iteration, groups in waiting.items() if groups}


def gone_on_with(warehouse: Warehouse, iteration: int, plan: list[str]) -> dict[str, int]:
    """Groups of a plan that an earlier iteration began, each with the last iteration that carried it over."""
    unknown, origins = {group for group in plan if not group.startswith(f"{iteration}/")}, dict[str, int]()
    for earlier in reversed(warehouse.iterations("completions") if unknown else []):
        if earlier >= iteration or not unknown:
            continue
        origins |= dict.fromkeys(unknown & set(carried_groups(warehouse, earlier)), earlier)
        unknown -= origins.keys()
    return origins


def _group_ids(warehouse: Warehouse, table: str, iteration: int) -> list[str]:
    """Each once; one column is read and its pages verified: hashing whole parts would read the past again."""
    parts = warehouse.parts(table, iteration=iteration, purpose=PURPOSE)
    ensure_local(parts)
    return list(dict.fromkeys(read_parts(parts, table, ["group_id"])["group_id"].to_pylist()))
