"""Jobs that call a function with plain data; the scorer compares the answers."""

import builtins
import json
from collections.abc import Callable
from types import CodeType
from typing import Any

from score.jobs.modules import function_of, run_module
from score.protocol import plain_data


def run_calls(code: CodeType, payload: bytes) -> bytes:
    """Call a function with each list of arguments; per call what came back, or the error it raised."""
    order = json.loads(payload)
    function = function_of(run_module(code, "program", {}, order.get("setup", "")), order["entry_point"])
    answers = [answer_call(function, *plain_data.restored(call)) for call in order["calls"]]
    return json.dumps(answers, ensure_ascii=False).encode("utf-8", "surrogatepass")


def answer_call(function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]) -> list[Any]:
    """["value", tagged result], or ["error", name of the error's builtin class]."""
    try:
        return ["value", plain_data.tag(function(*arguments, **keywords))]
    except MemoryError:
        raise
    except plain_data.NotPlain:
        return ["cannot_cross", "NotPlain"]
    except Exception as error:
        return ["error", next(kind.__name__ for kind in type(error).__mro__
                              if getattr(builtins, kind.__name__, None) is kind)]
