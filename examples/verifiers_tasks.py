"""Tasks and rewards of a taskset for verifiers (PrimeIntellect), of one answer to one prompt.

    python -m examples.verifiers_tasks PACKAGE --output tasks.jsonl
    warehouse init RUN --model MODEL --tasks tasks.jsonl
    score RUN --reward-file examples/verifiers_tasks.py:reward

A task carries its data, so the package has to be installed where `score` runs, and its data set does not.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import click
import verifiers.v1 as vf


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("package")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="File of tasks for `warehouse init --tasks`, .jsonl.")
@click.option("--count", type=click.IntRange(min=1), default=None, help="The first so many alone.")
def write_tasks(package: str, output: Path, count: int | None) -> None:
    """Write the tasks of the taskset in PACKAGE."""
    taskset = vf.load_taskset(vf.taskset_config_type(package)(id=package))
    if count is None and not taskset.bounded:
        raise click.ClickException(f"{package} has tasks without end: say how many with --count.")
    lines = []
    for number, task in enumerate(itertools.islice(taskset, count)):
        if missing := what_is_missing(taskset, task):
            raise click.ClickException(f"{package} needs {missing}; a rollout has one prompt and one answer.")
        lines.append({"task_id": f"{package}-{number}", "kind": "answer", "messages": messages_of(task.data),
                      "payload": {"answer": "as verifiers says", "taskset": package,
                                  "data": task.data.model_dump(mode="json")}})
    output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    click.echo(f"{output}: {len(lines)} tasks")


def what_is_missing(taskset: Any, task: Any) -> str:
    """What the task needs beyond a prompt and an answer; '' if nothing."""
    kind = type(task)
    if kind.toolsets(task.config) or type(taskset).toolsets(taskset.config):
        return "tools"
    if kind.NEEDS_CONTAINER or task.data.image or kind.setup is not vf.Task.setup or (
            kind.finalize is not vf.Task.finalize):
        return "a runtime"
    for reward in (*task.hooks("reward"), *task.plugged_judges()):
        score = getattr(reward, "score", reward)
        if score is not reward:
            return f"the judge {reward.reward_name}"
        runtime = inspect.signature(score).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"a runtime for its reward {reward.__name__}"
    return "" if task.data.prompt else "a user who opens the conversation"


def messages_of(data: Any) -> list[dict[str, str]]:
    """The chat messages of a task; a prompt with pictures is an error."""
    given = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    if isinstance(data.prompt, str):
        return [*given, {"role": "user", "content": data.prompt}]
    if not all(isinstance(message.content, str) for message in data.prompt):
        raise click.ClickException("A prompt holds more than text, which this model would not see.")
    return [*given, *({"role": message.role, "content": message.content} for message in data.prompt)]


async def reward(prompts: list[str], completions: list[str], taskset: list[str],
                 data: list[dict[str, Any]], **columns: Any) -> list[float]:
    """What the tasks' own rewards say of the completions, weighted and added."""
    return await asyncio.gather(*map(rewarded, taskset, data, completions))


async def rewarded(package: str, data: dict[str, Any], completion: str) -> float:
    """One task, scored on a trace of one turn."""
    kind = vf.task_type(package)
    task = kind(kind.data_type().model_validate(data), vf.taskset_config_type(package)(id=package).task)
    asked = vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text))
    said = vf.MessageNode(parent=0, message=vf.AssistantMessage(content=completion), sampled=True)
    trace = vf.Trace(task=vf.TraceTask(type=kind.__name__, data=task.data), is_completed=True, ok=True,
                     agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[asked, said])
    await task.score(trace)
    return trace.reward


if __name__ == "__main__":
    write_tasks()
