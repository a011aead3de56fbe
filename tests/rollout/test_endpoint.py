"""Rollouts from servers: what they are asked, which are refused, and what is lost when they die (nothing)."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import save_file

from rollout.cli import default_options
from rollout.endpoint import engine as endpoint
from rollout.endpoint import server as server_module
from rollout.engines.engine import Request, Sampling
from rollout.engines.probe import Probe, check_said, is_former
from rollout.run import run_rollout
from tests.building.runs import add_policy, arc_file
from tests.building.scripted import ScriptedEngine
from tests.building.served import FakeServer
from tests.rollout.test_turns import score
from warehouse.init import init_run
from warehouse.stages.stop import StageStopped
from warehouse.store.checksums import weights_sha256
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

BASE = Path(__file__).parents[2] / "examples" / "starter" / "model"
Serve = Callable[..., FakeServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers that end with the test; nobody waits long for one that is gone."""
    monkeypatch.setattr(endpoint, "CONNECTING", 0.3)
    monkeypatch.setattr(endpoint, "RECOVERY", 0.6)
    servers: list[FakeServer] = []

    def start(**more: Any) -> FakeServer:
        servers.append(FakeServer(BASE, **more))
        return servers[-1]
    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """A run on the starter with six tasks, whose policy 1 is an adapter."""
    init_run(tmp_path / "run", str(BASE), (str(arc_file(tmp_path, [f"t{n}" for n in range(6)])),))
    run = open_warehouse(tmp_path / "run")
    folder = run.scratch("policy")
    (folder / "probe.json").write_text(json.dumps({
        "prompt_ids": [1, 2], "completion_ids": [3, 4, 5, 6] * 6, "logprobs": [-1.5] * 24,
        "logprobs_before": [-1.4, -1.6, -1.3, -1.8] * 6}))
    save_file({"base_model.model.x.lora_B.weight": np.ones((2, 2), np.float32)},
              folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4}))
    facts = {"policy_version": 1, "parent": 0, "kind": "lora", "sha256": weights_sha256(folder)}
    (folder / "policy.json").write_text(json.dumps(facts))
    add_policy(run, 1, folder)
    return run


def sample(warehouse: Warehouse, *servers: FakeServer | str, **values: Any) -> list[str]:
    said: list[str] = []
    options = default_options(warehouse.root).replace(
        iteration=0, sampling=Sampling(max_tokens=20), group_size=4, prompt_format="compact", part_size=8,
        endpoint=tuple(each if isinstance(each, str) else each.url for each in servers))
    list(run_rollout(options.replace(**values), say=said.append))
    return said


def rows(warehouse: Warehouse, iteration: int = 0) -> list[dict]:
    table = warehouse.read("completions", iteration=iteration, purpose="train")
    return sorted(table.to_pylist(), key=lambda row: (row["task_id"], row["sample_index"]))


def what_was_sampled(warehouse: Warehouse, iteration: int = 0) -> list[tuple]:
    return [(row["completion_ids"], row["behaviour_logprobs"], row["seed"], row["completion"])
            for row in rows(warehouse, iteration)]


def test_second_turns_are_served_with_the_tokens_of_the_first(warehouse: Warehouse, serve: Serve) -> None:
    server = serve()
    sample(warehouse, server, iteration=1)
    score(warehouse, iteration=1)
    sample(warehouse, server, iteration=1, turn=2)
    rows = warehouse.read("prompts", iteration=1, purpose="train-turn2").to_pylist()
    assert len(rows) == 6 and all(row["verbatim_prefix"] for row in rows)
    sent = [request["token_ids"] for request in server.served[-24:]]
    assert sorted(map(tuple, sent)) == sorted(tuple(row["prompt_ids"]) for row in rows for _ in range(4))


def test_rows_of_a_server_are_the_engines_own_and_say_where_they_come_from(
        warehouse: Warehouse, serve: Serve) -> None:
    server = serve()
    sample(warehouse, server)
    assert len(rows(warehouse)) == 24
    for row in rows(warehouse):
        [expected] = ScriptedEngine().sample([Request(0, [], row["seed"])], Sampling(max_tokens=20))
        assert row["completion_ids"] == expected.completion_ids
        assert row["finish_reason"] == expected.finish_reason
        assert row["behaviour_logprobs"] == pytest.approx(expected.logprobs, abs=1e-7)
        assert row["completion"] == server.encoder.decode(row["completion_ids"])
        assert (row["engine"], row["dtype"], row["device"]) == ("vllm 0.99 server", "float32", "cpu")
    asked = server.served[0]
    parameters = asked["sampling_params"]
    assert asked["model"] == "base" and parameters["logprobs"] == 0
    assert {name: parameters.get(name) for name in vars(Sampling())} == vars(Sampling(max_tokens=20))
    assert server.sleeping       # it was woken, and sleeps again while `train` has the GPU
    order = [server.calls.index(call) for call in ("/wake_up", "/inference/v1/generate", "/sleep")]
    assert order == sorted(order)


