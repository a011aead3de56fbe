"""The only module that imports obstore: the objects below one address, and its errors as sentences."""

import os
import re
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from warehouse.store.errors import StageError

# Path turns s3://bucket into s3:/bucket. Names excluded here would mean another address in a URL.
ADDRESS = re.compile(r"(s3|gs|az):/+([^/]+)((?:/+(?!\.{1,2}(?:/|$))[^/?#%\x00-\x1f]{1,200})+)(?<!\s)/*")
RETRIES = {"max_retries": 8, "retry_timeout": timedelta(seconds=60),
           "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5),
                       "base": 2}}
ATTEMPTS = 6        # for transient errors, in addition to obstore's own
PIECE, PIECES = 5 << 20, 9_000      # of a large file, in bytes: at least; their number: S3 takes 10,000
Answer = TypeVar("Answer")
PROBE = ".probe-"   # objects for testing conditional puts
OVERLOADED, BROKEN, UNREACHED = ("the store is overloaded", "the connection to the store broke",
                                 "the store cannot be reached")
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (where the aws command is signed in, "
          "`eval $(aws configure export-credentials --format env)` does it)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the JSON file of a key, or run `gcloud auth "
          "application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"}
REASONS = (  # a pattern in a store's error, its cause, and the way out
    ("NoSuchBucket|ContainerNotFound|specified bucket does not exist",
     "there is no such bucket", "Create it, or correct the address"),
    ("RequestTimeTooSkewed", "this machine's clock is wrong by more than the store allows",
     "Set it (`timedatectl`)"),
    ("PermanentRedirect|without LOCATION|AuthorizationHeaderMalformed|IllegalLocationConstraint",
     "the bucket lies in another region", "Name that one in AWS_REGION"),
    ("169.254.169.254|Missing (AccessKeyId|SecretAccessKey)|MissingAccount|token request|"
     "MissingCredentials|InvalidAccessKeyId|Invalid Access Key|SignatureDoesNotMatch|"
     "AuthenticationFailed|ExpiredToken|InvalidClientTokenId",
     "credentials are missing or wrong", "To give some, {credentials}"),
    ("AccessDenied|403 Forbidden|PermissionDenied|not have .*access", "the store does not permit it",
     "Ask for the rights to list, read, write and delete below it"),
    ("response body error", BROKEN, "Check the network"),
    ("kind: Connect|kind: Timeout|error sending request|dns error", UNREACHED,
     "Check the network and, for a store of your own, AWS_ENDPOINT_URL"),
    ("SlowDown|503 Service|429 Too Many|500 Internal|409 Conflict", OVERLOADED, "Wait a little"),
)


class ObjectState(NamedTuple):
    """An object in a listing."""

    size: int   # bytes
    mark: int   # 0 to 999,999, from its e-tag: it changes with the content


class StoreError(StageError):
    """An error of a store, and `why`, in the words of REASONS if they match."""

    def __init__(self, address: str, why: str, way_out: str) -> None:
        self.why = why
        super().__init__(f"{address} cannot be used: {why}. {way_out}, then run the same command again; what "
                         "was written before is kept.")


