"""Children that hold a program and one of its tests in the same namespace."""

import json
import os
from types import CodeType
from typing import Any

from score.isolation.lockdown import LINK_FD
from score.lane.modules import failed_at, function_of, message_of, run_module
from score.protocol import plain_data
from score.protocol.frames import MAX_MESSAGE, TOKEN_BYTES


def run_together(code: CodeType, payload: bytes) -> bytes:
    """Load the program, run its test; the test's token if it passed, else what was asserted, as JSON.

    Where it failed, the answer that was compared last comes with it, if that is plain data. All of this can
    be forged by the program. What it cannot know is whether the test is right, or wrong on purpose.
    """
    order = json.loads(payload)
    namespace = run_module(code, "program", {}, order["setup"])
    namespace["candidate"] = function_of(namespace, order["entry_point"])
    answers: list[Any] = []

    def keep(answer: Any) -> Any:
        answers[:] = [answer]
        return answer

    namespace["_answer_"] = keep
    token, test = take_test()
    try:
        exec(test, namespace)
    except AssertionError as error:
        message = (message_of(error) or failed_at(error))[:MAX_MESSAGE]
        return json.dumps(["AssertionError", message, *forms_of(answers)]).encode()
    return token


def forms_of(answers: list[Any]) -> list[Any]:
    """What is written for those of the values that are plain data."""
    try:
        return [plain_data.tag(answer) for answer in answers]
    except Exception:       # what they hold is the program's, and may raise anything
        return []


def take_test() -> tuple[bytes, CodeType]:
    """The token and the test, whose text is in no frame below the program's and cannot be taken again."""
    content = os.pread(LINK_FD, os.lseek(LINK_FD, 0, os.SEEK_END), 0)
    os.close(LINK_FD)
    return content[:TOKEN_BYTES], compile(content[TOKEN_BYTES:], "test", "exec", dont_inherit=True)