def test_the_adapter_is_loaded_by_version_and_hash_and_once(warehouse: Warehouse, serve: Serve) -> None:
    server = serve()
    for iteration, version in ((1, 1), (2, 1)):
        sample(warehouse, server, iteration=iteration, policy_version=version)
    sha256 = warehouse.policy(1)["sha256"]
    assert server.adapters == {f"policy-1-{sha256[:12]}": str(warehouse.policy_dir(1).resolve())}
    assert server.calls.count("/v1/load_lora_adapter") == 1
    loaded = dict(server.adapters)
    server.adapters = dict.fromkeys(loaded, "/a/copy/of/the/run/policies/1")
    sample(warehouse, server, iteration=3, policy_version=1)
    assert server.adapters == loaded
    assert {asked["model"] for asked in server.served} == set(server.adapters)
    assert {row["engine"] for row in rows(warehouse, 1)} == {"vllm 0.99 server (adapter)"}


def test_a_server_without_adapters_is_given_whole_weights(warehouse: Warehouse, serve: Serve) -> None:
    server = serve(lora_rank=0)
    sample(warehouse, server)
    assert server.calls.index("/collective_rpc") < server.calls.index("/reset_prefix_cache")
    with pytest.raises(StageError, match="without --enable-lora: it takes whole weights"):
        sample(warehouse, server, iteration=1, serve="adapter")


@pytest.mark.parametrize(("told", "options", "sentence"), [
    ({"model": "/elsewhere/model"}, {}, "serves /elsewhere/model, this run's base is .*starter/model"),
    ({"logprobs_mode": "raw_logprobs"}, {}, "gives raw_logprobs, not those of the distribution"),
    ({"generation_config": "auto"}, {}, r"sampling defaults of its own \(generation_config=auto\)"),
    ({"override_generation_config": {"top_k": 5}}, {}, r"sampling defaults of its own \(top_k=5\)"),
    ({"max_model_len": 40}, {}, "holds 40 tokens, prompts and completions need"),
    ({}, {"dtype": "bfloat16"}, "runs in float32, --dtype says bfloat16"),
    ({"quantization": "fp8"}, {}, "has quantization fp8, --quantization says None"),
    ({"lora_rank": 2}, {"iteration": 1}, "takes adapters up to rank 2, the policy's has 4"),
    ({}, {"iteration": 1, "serve": "merged"}, "was started with --enable-lora: it keeps its base"),
])
def test_a_server_that_samples_something_else_is_refused_and_nothing_is_written(
        warehouse: Warehouse, serve: Serve, told: dict, options: dict, sentence: str) -> None:
    before = sorted(warehouse.root.rglob("*"))
    with pytest.raises(StageError, match=sentence):
        sample(warehouse, serve(**told), **options)
    assert sorted(warehouse.root.rglob("*")) == before


def test_another_tokenizer_a_deaf_adapter_and_missing_logprobs_are_refused(
        warehouse: Warehouse, serve: Serve) -> None:
    server = serve()
    server.encoder.encode = lambda text: [1, 2, 3]                  # type: ignore[method-assign]
    with pytest.raises(StageError, match="has another tokenizer than this run"):
        sample(warehouse, server)
    (warehouse.policy_dir(1) / "probe.json").unlink()        # as policies of version 0.2.0 are
    server = serve()
    server.deaf = True
    with pytest.raises(StageError, match="does not serve the adapter of policy 1"):
        sample(warehouse, server, iteration=1)
    silent = serve(wrong_from_the_start=True, trouble=lambda number, asked: web.json_response({"choices": [{
        "token_ids": [1], "finish_reason": "stop", "logprobs": None}]}))
    with pytest.raises(StageError, match="gives no token ids with their logprobs"):
        sample(warehouse, silent)
    off = serve(wrong_from_the_start=True, trouble=lambda number, asked: web.json_response(
        {"error": {"message": "Restart with --enable-scale-out."}}, status=403))
    with pytest.raises(StageError, match="refuses /inference/v1/generate: Restart with --enable-scale-out"):
        sample(warehouse, off)
    assert not (warehouse.root / "prompts").exists() and not (warehouse.root / "completions").exists()


