"""Objects read remotely: a filesystem for DuckDB that reads ranges of bytes."""

import datetime
import threading
from typing import Any

from fsspec import AbstractFileSystem

from warehouse.objects.bucket import Bucket


class Ranges:
    """An object open for reading. DuckDB seeks and reads one handle from several threads at once.

    So each thread has its own position, and each read is an independent request; obstore's own file has one
    position for all threads and would return wrong bytes.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key, self._thread = bucket, key, threading.local()

    def seek(self, place: int, whence: int = 0) -> int:
        """Set the position, from the start."""
        assert whence == 0
        self._thread.place = place
        return place

    def tell(self) -> int:
        """This thread's position."""
        return getattr(self._thread, "place", 0)

    def read(self, length: int) -> bytes:
        """The next bytes."""
        content = self._bucket.get_range(self._key, self.tell(), length)
        self._thread.place = self.tell() + len(content)
        return content

    def close(self) -> None:
        """Nothing to close."""


class ObjectFilesystem(AbstractFileSystem):
    """The objects below one address, for reading; paths are addresses."""

    cachable = False        # fsspec would reuse that of another run's bucket

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self.protocol, self._bucket = bucket.scheme, bucket
        self._sizes: dict[str, int] = {}    # of parts, which never change and are requested often

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name and size; FileNotFoundError if there is no such object."""
        if path not in self._sizes:
            state = self._bucket.head(self._key(path))
            if state is None:
                raise FileNotFoundError(path)
            self._sizes[path] = state.size
        return {"name": path, "size": self._sizes[path], "type": "file"}

    def modified(self, path: str) -> datetime.datetime:
        """A constant: an object that is read in place never changes."""
        return datetime.datetime.fromtimestamp(0, datetime.UTC)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Ranges:
        return Ranges(self._bucket, self._key(path))

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._bucket.address}/").removeprefix(
            f"{self._bucket.address.partition('://')[2]}/")
