"""An S3 server for tests: moto's, in a process of its own, with puts one after the other.

moto looks whether an object stands and writes it in two steps, so of two conditional puts at once both could
win; S3 does it in one step, and so does this server. `STORE=gs://BUCKET/FOLDER python -m pytest
tests/warehouse/objects` puts the runs of the tests into another store, and leaves them there; with
`STORE=s3://BUCKET/FOLDER` that is the server at AWS_ENDPOINT_URL.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warehouse.objects.bucket import Bucket

STORE = os.environ.get("STORE", "s3://runs")
BUCKETS = ("runs", "careless", "shaky")
FAILING = 5     # of so many puts into the bucket `shaky`, one fails


@contextmanager
def object_server(num_parts: int = 0) -> Iterator[str]:
    """A server with three empty buckets; its URL. This process, and those it starts, speak to it meanwhile.

    `runs` is as S3 is, `careless` overwrites where it is told to create, `shaky` ends one of five puts with
    503, and half of those are written all the same, as where only the answer is lost. `num_parts` empty parts
    lie in `runs` below `full`.
    """
    if os.environ.get("STORE", "").startswith("s3:"):
        yield os.environ["AWS_ENDPOINT_URL"]
        return
    process = subprocess.Popen([sys.executable, "-m", "tests.building.object_server", str(num_parts)],
                               cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    url = process.stdout.readline().strip()
    names = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
             "AWS_REGION": "us-east-1"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield url
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        process.kill()
        process.wait()


def keys(address: str) -> list[str]:
    """Every object of a run."""
    return [key for key, _ in Bucket(address).list("")]


def serve(num_parts: int) -> None:
    """Serve until killed; the URL is printed."""
    import logging
    import threading

    import boto3
    from moto.s3.models import s3_backends
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    original, lock, count = S3Response.put_object, threading.Lock(), 0

    def put_object(self: S3Response) -> object:
        nonlocal count
        with lock:
            if self.bucket_name == "careless":
                self.headers = {name: value for name, value in self.headers.items()
                                if name.lower() != "if-none-match"}
            count += self.bucket_name == "shaky"
            if self.bucket_name == "shaky" and count % FAILING == 0:
                if count % (2 * FAILING) == 0:
                    original(self)
                return 503, {}, "<Error><Code>SlowDown</Code></Error>"
            return original(self)

    S3Response.put_object = put_object  # type: ignore[assignment]
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key",
                          aws_secret_access_key="secret")
    for name in BUCKETS:
        client.create_bucket(Bucket=name)
    stored = s3_backends["123456789012"]["aws"]
    folder = "full/completions/iteration=0/purpose=train"
    for number in range(num_parts):
        stored.put_object("runs", f"{folder}/part-{number:05d}.parquet", b"")
    print(url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