def test_an_adapter_that_is_wrong_or_older_than_the_one_in_the_files_is_refused(
        warehouse: Warehouse, serve: Serve) -> None:
    server = serve(dtype="torch.bfloat16")
    server.says = [-1.41, -1.59, -1.31, -1.79] * 6           # the one before, but for rounding
    with pytest.raises(StageError, match=r"serves a policy that is older than .*policies/1"):
        sample(warehouse, server, iteration=1)
    server.says = [-1.5, -1.5, -2.9, -1.5] * 6
    with pytest.raises(StageError, match=r"not serve the policy of .*policies/1/.*: .* off by 0\.35 nats"):
        sample(warehouse, server, iteration=1)
    assert not (warehouse.root / "prompts").exists()
    server.says = [-1.49, -1.51, -1.49, -1.52] * 6
    sample(warehouse, server, iteration=1)


def test_policies_that_differ_by_less_than_rounding_are_never_told_apart() -> None:
    """Rounding has heavy tails: a few tokens are off by far more than all others."""
    draw = np.random.default_rng(1)
    for size in (0, 0.002, 0.005, 0.02):         # small steps; every number is rounded by itself
        for tail in (0, 1, 2):
            for _ in range(200):
                scale = np.exp(tail * draw.normal(size=100))
                step = size * scale * draw.normal(size=100)
                before, trained, said = (0.01 * scale * draw.normal(size=100) + by * step for by in (0, 1, 1))
                assert not is_former(said, trained, before, 0.01)
    step = np.full(400, 0.009)                   # an engine that is off by as much to one side
    assert not is_former(np.zeros(400), step, np.zeros(400), 0.01)


def test_policies_are_told_apart_as_far_as_the_noise_allows() -> None:
    draw = np.random.default_rng(0)
    before = -draw.exponential(size=200)
    for size, noise, told in ((0.05, 0.01, True), (0.5, 0.01, True), (0.001, 0.02, False),
                              (1e-6, 1e-9, False)):
        trained = before + draw.normal(0, size, 200)
        assert not is_former(trained + draw.normal(0, noise, 200), trained, before, 0.01)
        assert is_former(before + draw.normal(0, noise, 200), trained, before, 0.01) == told


def test_a_gpu_that_rounds_more_in_float32_serves_the_policy_and_still_no_other() -> None:
    """.0018 nats is what an H200 was off by, at the demo's second policy."""
    draw = np.random.default_rng(0)
    trained = -draw.exponential(size=30)
    probe = Probe(Path("policies/2"), [], trained, trained + 0.01)
    check_said(probe, [*(trained + 0.0018 * draw.choice([-1, 1], 30))], "float32", "It")
    for other, reason in ((trained + 0.01, "older than policies/2"), (trained + 0.1, "off by 0.1 nats")):
        with pytest.raises(StageError, match=reason):
            check_said(probe, [*other], "float32", "It")


def test_servers_that_are_not_alike_or_not_there(warehouse: Warehouse, serve: Serve) -> None:
    with pytest.raises(StageError, match=r"0.0.1:9 does not answer .nothing listens .* leave --endpoint out"):
        sample(warehouse, "http://127.0.0.1:9")
    with pytest.raises(StageError, match=r"has dtype float32, .* has bfloat16. Sample from equal ones"):
        sample(warehouse, serve(), serve(dtype="torch.bfloat16"))
    with pytest.raises(StageError, match="--endpoint localhost:8000 is not the address of a server"):
        sample(warehouse, "localhost:8000")
    said = sample(warehouse, "http://127.0.0.1:9", serve())
    assert any("it is left out" in line for line in said) and len(rows(warehouse)) == 24


def test_a_server_that_dies_loses_nothing_while_another_lives(warehouse: Warehouse, serve: Serve,
                                                              tmp_path: Path) -> None:
    def die(number: int, asked: dict) -> None:
        if number == 3:
            raise ConnectionResetError
    dying, living = serve(trouble=die), serve()
    said = sample(warehouse, dying, living, max_num_seqs=2)
    assert any("and did not come back" in line and "1 of 2 servers are left" in line for line in said)
    assert len(dying.served) == 3 and len(living.served) >= 21
    undisturbed = another_run(tmp_path / "other")
    sample(undisturbed, serve())
    assert what_was_sampled(warehouse) == what_was_sampled(undisturbed)
    assert living.most_at_once <= endpoint.BATCHES_AHEAD * 2


