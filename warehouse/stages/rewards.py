"""Whether an iteration has the rewards of another scorer than the one trained before, and of other tasks."""

from warehouse.ledger.state import RunState
from warehouse.store.errors import counted


def change_of_rewards(state: RunState, iteration: int, scorer: str) -> tuple[str, str]:
    """A line if the training before an iteration used another scorer's rewards; tasks replaced in between.

    Empty if it did not, or if none was.
    """
    judged = {life.scorer: life.settings.get("replaced", {}) for life in state.of_stage("score")}
    former = [life.facts["scorer"] for life in state.of_stage("train")
              if life.iteration < iteration and life.facts.get("scorer")]
    before, now = (judged.get(name, {}) for name in ((former or [scorer])[-1], scorer))
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    shown = ", ".join(names[:3]) + (" .." if names[3:] else "")
    return (state.change_of_scorer(iteration, scorer),
            f"{counted(len(names), 'replaced task')} ({shown})" if names else "")
