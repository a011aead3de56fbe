"""Which rollouts `score` has to work on: complete ones, and unfinished ones that have parts."""

from warehouse.stages.stop import StageStopped
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import is_of, is_training, sampled_by
from warehouse.store.run_folder import Warehouse


def rollouts_to_score(warehouse: Warehouse, scorer: str, iteration: int | None = None,
                      purpose: str | None = None) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Rollouts that `scorer` has not completed, as (iteration, purpose), and those of them that were pruned.

    An unfinished one is due while it has unscored parts, unless its training was left out: then it stays as
    it is. With an iteration named, StageError if it has nothing to score, StageStopped if it has not yet.
    """
    state, known, begun = warehouse.state, 0, 0
    due: list[tuple[int, str]] = []
    pruned: list[tuple[int, str]] = []
    for rollout in state.of_stage("rollout", iteration):
        number, name = rollout.iteration, str(rollout.purpose)
        if not is_of(name, purpose):
            continue
        begun += 1
        parts = warehouse.parts("completions", **rollout.identity)
        known += bool(rollout.is_complete or parts)
        scored = warehouse.parts("samples", **rollout.identity, scorer=scorer)
        under_way = parts if iteration is not None else len(parts) > len(scored) and not (
            is_training(name) and state.is_left_out(number))
        if scorer not in state.scorers(number, name) and (rollout.is_complete or under_way):
            (pruned if rollout.pruned else due).append((number, name))
    if iteration is not None and not known:
        which = f" (purpose {purpose})" if purpose else ""
        if begun:
            raise StageStopped(f"Iteration {iteration}{which} has no completions to score yet: the rollout "
                               "is under way. Run `score` again once it is done.")
        raise StageError(f"Iteration {iteration}{which} has no complete rollout to score. "
                         f"Run `rollout {shell_quote(warehouse.root)}{sampled_by(purpose or 'train')} "
                         f"--iteration {iteration}` first.")
    return due, pruned
