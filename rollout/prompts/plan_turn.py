"""The plan of a later turn: each parent's conversation with feedback to it, as the prompt of a group."""

from collections import Counter
from typing import Any

from rollout.options import RolloutOptions
from rollout.prompts.feedback import Feedback, find_feedback, shown_of
from rollout.prompts.next_turn import next_prompt
from rollout.prompts.plan import Plan, seed_of
from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.store.errors import StageError, counted
from warehouse.store.names import group_id_of, prompt_id_of

# What a turn has from the first: how its grids were augmented, which the scorer undoes.
INHERITED = ("task_id", "split", "prompt_format", "format_options", "flip", "rotations", "color_map",
             "pair_order", "shown_test")


def plan_turn(parents: list[dict[str, Any]], options: RolloutOptions, encoder: PromptEncoder,
              max_prompt_tokens: int, **keys: Any) -> Plan:
    """A prompt per parent whose conversation fits; StageError when none does."""
    plan, too_long, of_task = Plan(), set(), Counter[str]()
    feedback = find_feedback(options.feedback)
    for parent in parents:
        row = _prompt_row(parent, of_task[parent["task_id"]], options, feedback, encoder, **keys)
        if row["num_prompt_tokens"] > max_prompt_tokens:
            too_long.add(parent["task_id"])
            continue
        of_task[parent["task_id"]] += 1
        plan.rows.append(row)
    plan.too_long = len(too_long - of_task.keys())
    if not plan.rows:
        raise StageError(f"None of {counted(len(parents), 'conversation')} fits {max_prompt_tokens} "
                         "tokens with feedback. Raise --max-prompt-tokens where the model holds more, or "
                         "give a shorter --feedback.")
    return plan


def _prompt_row(parent: dict[str, Any], index: int, options: RolloutOptions, feedback: Feedback,
                encoder: PromptEncoder, *, iteration: int, purpose: str) -> dict[str, Any]:
    keys = iteration, purpose, parent["task_id"], index
    following = next_prompt(parent, feedback.say(parent, shown_of(parent)), encoder)
    return {
        **{name: parent[name] for name in INHERITED},
        "iteration": iteration, "purpose": purpose, "group_index": index,
        "group_id": group_id_of(*keys), "group_size": options.group_size,
        "prompt_id": prompt_id_of(following.prompt_ids), "prompt": following.prompt,
        "prompt_ids": following.prompt_ids, "num_prompt_tokens": len(following.prompt_ids), "prefill": "",
        "seed": seed_of(options.seed, *keys), "turn": options.turn,
        "parent_iteration": parent["iteration"], "parent_purpose": parent["purpose"],
        "parent_sample_index": parent["sample_index"], "feedback_format": feedback.name,
        "verbatim_prefix": following.verbatim, "segments": following.segments}
