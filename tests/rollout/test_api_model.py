"""Models behind an OpenAI-compatible API: rows without logprobs, troubles survived."""

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from rollout.cli import default_options, rollout
from rollout.endpoint import api_model, work
from rollout.endpoint.failures import Unavailable, seconds_to_wait
from rollout.endpoint.server import Server, open_session
from rollout.engines.engine import Sampling
from rollout.run import run_rollout
from score.cli import score
from tests.building.chatting import FLIP, ChatService
from tests.building.runs import STARTER, TURN
from warehouse.init import init_run
from warehouse.sql.database import connect
from warehouse.stages.shard import Shard
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

Serve = Callable[..., ChatService]
KEY = "sk-secret-words"


@pytest.fixture
def serve() -> Iterator[Serve]:
    services: list[ChatService] = []

    def start(*arguments: Any, **more: Any) -> ChatService:
        services.append(ChatService(*arguments, **more))
        return services[-1]
    yield start
    for service in services:
        service.stop()


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return new_run(tmp_path / "run")


def new_run(root: Path) -> Warehouse:
    """A run on the starter with four training tasks and two held out."""
    root.mkdir(parents=True)
    files = []
    for names in (["t0", "t1", "t2", "t3"], ["h0", "h1"]):
        path = root.parent / f"{names[0]}.json"
        path.write_text(json.dumps({name: {**TURN, "train": [
            {"input": [[number, 7]], "output": [[7, number]]}, TURN["train"][1]]}
            for number, name in enumerate(names)}))
        files.append(str(path))
    init_run(root, str(STARTER), (files[0],), (files[1],))
    return open_warehouse(root)


