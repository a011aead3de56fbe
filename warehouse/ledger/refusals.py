"""Why the state of a run does not allow a command: one class, one table of sentences."""

from typing import Any

from warehouse.store.errors import STOPPED_EXIT_CODE, StageError

# {run} is the run as a command line names it.
SENTENCES = {
    "ended": "{title} was ended meanwhile by `{command}` (entry {entry} of the run's log). Nothing more of "
             "it is written, because its rows would not count. Run the same command again "
             "to begin afresh.",
    "input_ended": "{title} used rows or a policy that `{command}` ended meanwhile (entry {entry} of "
                   "the run's log). Nothing was committed. Run the same command again.",
    "complete": "{title} was completed by another command meanwhile. There is nothing left to do.",
    "weights_gone": "Policy {to} has no weights any more. Restore it from a copy, or name another policy; "
                    "those with weights: {kept}.",
    "pruned_rows": "The tokens of iteration {iteration} were pruned; it cannot be trained on again. Name "
                   "later ones, or in `warehouse branch` leave --with-rows out.",
    "to_finish": "{title} is to be made again after a repair, and policy {policy} stands on it. Run it "
                 "first, then branch.",
    "no_policy": "There is no policy {to}; there are {first} to {newest}. Name one of those with "
                 "{option}.",
    "is_newest": "Policy {to} is the newest one already: there is nothing to go back from.",
    "training_begun": "{title} has begun. Finish it, or put it aside with `warehouse discard {run} "
                      "--iteration {iteration} --training`; then roll back.",
    "nothing_there": "Iteration {iteration} has no such rows to discard. `warehouse summary` lists what "
                     "there is.",
    "left_out": "Iteration {iteration} was left out of training by a rollback, and its rows stay: they are "
                "the record of the policy that was given up.",
    "trained": "Policy {policy} was trained in iteration {iteration}, so the rows stay. Make new ones in a "
               "branch: `warehouse branch {run} NEW --at {iteration}`.",
    "answered": "{wave} of iteration {number} answers completions of iteration {iteration}. Put that aside "
                "first: `warehouse discard {run} --iteration {number} --purpose {wave}`.",
    "gone_on_with": "Iteration {number} continues groups that it carried over. Put that aside first: "
                    "`warehouse discard {run} --iteration {number} --purpose train`.",
    "groups_taken": "Groups that wait for iteration {iteration} were taken by another iteration or put "
                    "aside while the engine started. Nothing was written: run the same command again.",
    "no_iteration": "{run} has no iteration {iteration}. `warehouse summary {run}` lists what there is.",
    "no_rollout": "There is no rollout for {title}: it was discarded, or never begun. Run `rollout` first.",
    "given_up": "Iteration {iteration} was left out of training before it was sampled, and iteration "
                "{number} continued groups that it had taken. Nothing is left to finish: it stays as it "
                "is.",
    "policy_exchanged": "Policy {policy} was replaced while {title} started. Run the same command again.",
    "trained_meanwhile": "Policy {policy} was written while training of iteration {iteration} started. "
                         "Nothing was written: run the same command again to see what is due.",
    "overtaken": "Another command changed {what} of {run} meanwhile. Run this one again.",
    "no_turn": "{run} has no complete rollout of purpose {before} to answer. Run `rollout` and `score` for "
               "it first.",
    "untrained": "Iteration {iteration} is not trained yet and needs its tokens. Train it first{before}.",
    "unscored": "An evaluation of iteration {iteration} is not scored yet, and what is pruned cannot be "
                "scored. Run `score` first{before}.",
    "carried_needed": "Groups that iteration {iteration} carried over are not whole yet, and need its "
                      "tokens. Let a `rollout` finish them first{before}.",
    "waiting_needed": "Iteration {iteration} waits to be trained on with the next one, and needs its "
                      "tokens. Let `train` take it first{before}.",
    "not_scored": "Iteration {iteration} ({purpose}) is not scored. Run `score {run} --iteration "
                  "{iteration}` first.",
    "other_scorers": "Scorer '{name}' has not scored iteration {iteration} ({purpose}); {known} did. Name "
                     "one of these with --scorer, or `score {run} --iteration {iteration}`.",
}


# What another command did meanwhile, and the same command again takes into account: a job is queued again.
PASSING = ("input_ended", "groups_taken", "policy_exchanged", "trained_meanwhile", "overtaken")


class Refusal(StageError):
    """A question or transition that the state does not allow; `code` and `fields` say why."""

    def __init__(self, code: str, **fields: Any) -> None:
        self.code, self.fields = code, fields
        super().__init__(SENTENCES[code].format(**fields))
        self.exit_code = STOPPED_EXIT_CODE if code in PASSING else StageError.exit_code
