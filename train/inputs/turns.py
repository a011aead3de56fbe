"""Which turns of conversations are trained; no torch."""

from train.inputs.groups import Group, load_groups
from train.inputs.options import TrainOptions
from train.objective.loss_table import find_loss
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import turn_of
from warehouse.store.run_folder import Warehouse


def load_turns(warehouse: Warehouse, iteration: int, scorer: str, settings: TrainOptions,
               base: str = "train") -> list[Group]:
    """Groups of all trained turns of an iteration."""
    groups = []
    for purpose in warehouse.state.turns(iteration, base) or [base]:
        turn = turn_of(purpose)
        if settings.turns and turn not in settings.turns:
            continue
        if scorer not in warehouse.state.scorers(iteration, purpose):
            what = (f"are not scored by {scorer}: run `score {shell_quote(warehouse.root)} "
                    f"--iteration {iteration}`"
                    if warehouse.stage("rollout", iteration=iteration, purpose=purpose).is_complete() else
                    f"are under way: finish `rollout {shell_quote(warehouse.root)} --turn {turn}` "
                    f"and score them")
            raise StageError(f"The turns {turn} of iteration {iteration} {what}, or train on others with "
                             "--turns.")
        alone = settings.advantages or settings.teacher or find_loss(settings.loss).correct_only
        groups += load_groups(warehouse, iteration, scorer, purpose=purpose, alone=bool(alone),
                              truncated_sampling=settings.truncated_sampling)
    return groups
