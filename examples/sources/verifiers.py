"""Tasks of a taskset for verifiers (PrimeIntellect): data stored whole, rewards asked in a lane.

    warehouse init RUN --model .. --tasks "examples/sources/verifiers.py:tasks?package=my-taskset&count=500"
    score RUN --import-path examples/graders
"""

import inspect
import itertools
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from warehouse.store.errors import StageError
from warehouse.store.json_files import option_value

INSTALL = "pip install 'rollhouse[verifiers]'"


def tasks(package: str, count: str | None = None, **options: str) -> Iterator[dict[str, Any]]:
    """The tasks as objects with task_id, kind, messages and payload; `options` are the taskset's settings.

    StageError for what needs more than one answer.
    """
    if not re.fullmatch("[A-Za-z0-9_-]+", package):
        raise StageError(f"package={package} has a sign that no top-level package has: the library finds "
                         "those alone.")
    package = package.replace("-", "_").lower()
    taskset = _taskset(package, options)
    if missing := _beyond_answers(taskset):
        raise StageError(f"The taskset {package} needs {missing}. A rollout has one prompt and one answer in "
                         "text: choose another taskset.")
    if count is None and not taskset.bounded:
        raise StageError(f"The taskset {package} has tasks without end. Say how many, as in &count=500.")
    config = json.loads(taskset.config.model_dump_json(exclude_defaults=True))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join([package, *options.values()]))
    for number, task in enumerate(itertools.islice(taskset, int(count) if count else None)):
        yield _task_of(task, package, config, f"{name}-{number}")


def _taskset(package: str, options: dict[str, str]) -> Any:
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        raise StageError(f"The source verifiers needs its library ({error}). Run {INSTALL}.") from None
    if not (there := version("verifiers")).startswith("0.4."):
        raise StageError(f"The source verifiers needs version 0.4 of its library, and {there} is installed. "
                         f"Run {INSTALL}.")
    settings: dict[str, Any] = {"id": package}
    for key, text in options.items():
        *outer, last = key.split(".")
        inner = settings
        for each in outer:
            inner = inner.setdefault(each, {})
        inner[last] = option_value(text)
    try:
        return vf.load_taskset(vf.taskset_config_type(package).model_validate(settings))
    except Exception as error:          # the package's own code, and how it fails is its own affair
        told = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()] if hasattr(
            error, "errors") else [f"{type(error).__name__}: {error}"]
        raise StageError(f"The taskset {package} cannot be loaded: {'; '.join(told)}") from error


def _beyond_answers(taskset: Any) -> str:
    """What a taskset needs beyond a prompt and an answer, as its classes and settings say; '' if nothing."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import default_harness_id, environment_class
    kind, config = type(taskset).task_type(), taskset.config
    task = kind(kind.data_type().model_construct(), config.task)
    if environment_class(config.id) is not vf.SingleAgentEnv:
        return "an environment of its own (more than one turn or agent)"
    if default_harness_id(config.id) == config.id:
        return "a harness of its own"
    if kind.toolsets(config.task) or type(taskset).toolsets(config):
        return "tools"
    if kind.NEEDS_CONTAINER or any(getattr(kind, name) is not getattr(vf.Task, name)
                                   for name in ("setup", "finalize", "stage_verifier")):
        return "a runtime"
    if config.task.judges or any(isinstance(value, vf.JudgeConfig) for _name, value in config.task):
        return "a judge model"
    for reward in task.hooks("reward"):
        runtime = inspect.signature(reward).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"a runtime for its reward {reward.__name__}"
    return "" if task.hooks("reward") else "rewards from elsewhere: its tasks have none"


def _task_of(task: Any, package: str, config: dict[str, Any], task_id: str) -> dict[str, Any]:
    data = json.loads(task.data.model_dump_json(exclude_defaults=True))
    if task.data.image or task.data.skills or task.data.artifacts:
        raise StageError(f"{task_id} needs a runtime. A rollout has one prompt and one answer in text: "
                         "choose another taskset.")
    if type(task.data).model_validate(data).model_dump() != task.data.model_dump():
        raise StageError(f"{task_id}: its data are not the same after being stored as JSON. Correct the "
                         "taskset.")
    prompt = task.data.prompt or []
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [
        {"role": message.role, "content": message.content} for message in prompt]
    if not messages or not all(isinstance(message["content"], str) for message in messages):
        raise StageError(f"{task_id} has no prompt of texts alone, and a rollout begins with one. Choose "
                         "another taskset.")
    if task.data.system_prompt is not None:
        messages = [{"role": "system", "content": task.data.system_prompt}, *messages]
    payload = {"grader": "taskset_grader", "modules": [package], "config": config, "data": data}
    return {"task_id": task_id, "kind": "graded", "messages": messages, "payload": payload}
