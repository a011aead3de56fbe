"""Go back to an earlier policy, or note that a loop ended at an alarm; nothing is copied or deleted."""

from warehouse.inspect.advice import settings_between
from warehouse.ledger.entries import Alarmed, RolledBack
from warehouse.ledger.state import RunState
from warehouse.store.checksums import OPTIMIZER
from warehouse.store.commit import next_to
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.run_folder import Warehouse


def alarms_behind(warehouse: Warehouse, to: int) -> str:
    """The signals that fired since the last rollback in iterations behind a policy, for the log."""
    from warehouse.inspect.alarms import last_rollback, raised_alarms
    from warehouse.sql.database import connect
    try:
        alarms = raised_alarms(connect(warehouse), since=last_rollback(warehouse))
    except StageError:              # of rows that cannot be read: going back does not need them
        return ""
    fired = {alarm.signal: alarm.first_iteration for alarm in alarms
             if alarm.fired and alarm.last_iteration >= to}
    return f"{', '.join(fired)} since iteration {min(fired.values())}" if fired else ""


def roll_back(warehouse: Warehouse, to: int, why: str = "", rate: float = 1.0) -> list[str]:
    """Make policy `to` the newest policy again; return the lines to print.

    If nothing was sampled from the newest policy, `to` takes its version. Otherwise its iteration stays
    untrained, `to` becomes the next version, and rows sampled ahead of that are discarded. `rate` multiplies
    all later learning rates.
    """
    said: list[str] = []
    branch = f"{shell_quote(warehouse.root)} {shell_quote(next_to(warehouse.root, f'at-{to}'))}"

    def go_back(state: RunState) -> RolledBack | None:
        newest = state.newest
        said[:] = [f"policy {newest} has the weights of policy {to} already; nothing is changed"]
        if state.is_rolled_back(to):
            return None
        version, how = newest, f"the former policy {newest} stays in policies/{state.policies[newest].folder}"
        if state.is_sampled(newest):
            version, how = newest + 1, f"iteration {newest} is left out of training"
            if state.sampled_ahead():
                how += f"; what was sampled ahead of iteration {version} is discarded"
        said[:] = [f"policy {version} now has the weights of policy {to}; {how}"]
        if not state.is_pruned(to):
            said.append(f"to train iteration {to} again: warehouse branch {branch} --at {to} --with-rows")
        return RolledBack(to, warehouse.policy(newest).get("global_step"), why, rate)

    if to in warehouse.state.versions and to != warehouse.state.newest:
        warehouse.verify_policy(to, unread=[OPTIMIZER])
    trained = warehouse.state.of_stage("train")
    warehouse.append(go_back)
    newest = warehouse.state.newest
    changed = [each for former in trained if former.iteration == to - 1
               for each in settings_between(former, trained[-1])]
    if changed and rate == 1:
        said.append(f"since policy {to} was trained, its settings became {', '.join(changed)}: they stay as "
                    "they are in config.toml")
    return [*said, f"next: rollout {shell_quote(warehouse.root)} --iteration {newest}, or, to train one "
                   f"iteration more: warehouse loop {shell_quote(warehouse.root)} {newest + 1}"]


def end_at_alarm(warehouse: Warehouse, iteration: int, signals: list[str]) -> None:
    """Note the signals of an iteration at which a loop ends, so that the next loop judges later ones."""
    def end(state: RunState) -> Alarmed:
        ended = [*state.of_stage("train", iteration), *state.of_stage("rollout", iteration)][0]
        return Alarmed(ended.begun, signals)

    warehouse.append(end)
