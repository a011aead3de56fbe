"""Objects: who wins a put, what is retried, and what a store that cannot be used says."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import obstore
import pytest
from click.testing import CliRunner
from obstore.exceptions import GenericError

from tests.building.object_server import keys
from warehouse.cli import cli
from warehouse.objects.bucket import Bucket, normal_address
from warehouse.store.errors import StageError


def test_of_many_writers_of_one_object_one_wins(address: str) -> None:
    contents = [b"writer %d" % number for number in range(8)]
    for key in (f"part-{number}" for number in range(4)):
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda content, key=key: Bucket(address).create(key, content), contents))
        winner, = (number for number, found in enumerate(won) if found)
        assert Bucket(address).get(key) == contents[winner] and Bucket(address).head(key) == won[winner]


def test_a_put_whose_answer_was_lost_is_known_by_its_content(server: str) -> None:
    bucket = Bucket("s3://shaky/run")      # every fifth put fails, and of those half were made all the same
    assert all(bucket.create(str(number), b"%d" % number) for number in range(15))
    assert not any(bucket.create(str(number), b"another's") for number in range(15))
    assert {key: bucket.get(key) for key in keys("s3://shaky/run")} == {
        str(number): b"%d" % number for number in range(15)}


def test_what_a_broken_connection_lost_is_asked_for_again(
        address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, broken = Bucket(address), list[str]()

    class Breaking:                         # the store does what it is asked, and its first answer is lost
        def __getattr__(self, name: str) -> Callable[..., object]:
            def ask(*words: object, **options: object) -> object:
                answer = getattr(obstore, name)(*words, **options)
                if name not in broken:
                    broken.append(name)
                    raise GenericError("HTTP error: request or response body error")
                return answer
            return ask
    monkeypatch.setattr(bucket, "_api", Breaking())
    assert bucket.create("key", b"first") and bucket.create("key", b"second") is None
    assert bucket.copy("key", "copy") and sorted(dict(bucket.list(""))) == ["copy", "key"]
    assert bucket.head("key") == bucket.download("key", tmp_path / "file")
    bucket.delete(["copy"])
    assert keys(address) == ["key"] and len(broken) == 6


def test_a_large_file_is_put_in_as_many_pieces_as_a_store_takes(
        address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 at most: the optimizer of a fully trained 7B is larger than that many of 5 MiB."""
    bucket, large, size, pieces = Bucket(address), tmp_path / "optimizer.pt", 61 * 10**9, list[int]()
    large.touch()
    os.truncate(large, size)
    monkeypatch.setattr(bucket, "_api", SimpleNamespace(
        put=lambda *_, chunk_size=5 << 20: pieces.append(chunk_size) or {"e_tag": "e"}))
    assert bucket.put("key", large).size == size and bucket.put("key", b"small").size == 5
    assert 5 << 20 == pieces[1] < pieces[0] and size / pieces[0] < 10_000


def test_a_store_without_conditional_puts_is_refused(server: str) -> None:
    with pytest.raises(StageError, match=r"has no conditional puts .* a late worker could overwrite"):
        Bucket("s3://careless/run").check_conditional_puts()
    Bucket("s3://runs/run").check_conditional_puts()
    assert not keys("s3://careless/run") and not keys("s3://runs/run")


def test_objects_are_deleted_in_one_request_and_one_that_is_gone_keeps_no_other(
        address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, asked = Bucket(address), list[list[str]]()
    for key in "abc":
        bucket.create(key, b"")

    def delete(store: object, names: list[str]) -> None:     # as a store that tells what is gone, like Azure
        asked.append(names)
        if "gone" in names:
            raise FileNotFoundError("gone")
        obstore.delete(store, names)
    monkeypatch.setattr(bucket, "_api", SimpleNamespace(delete=delete))
    bucket.delete(["a", "b"])
    assert asked == [["a", "b"]] and keys(address) == ["c"]
    bucket.delete(["gone", "c"])
    assert keys(address) == []


@pytest.mark.parametrize(("run", "environment", "words"), [
    ("s3://nowhere/run", {}, "there is no such bucket. Create it"),
    ("s3://runs/run", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "the store cannot be reached. Check the"),
    ("s3://runs/run", {"AWS_ENDPOINT_URL": "local host"}, "not an address like https://HOST:PORT"),
    ("s3://runs/run", {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None,
                       "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9/169.254.169.254"},
     "credentials are missing or wrong. To give some, set AWS_ACCESS_KEY_ID"),
    *(("s3://runs/run", {name: None}, "credentials are missing or wrong")
      for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    ("az://container/run", {"AZURE_STORAGE_ACCOUNT_NAME": None, "AZURE_STORAGE_USE_EMULATOR": None},
     "To give some, set AZURE_STORAGE_ACCOUNT_NAME"),
    ("s3://runs", {}, "is not an address of a run. Known are s3://BUCKET/RUN"),
    ("ftp://runs/run", {}, "is not an address of a run. Known are s3://BUCKET/RUN"),
    ("S3://runs/run", {}, "is not an address of a run. Known are s3://BUCKET/RUN"),
    ("s3://runs/run#2", {}, "in RUN no ?, #"),      # in a URL it is s3://runs/run
    ("s3://runs/%2e%2e/run", {}, "in RUN no ?, #"),
    ("s3://runs/../run", {}, "in RUN no ?, #"),
    (f"s3://runs/{'x' * 256}", {}, "no name of over 200 letters"),
    ("s3://runs/nothing", {}, "Error: s3://runs/nothing is not a run folder"),
])
def test_a_store_that_cannot_be_used_says_why_in_one_sentence(
        server: str, run: str, environment: dict[str, str | None], words: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr("warehouse.objects.bucket.RETRIES", {"max_retries": 1})
    for name, value in environment.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    ended = CliRunner().invoke(cli, ["check", run])
    assert ended.exit_code == 1 and words in ended.output and ended.output.count("\n") == 1, ended.output


@pytest.mark.parametrize(("status", "code", "words"), [
    (403, "RequestTimeTooSkewed", "clock is wrong by more than the store allows. Set it"),
    (403, "InvalidAccessKeyId", "credentials are missing or wrong"),
    (403, "SignatureDoesNotMatch", "credentials are missing or wrong"),
    (400, "ExpiredToken", "credentials are missing or wrong"),
    (403, "AccessDenied", "does not permit it. Ask for the rights"),
    (301, "PermanentRedirect", "lies in another region. Name that one in AWS_REGION"),
    (400, "AuthorizationHeaderMalformed", "lies in another region"),
    (404, "NoSuchBucket", "there is no such bucket")])
def test_what_a_store_refuses_is_told_by_its_reason(
        server: str, status: int, code: str, words: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(f"<Error><Code>{code}</Code></Error>".encode())

        def do_HEAD(self) -> None:      # as with every store, without the reason
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        Thread(target=refusing.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refusing.server_port}")
        monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path))
        ended = CliRunner().invoke(cli, ["check", "s3://runs/run"])
        refusing.shutdown()
    assert ended.exit_code == 1 and words in ended.output and ended.output.count("\n") == 1, ended.output


def test_an_address_may_have_gone_through_a_path() -> None:
    assert normal_address(Path("s3://bucket/some/run/")) == "s3://bucket/some/run"
    assert normal_address("gs://bucket//run") == "gs://bucket/run"