def another_run(folder: Path) -> Warehouse:
    folder.mkdir()
    init_run(folder / "run", str(BASE), (str(arc_file(folder, [f"t{n}" for n in range(6)])),))
    return open_warehouse(folder / "run")


def test_when_no_server_is_left_what_is_finished_stays_and_a_later_run_goes_on(
        warehouse: Warehouse, serve: Serve, tmp_path: Path) -> None:
    def die(number: int, asked: dict) -> None:
        if number == 13:
            raise ConnectionResetError
    with pytest.raises(StageError, match=r"No server is left: .* Finished completions are kept"):
        sample(warehouse, serve(trouble=die), max_num_seqs=2)
    server = serve()
    sample(warehouse, server)
    assert len(server.served) == 24 - 13
    undisturbed = another_run(tmp_path / "other")
    sample(undisturbed, serve())
    assert what_was_sampled(warehouse) == what_was_sampled(undisturbed)


def test_a_server_that_is_started_anew_is_loaded_again(warehouse: Warehouse, serve: Serve) -> None:
    def forget(number: int, asked: dict) -> None:
        if number == 5 and server.adapters and server.calls.count("/v1/load_lora_adapter") == 1:
            server.adapters.clear()
            server.served.append(asked)      # number 5 came once
    server = serve(trouble=forget)
    sample(warehouse, server, iteration=1, max_num_seqs=2)
    assert server.calls.count("/v1/load_lora_adapter") == 2 and len(rows(warehouse, 1)) == 24


def test_answers_that_were_broken_off_are_asked_for_again(warehouse: Warehouse, serve: Serve) -> None:
    troubles = [web.json_response({"choices": [{"token_ids": [1], "finish_reason": "abort",
                                                "logprobs": {"content": [{"logprob": -1.0}]}}]}),
                web.json_response({"error": {"message": "engine busy"}}, status=503),
                web.Response(text='{"choices": [', content_type="application/json")]
    server = serve(trouble=lambda number, asked: troubles.pop() if troubles else None)
    sample(warehouse, server)
    assert not troubles and len(rows(warehouse)) == 24
    assert [-1.0] not in [row["behaviour_logprobs"] for row in rows(warehouse)]


def test_a_request_that_always_fails_ends_the_stage_with_the_servers_words(
        warehouse: Warehouse, serve: Serve) -> None:
    always = serve(trouble=lambda number, asked: web.json_response(
        {"error": {"message": "a bug"}}, status=500))
    with pytest.raises(StageError, match=r"failed 5 times, last at .*: 500 for .*/generate: a bug"):
        sample(warehouse, always)
    refused = serve(trouble=lambda number, asked: web.json_response(
        {"error": {"message": "max_tokens is too large"}}, status=400))
    with pytest.raises(StageError, match="refuses /inference/v1/generate: max_tokens is too large"):
        sample(warehouse, refused)


def test_a_server_that_hangs_is_given_up(warehouse: Warehouse, serve: Serve,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WATCH_SECONDS", 0.05)
    for module in (endpoint, server_module):
        monkeypatch.setattr(module, "PATIENCE", 0.2)

    async def hang() -> None:
        hanging.hangs = True
        await asyncio.sleep(60)
    hanging, living = serve(trouble=lambda number, asked: hang()), serve()
    sample(warehouse, hanging, living, max_num_seqs=2)
    assert len(living.served) == 24


def test_the_time_limit_keeps_what_is_finished_and_breaks_the_rest_off(warehouse: Warehouse,
                                                                       serve: Serve) -> None:
    async def slowly() -> None:
        await asyncio.sleep(30)
    server = serve(trouble=lambda number, asked: slowly() if number >= 10 else None)
    with pytest.raises(StageStopped, match="the time limit of 3 s is over, with 10 of 24 completions kept"):
        sample(warehouse, server, time_limit=3.0)
    server.trouble = lambda number, asked: None
    sample(warehouse, server)
    assert len(server.served) == 24


@pytest.mark.parametrize("page", [web.Response(text="<html>It works!</html>", content_type="text/html"),
                                  web.Response(status=404, text="not here")], ids=["page", "nothing"])
def test_another_kind_of_server_is_told_from_one_that_is_ill(
        warehouse: Warehouse, serve: Serve, monkeypatch: pytest.MonkeyPatch, page: web.Response) -> None:
    async def answer(_server: FakeServer, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=page.text, status=page.status, content_type=page.content_type)
    monkeypatch.setattr(FakeServer, "_answer", answer)
    with pytest.raises(StageError, match=r"is not a vLLM server: it answers with .* Correct the address"):
        sample(warehouse, serve())
