"""Discard what one iteration wrote, so that it can be made again: one entry, no file moves."""

from warehouse.ledger.entries import Discarded
from warehouse.ledger.state import Life, RunState, is_named
from warehouse.store.names import check_name
from warehouse.store.run_folder import Warehouse


def discard(warehouse: Warehouse, iteration: int, purpose: str | None,
            scorer: str | None = None) -> list[str]:
    """End a rollout with its scores, or an unfinished training (`purpose` None), or one score; their titles.

    Empty if a discard ended them already. The rows stay in their folders but do not count; `sql --at` reads
    them. Refusal if a policy was trained on them, later turns answer them, or a later iteration continues
    groups that they left.
    """
    if purpose is not None:
        check_name("The purpose", purpose)
    ended: list[str] = []

    def end(state: RunState) -> Discarded | None:
        lives = (state.to_discard(iteration, purpose) if scorer is None
                 else _scores(state, iteration, str(purpose), scorer))
        ended[:] = [life.title for life in lives]
        return Discarded([life.begun for life in lives]) if lives else None

    warehouse.append(end)
    return ended


def _scores(state: RunState, iteration: int, purpose: str, scorer: str) -> list[Life]:
    """The scores of a rollout by a scorer, none if they were discarded already."""
    lives = [life for life in state.derived(iteration, purpose) if is_named(str(life.scorer), scorer)]
    if not lives:
        state.check_discarded("score", iteration, purpose, scorer)
    return lives
