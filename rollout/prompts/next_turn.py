"""The prompts of a next turn: each conversation so far, token for token, then feedback; one group each."""

import json
from collections import Counter
from itertools import chain
from typing import Any

from rollout.options import RolloutOptions
from rollout.prompts.feedback import Feedback, find_feedback, shown_of
from rollout.prompts.plan import CHAT_TEMPLATE, Plan, prompt_seed
from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.store.errors import StageError, counted
from warehouse.store.names import group_id_of, prompt_id_of
from warehouse.tasks.answers import behind_thoughts

QUESTION = {"role": "user", "content": "?"}  # placeholder for the first turn; its tokens are kept
Segment = dict[str, Any]                     # start, length, kind
# Columns copied from the first turn: how its grids were augmented; the scorer undoes this.
INHERITED = ("task_id", "split", "prompt_format", "format_options", "flip", "rotations", "color_map",
             "pair_order", "shown_test")


def plan_turn(parents: list[dict[str, Any]], options: RolloutOptions, encoder: PromptEncoder,
              max_prompt_tokens: int, **keys: Any) -> Plan:
    """A prompt per parent, if its conversation fits; StageError if none fits."""
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
                         "tokens with feedback. Raise --max-prompt-tokens if the model holds more, or "
                         "give a shorter --feedback.")
    return plan


def _prompt_row(parent: dict[str, Any], index: int, options: RolloutOptions, feedback: Feedback,
                encoder: PromptEncoder, *, iteration: int, purpose: str) -> dict[str, Any]:
    keys = iteration, purpose, parent["task_id"], index
    if switches := json.loads(parent["format_options"] or "{}").get(CHAT_TEMPLATE):
        encoder = encoder.switched(switches)
    following = next_prompt(parent, feedback.say(parent, shown_of(parent)), encoder)
    return {
        **{name: parent[name] for name in INHERITED}, **following,
        "iteration": iteration, "purpose": purpose, "group_index": index,
        "group_id": group_id_of(*keys), "group_size": options.group_size,
        "prompt_id": prompt_id_of(following["prompt_ids"]),
        "num_prompt_tokens": len(following["prompt_ids"]), "prefill": "",
        "seed": prompt_seed(options.seed, *keys), "turn": options.turn,
        "parent_iteration": parent["iteration"], "parent_purpose": parent["purpose"],
        "parent_sample_index": parent["sample_index"], "feedback_format": feedback.name}


def next_prompt(parent: dict[str, Any], feedback: str, encoder: PromptEncoder) -> dict[str, Any]:
    """The conversation of a parent (columns of prompts and completions) with feedback to its completion.

    `verbatim_prefix`: it begins with the parent's exact tokens. The template shows how it writes an answer
    followed by feedback. If it repeats the answer, the text behind the answer is encoded and appended to the
    sampled tokens. If it rewrites earlier turns, for example drops the thoughts, the template's conversation
    is used; one that refuses thoughts, as that of GPT-OSS, gets the answer. StageError if it changes how the
    question is written, too.
    """
    said = (parent["prefill"] or "") + parent["completion"]
    texts: tuple[str, ...] = said, said.rstrip(), said.strip()
    try:
        whole = _answered(said, feedback, encoder)
    except StageError:
        if (answer := behind_thoughts(said)) == said:
            raise
        texts, said, whole = (), answer, _answered(answer, feedback, encoder)
    opening, rendered = encoder.render([QUESTION], ask=False), encoder.render([QUESTION], ask=True)
    kept = next((text for text in texts if whole.startswith(rendered + text)), None)
    before = parent["segments"] or [segment(0, len(parent["prompt_ids"]), "task")]
    if kept is not None:
        text = whole[len(rendered + kept):]
        ids, places = encoder.encode_places(text)
        sampled = parent["completion_ids"]
        if ids and sampled and ids[0] == sampled[-1]:  # the end token, which was sampled
            ids, places = ids[1:], places[1:]
        return {"prompt": parent["prompt"] + parent["completion"] + text,
                "prompt_ids": [*parent["prompt_ids"], *sampled, *ids], "verbatim_prefix": True,
                "segments": join(before, [segment(0, len(sampled), "policy")],
                                 label(text, places, [("feedback", feedback)]))}
    opened = rendered.removeprefix(opening) + (parent["prefill"] or "")
    if not (whole.startswith(opening) and rendered.startswith(opening) and parent["prompt"].endswith(opened)):
        raise StageError("The model's chat template writes a question differently once it is answered, so no "
                         "turn can follow. Use a template that leaves earlier turns alone.")
    question = parent["prompt"].removesuffix(opened)
    first, _ = encoder.encode_places(question)
    text = whole[len(opening):]
    ids, places = encoder.encode_places(text)
    return {"prompt": question + text, "prompt_ids": first + ids, "verbatim_prefix": False,
            "segments": join(clip(before, len(first)),
                             label(text, places, [("policy", said), ("feedback", feedback)]))}


def _answered(said: str, feedback: str, encoder: PromptEncoder) -> str:
    return encoder.render([QUESTION, {"role": "assistant", "content": said},
                           {"role": "user", "content": feedback}], ask=True)


def label(text: str, places: list[int], contents: list[tuple[str, str]]) -> list[Segment]:
    """Segments of a text's tokens: tokens that begin within one of `contents` get its kind, others template.

    Contents are (kind, text) in their order in the text; one that the template changed is not found.
    """
    spans, start = [], 0
    for kind, content in contents:
        content = content.strip()
        at = text.find(content, start)
        if content and at >= 0:
            start = at + len(content)
            spans.append((at, start, kind))
    kinds = [next((kind for first, last, kind in spans if first <= place < last), "template")
             for place in places]
    return join([segment(0, 1, kind) for kind in kinds])


def segment(start: int, length: int, kind: str) -> Segment:
    return {"start": start, "length": length, "kind": kind}


def join(*several: list[Segment], by: str = "kind") -> list[Segment]:
    """Concatenated lists of segments; neighbours of equal kind, or other field, are merged."""
    whole: list[Segment] = []
    for each in chain(*several):
        start = whole[-1]["start"] + whole[-1]["length"] if whole else 0
        if whole and whole[-1][by] == each[by]:
            whole[-1]["length"] += each["length"]
        elif each["length"]:
            whole.append({**each, "start": start})
    return whole


def clip(segments: list[Segment], length: int) -> list[Segment]:
    return [{**each, "length": min(each["length"], length - each["start"])}
            for each in segments if each["start"] < length]