def refusal(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


def ask(warehouse: Warehouse, service: ChatService, **values: Any) -> list[str]:
    options = default_options(warehouse.root).replace(
        sampling=Sampling(max_tokens=64), group_size=3, part_size=4, prompt_format="compact",
        endpoint=(service.url,), model="wise-1", distil=True)
    return list(run_rollout(options.replace(**values)))


def rows(warehouse: Warehouse, purpose: str = "distil") -> list[dict]:
    table = warehouse.read("completions", iteration=0, purpose=purpose).to_pylist()
    return sorted(table, key=lambda row: (row["task_id"], row["sample_index"]))


def said(warehouse: Warehouse, purpose: str = "distil") -> list[tuple]:
    names = ("task_id", "sample_index", "completion", "completion_ids", "finish_reason")
    return [tuple(row[name] for name in names) for row in rows(warehouse, purpose)]


def test_answers_are_rows_with_the_runs_own_tokens_and_no_logprobs(
        warehouse: Warehouse, serve: Serve) -> None:
    service = serve()
    encoder = api_model.load_encoder(str(STARTER), None)
    assert "12 completions of 4 tasks by wise-1" in ask(warehouse, service)[0]
    for row in rows(warehouse):
        assert row["behaviour_logprobs"] is None and row["policy_version"] is None
        assert row["logprobs_mode"] is None and row["engine"] == "wise-1 (openai)"
        assert row["completion_ids"] == [*encoder.encode(row["completion"]), encoder.end_id]
        assert row["num_completion_tokens"] == len(row["completion_ids"]) and row["cost"] is None
    assert any(row["completion"] == FLIP for row in rows(warehouse))
    prompts = warehouse.read("prompts", iteration=0, purpose="distil").to_pylist()
    assert {prompt["split"] for prompt in prompts} == {"train"}, "training tasks, not held-out ones"
    asked = service.asked[0]
    assert asked["model"] == "wise-1" and asked["max_tokens"] == 64 and asked["temperature"] == 1.0
    assert "top_k" not in asked and 0 <= asked["seed"] < 2**31
    assert len({request["seed"] for request in service.asked}) == 12
    assert [turn["role"] for turn in asked["messages"]][-1] == "user"
    assert asked["messages"][-1]["content"].startswith("In\n")


def test_an_answer_without_a_type_with_half_a_letter_or_filtered_is_a_row(warehouse: Warehouse,
                                                                          serve: Serve) -> None:
    text = '{"choices": [{"message": {"content": "ab\\ud83d"}, "finish_reason": "content_filter"}]}'
    ask(warehouse, serve(lambda number, request: web.Response(text=text)))
    assert {(row["completion"], row["finish_reason"]) for row in rows(warehouse)} == {("ab\ufffd", "length")}


def test_a_service_that_names_the_limit_otherwise_is_asked_so(warehouse: Warehouse, serve: Serve) -> None:
    told = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    service = serve(lambda number, request: refusal(told)
                    if "max_tokens" in request else None)
    ask(warehouse, service)
    answered = [request for request in service.asked if "max_tokens" not in request]
    assert {request["max_completion_tokens"] for request in answered} == {64} and len(rows(warehouse)) == 12


def test_a_prompt_that_is_refused_keeps_none_of_the_others_from_being_answered(
        warehouse: Warehouse, serve: Serve) -> None:
    def of_a_task(request: dict[str, Any]) -> bool:
        return request["messages"][-1]["content"].startswith("In\n17\n")
    service = serve(lambda number, request: refusal("content policy")
                    if number < 12 and of_a_task(request) else None)
    with pytest.raises(StageError, match=r"content policy.*refuses 3 requests of 1 prompt, .* with 'In\\n17"):
        ask(warehouse, service)
    assert len(service.asked) == 12
    assert not warehouse.stage("rollout", iteration=0, purpose="distil").is_complete()
    assert "12 completions of 4 tasks" in ask(warehouse, service)[0]
    assert len(service.asked) == 15 and all(map(of_a_task, service.asked[12:])), "these alone"


def test_a_service_that_refuses_every_prompt_is_not_asked_for_all(tmp_path: Path, serve: Serve) -> None:
    tasks = tmp_path / "many.json"
    tasks.write_text(json.dumps({f"t{number}": {**TURN, "train": [
        {"input": [[number, 7]], "output": [[7, number]]}]} for number in range(10)}))
    init_run(tmp_path / "run", str(STARTER), (str(tasks),), ())
    service = serve(lambda number, request: refusal("no such field"))
    with pytest.raises(StageError, match=r"no such field\. Finished completions are kept"):
        ask(open_warehouse(tmp_path / "run"), service, max_num_seqs=1)
    assert len({request["messages"][-1]["content"] for request in service.asked}) == 5


def test_they_are_scored(warehouse: Warehouse, serve: Serve) -> None:
    ask(warehouse, serve(), evaluate=True, distil=False)
    done = CliRunner().invoke(score, [str(warehouse.root), "--purpose", "eval", "--iteration", "0"])
    assert done.exit_code == 0, done.output
    right = sum(row["completion"] == FLIP for row in rows(warehouse, "eval"))
    with closing(connect(warehouse)) as connection:
        assert connection.execute("SELECT sum(correct::INTEGER), count(*) FROM samples").fetchall() == [
            (right, 6)]


def test_a_service_that_says_too_many_is_left_alone_for_as_long_as_it_wants(
        warehouse: Warehouse, serve: Serve) -> None:
    def busy(number: int, request: dict[str, Any]) -> Any:
        return web.json_response({"error": {"message": "slow down"}}, status=429,
                                 headers={"Retry-After": "0.5"}) if number < 3 else None
    service = serve(busy)
    began = time.monotonic()
    ask(warehouse, service, max_num_seqs=2)
    assert time.monotonic() - began > 0.5
    assert len(service.asked) == 15 and len(rows(warehouse)) == 12
    assert service.most_at_once <= 2


@pytest.mark.parametrize("broken", [
    web.Response(text='{"choices": [{"mess', content_type="application/json"),
    web.Response(text="<html>welcome</html>", content_type="text/html"),
    web.Response(status=503, text="overloaded"),
    web.Response(text='{"choices": []}', content_type="application/json"),
    web.Response(text='{"choices": [{"message": {"content": "half"}, "finish_reason": null}]}',
                 content_type="application/json"),
    web.Response(text='{"choices": [{"message": {"content": [1]}, "finish_reason": "stop"}]}',
                 content_type="application/json"),
    web.Response(text="[" * 100_000, content_type="application/json"),
], ids=["half", "page", "overloaded", "empty", "unfinished", "parts", "deep"])
def test_an_answer_that_is_none_is_asked_for_again(warehouse: Warehouse, serve: Serve, broken: web.Response,
                                                   tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FIRST_PAUSE", 0.01)
    sick = serve(lambda number, request: web.Response(
        text=broken.text, status=broken.status, content_type=broken.content_type)
        if number % 3 == 1 else None)
    ask(warehouse, sick)
    other = new_run(tmp_path / "well" / "run")
    ask(other, serve())
    assert said(warehouse) == said(other)


def test_a_model_that_dies_ends_the_rollout_and_what_it_said_is_kept(
        warehouse: Warehouse, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(work, "FIRST_PAUSE", 0.01)
    dying = serve(lambda number, request: web.Response(status=500, text="dead") if number >= 7 else None)
    with pytest.raises(StageError, match=r"failed 5 times.*dead.*Finished completions are kept"):
        ask(warehouse, dying, max_num_seqs=1)
    dying.trouble = lambda number, request: None
    before = len(dying.asked)
    ask(warehouse, dying)
    assert len(dying.asked) - before == 12 - 7
    other = new_run(tmp_path / "well" / "run")
    ask(other, serve())
    assert said(warehouse) == said(other)


def test_the_key_comes_from_a_variable_and_is_neither_stored_nor_printed(
        warehouse: Warehouse, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service = serve(key=KEY)
    monkeypatch.setenv("WISE_KEY", "wrong-words")
    with pytest.raises(StageError, match="WISE_KEY, which holds a key that it rejects") as refusal:
        ask(warehouse, service, api_key_variable="WISE_KEY")
    assert "wrong-words" not in str(refusal.value)
    monkeypatch.delenv("WISE_KEY")
    with pytest.raises(StageError, match="WISE_KEY, which is empty"):
        ask(warehouse, service, api_key_variable="WISE_KEY")
    for cut in (f"{KEY}\nand more", f"{KEY}\u00fc"):
        monkeypatch.setenv("WISE_KEY", cut)
        with pytest.raises(StageError, match="WISE_KEY holds no key") as refusal:
            ask(warehouse, service, api_key_variable="WISE_KEY")
        assert KEY not in str(refusal.value)
    monkeypatch.setenv("WISE_KEY", f"{KEY}\n")
    ask(warehouse, service, api_key_variable="WISE_KEY")
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(("options", "sentence"), [
    (("--model", "m", "--endpoint", "http://x"), "cannot be rows of purpose 'train'"),
    (("--model", "m", "--eval"), "needs exactly one address"),
    (("--model", "m", "--eval", "--endpoint", "http://x,http://y"), "needs exactly one address"),
    (("--distil",), "--distil is about a model behind an API"),
    (("--model", "m", "--eval", "--endpoint", "http://127.0.0.1:9"), "nothing listens at that port"),
])
def test_what_cannot_be_asked_is_one_sentence_and_nothing_is_written(
        warehouse: Warehouse, options: tuple[str, ...], sentence: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FIRST_PAUSE", 0.001)
    done = CliRunner().invoke(rollout, [str(warehouse.root), "--prompt-format", "compact", *options])
    assert done.exit_code == 1 and sentence in done.output, done.output
    assert not warehouse.parts("completions", iteration=0, purpose="train")


def test_a_wrong_name_says_so_and_binds_nobody(warehouse: Warehouse, serve: Serve) -> None:
    service = serve(lambda number, request: None if request["model"] == "wise-1" else web.json_response(
        {"error": {"message": "no model wize-1"}}, status=404))
    with pytest.raises(StageError, match=r"no model wize-1\. Check the address .* and the name 'wize-1'"):
        ask(warehouse, service, model="wize-1")
    ask(warehouse, service, num_tasks=2)
    assert len(rows(warehouse)) == 6


def test_a_refusal_of_what_another_worker_has_begun_leaves_it(warehouse: Warehouse, serve: Serve) -> None:
    service = serve()
    ask(warehouse, service, shard=Shard(0, 2))
    service.trouble = lambda number, request: web.json_response({}, status=404)
    with pytest.raises(StageError, match="the name 'wise-1'"):
        ask(warehouse, service, shard=Shard(1, 2))
    assert warehouse.stage("rollout", iteration=0, purpose="distil").settings()


def chat(**message: Any) -> web.Response:
    return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    with suppress(ConnectionError):
        while True:
            await answer.write(b" " * 2**20)
    return answer


@pytest.mark.parametrize("body", ["bomb", "endless", "events"])
def test_no_more_is_read_of_an_answer_than_fits(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if body == "bomb":
            return web.Response(body=gzip.compress(b" " * 2**26), headers={"Content-Encoding": "gzip"})
        if body == "events":
            return web.Response(text=f"data: {{{' ' * 2**24}}}\n\n", content_type="text/event-stream")
        return await endless(request)

    async def ask_once() -> None:
        application = web.Application()
        application.router.add_get("/", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        session = await open_session("")
        try:
            await Server(f"http://127.0.0.1:{runner.addresses[0][1]}", session).ask("/", most=2**22)
        finally:
            await session.close()
            await runner.cleanup()
    with pytest.raises(Unavailable, match="its answer is longer than 4 MiB"):
        asyncio.run(ask_once())


@pytest.mark.parametrize(("told", "seconds"), [
    ("nan", None), ("inf", None), ("-5", 0.0), ("2.5", 2.5), ("soon", None), (None, None)])
def test_a_time_to_wait_is_a_number(told: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(told) == seconds


def test_who_wants_to_be_left_alone_for_years_ends_the_stage(warehouse: Warehouse, serve: Serve) -> None:
    service = serve(lambda number, request: web.json_response(
        {}, status=429, headers={"Retry-After": "1e12"}))
    with pytest.raises(StageError, match="asks for a pause of 16,666,666,667 minutes"):
        ask(warehouse, service)


def test_an_error_shows_neither_the_key_nor_marks_that_steer_the_terminal(
        warehouse: Warehouse, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FIRST_PAUSE", 0.001)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    service = serve(lambda number, request: web.Response(status=500, text=f"\x1b[31m{KEY} failed"))
    with pytest.raises(StageError, match=r"\\x1b\[31m\*\*\* failed") as failure:
        ask(warehouse, service)
    assert KEY not in str(failure.value) and "\x1b" not in str(failure.value)


def test_a_redirect_is_refused_with_its_address(warehouse: Warehouse, serve: Serve) -> None:
    service = serve(lambda number, request: web.Response(status=302, headers={"Location": "http://other/v1"}))
    with pytest.raises(StageError, match=r"elsewhere, to http://other/v1. Name that address"):
        ask(warehouse, service)
    assert len(service.asked) <= 16


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_the_thoughts_of_a_reasoner_are_kept(warehouse: Warehouse, serve: Serve, name: str) -> None:
    ask(warehouse, serve(lambda number, request: chat(content="42", **{name: "six times seven\n"})))
    assert {row["completion"] for row in rows(warehouse)} == {"<think>\nsix times seven\n</think>\n\n42"}