class Bucket:
    """The objects below an address; keys are relative to it. Every error is a StageError."""

    def __init__(self, address: str) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise StageError("Runs in object stores need another package: pip install 'rollhouse[objects]'."
                             ) from error
        self._api: Any = obstore
        self.address = normal_address(address)
        self.scheme = self.address.partition(":")[0]
        own = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", ""))
        if own and not re.fullmatch(r"https?://[^\s/]+/?", own):
            raise StageError(f"AWS_ENDPOINT_URL is {own}, not an address like https://HOST:PORT. Fix it.")
        client = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(hours=1),
                  "read_timeout": timedelta(minutes=5),     # for a connection lost while a laptop slept
                  **({"allow_http": True} if own.startswith("http:") else {})}
        with self.explain_errors():
            self._store = self._api.store.from_url(self.address, client_options=client, retry_config=RETRIES)
        self._reached = False

    def _ask(self, work: Callable[[], Answer]) -> Answer:
        """The store's answer; retried if the connection broke, or if the store was reached before."""
        for attempt in range(ATTEMPTS):
            try:
                with self.explain_errors():
                    answer = work()
                self._reached = True
                return answer
            except StoreError as error:
                passing = (OVERLOADED, BROKEN, UNREACHED) if self._reached else (OVERLOADED, BROKEN)
                if error.why not in passing or attempt == ATTEMPTS - 1:
                    raise
                if error.why == UNREACHED:
                    print(f"{error.why}: {self.address} is retried ..", file=sys.stderr)
                time.sleep((3 if error.why == UNREACHED else 0.1) * 2**attempt)
        raise AssertionError

    def create(self, key: str, content: Path | bytes) -> ObjectState | None:
        """Put an object unless its key exists; then None, unless the existing object has this content.

        If the answer to a put is lost, the retry meets its own object; therefore contents are compared.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError
        try:
            return _state(_length(content), self._ask(
                lambda: self._api.put(self._store, key, content, mode="create"))["e_tag"])
        except StageError as error:
            if not isinstance(error.__cause__, AlreadyExistsError | PreconditionError):
                raise
        same = self.get(key)
        if same is None:            # it was removed meanwhile
            return self.create(key, content)
        wanted = content if isinstance(content, bytes) else content.read_bytes()
        return self.head(key) if same == wanted else None

    def put(self, key: str, content: Path | bytes) -> ObjectState:
        """Put an object, replacing any other; a large file in pieces."""
        size = _length(content)
        return _state(size, self._ask(lambda: self._api.put(
            self._store, key, content, chunk_size=max(PIECE, size // PIECES)))["e_tag"])

    def get(self, key: str) -> bytes | None:
        """The content of a small object; None if there is none."""
        return self._unless_gone(lambda: bytes(self._api.get(self._store, key).bytes()))

    def download(self, key: str, path: Path) -> ObjectState | None:
        """Write an object to a file, a piece at a time; None if there is none."""
        def get() -> ObjectState:
            answer = self._api.get(self._store, key)
            with path.open("wb") as stream:
                for piece in answer.stream():
                    stream.write(piece)
            return _state(answer.meta["size"], answer.meta["e_tag"])
        state = self._unless_gone(get)
        if state and path.stat().st_size != state.size:
            raise StageError(f"{self.address}/{key} arrived incomplete. Run the same command again.")
        return state

    def head(self, key: str) -> ObjectState | None:
        """Size and mark of an object; None if there is none."""
        meta = self._unless_gone(lambda: self._api.head(self._store, key))
        return meta and _state(meta["size"], meta["e_tag"])

    def list(self, prefix: str, after: str | None = None) -> list[tuple[str, ObjectState]]:
        """Every object below a folder, or those with a key after `after`, a thousand per request."""
        return self._ask(lambda: [
            (str(meta["path"]), _state(meta["size"], meta["e_tag"]))
            for page in self._api.list(self._store, prefix=prefix, offset=after, chunk_size=1000)
            for meta in page])

    def list_top(self) -> dict[str, ObjectState]:
        """The objects directly below the address."""
        objects = self._ask(lambda: self._api.list_with_delimiter(self._store)["objects"])
        return {str(meta["path"]): _state(meta["size"], meta["e_tag"]) for meta in objects}

    def copy(self, key: str, to: str) -> bool:
        """Copy an object within the store; False if there is none."""
        return self._unless_gone(lambda: (self._api.copy(self._store, key, to), True)[1]) or False

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, many per request; missing ones are ignored."""
        keys = list(keys)
        try:
            self._ask(lambda: self._api.delete(self._store, keys))
        except FileNotFoundError:       # one key is gone, others may exist
            for key in keys if len(keys) > 1 else []:
                self.delete([key])

    def check_conditional_puts(self) -> None:
        """StageError for a store that overwrites instead of refusing: a late writer could win there."""
        from obstore.exceptions import NotSupportedError
        key, refused = f"{PROBE}{uuid.uuid4().hex}", False
        try:
            refused = bool(self.create(key, b"first")) and self.create(key, b"second") is None
        except StageError as error:
            cause = error.__cause__
            if not isinstance(cause, NotSupportedError) and "NotImplemented" not in str(cause):
                raise
        finally:
            self.delete([key])
        if not refused:
            raise StageError(f"{self.address} has no conditional puts (If-None-Match), by which the first "
                             "writer of a part wins: a late worker could overwrite it. Use a store "
                             "that has them, such as S3, Google Cloud Storage, Azure, R2 or MinIO.")

    def _unless_gone(self, work: Callable[[], Answer]) -> Answer | None:
        """The store's answer; None if the object does not exist."""
        try:
            return self._ask(work)
        except FileNotFoundError:
            return None

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn the store's errors into sentences; FileNotFoundError stays, except for a missing bucket."""
        from obstore.exceptions import BaseError
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            text = str(error)
            why, way_out = next(((why, way_out) for pattern, why, way_out in REASONS
                                 if re.search(pattern, text)), (None, ""))
            if isinstance(error, FileNotFoundError) and why != REASONS[0][1]:
                raise
            if why is None:
                why, way_out = text.partition("\n")[0][:300].rstrip("."), "See what that says"
            way_out = way_out.format(credentials=CREDENTIALS[self.scheme])
            raise StoreError(self.address, why, way_out) from error


def is_address(path: str | Path) -> bool:
    """True for the address of a run in an object store; hf:/FILE is a source of tasks."""
    return bool(re.match(r"(?!hf:)[A-Za-z0-9]+:/", str(path)))


def normal_address(path: str | Path) -> str:
    """`s3://bucket/run`, also from what Path made of it; StageError if it is none of the known kinds."""
    parts = ADDRESS.fullmatch(str(path))
    if not parts:
        raise StageError(f"{path} is not an address of a run. Known are s3://BUCKET/RUN, gs://BUCKET/RUN and "
                         "az://CONTAINER/RUN; in RUN no ?, #, %, . or .., and no name of over 200 letters.")
    return f"{parts[1]}://{parts[2]}{re.sub('/+', '/', parts[3])}"


def _state(size: int, e_tag: str | None) -> ObjectState:
    return ObjectState(size, zlib.crc32((e_tag or "").strip('"').encode()) % 1_000_000)


def _length(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size
