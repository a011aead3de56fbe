"""The rewards of tasksets for verifiers (PrimeIntellect): what a taskset's own code says of an answer."""

import asyncio
import contextlib
import sys
from typing import Any

import verifiers.v1 as vf
import verifiers.v1.tasksets  # noqa: F401 (where it looks for a taskset first)

from score.jobs import event_loop  # noqa: F401 (for a locked process)

with contextlib.suppress(ImportError):       # math-verify, which many tasksets ask, does much the first time
    from score.graders import symbolic  # noqa: F401

# What a locked process refuses, and a reward may take for a wrong answer: such a reward is discarded.
REFUSED = {"import": "imports", "open": "opens", "socket.__new__": "opens a socket",
           "subprocess.Popen": "starts", "_thread.start_new_thread": "starts a thread"}
refused: list[str] = []


def grade(text: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The share of the full reward, the weighted rewards and the metrics, or what failed."""
    sys.addaudithook(note_refused)
    failure = ""
    try:
        trace = asyncio.run(scored(text, payload["modules"][0], payload["config"], payload["data"]))
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    if refused:
        failure = f"what scores {refused[0]}, which no lane allows (--preload loads a module before)"
    if failure:
        return {"failure": failure}
    rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    full = sum(max(reward.weight, 0) for reward in trace.rewards.values() if reward is not None)
    share = min(max(trace.reward / full, 0.0), 1.0) if full else float(trace.reward >= 0)
    return {"share": share, "shown": text[-1000:], "rewards": rewards,
            "metrics": {name: value for name, value in trace.metrics.items() if value is not None}}


async def scored(text: str, package: str, config: dict[str, Any], data: dict[str, Any]) -> vf.Trace:
    """The trace of one turn, scored by its task; no thread is started for what a reward wants in one."""
    loop: Any = asyncio.get_running_loop()
    loop.run_in_executor = run_here
    kind = vf.task_type(package)
    settings = vf.taskset_config_type(package).model_validate(config)
    task = kind(kind.data_type().model_validate(data), settings.task)
    trace = trace_of(task, text)
    await task.score(trace)
    return trace


def trace_of(task: vf.Task, text: str) -> vf.Trace:
    """The conversation: the task's prompt, and the answer as what was sampled."""
    asked = task.data.prompt if isinstance(task.data.prompt, list) else [
        vf.UserMessage(content=task.data.prompt)]
    if task.data.system_prompt is not None:
        asked = [vf.SystemMessage(content=task.data.system_prompt), *asked]
    nodes = [vf.MessageNode(parent=number - 1 if number else None, message=message)
             for number, message in enumerate(asked)]
    nodes.append(vf.MessageNode(parent=len(nodes) - 1, message=vf.AssistantMessage(content=text),
                                sampled=True))
    return vf.Trace(task=vf.TraceTask(type=type(task).__name__, data=task.data), is_completed=True, ok=True,
                    agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=nodes)


def note_refused(event: str, arguments: tuple[Any, ...]) -> None:
    """Remember what the locked process will be refused."""
    if event in REFUSED:
        refused.append(f"{REFUSED[event]} {arguments[0] if arguments and event != 'socket.__new__' else ''}"
                       .rstrip())


async def run_here(_executor: Any, function: Any, *arguments: Any) -> Any:
    """The call that was meant for a thread, in this one."""
    return function(*arguments)


trace_of(vf.Task(vf.TaskData(prompt="?")), "!")       # what it looks up the first time, while it can
