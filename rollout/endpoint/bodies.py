"""Bodies of answers, read within bounds: a server may be anyone's, and may send without end."""

import zlib
from collections.abc import AsyncIterator

from rollout.endpoint.failures import Unavailable

MOST_BYTES = 32 * 2**20          # of an unpacked answer, or of a line of a streamed one
PACKED = {"gzip", "deflate"}     # some servers compress without being asked


async def read_text(chunks: AsyncIterator[bytes], packing: str | None, most: int) -> str:
    """The whole text of an answer; Unavailable if it is longer than `most` bytes."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > most:
            raise too_long(most)
    if packing in PACKED:
        packed = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            content = bytearray(packed.decompress(content, most))
        except zlib.error as error:
            raise Unavailable(f"its answer cannot be unpacked: {error}") from error
        if packed.unconsumed_tail:
            raise too_long(most)
    return content.decode("utf-8", "replace")


async def read_lines(chunks: AsyncIterator[bytes], most: int) -> AsyncIterator[str]:
    """The lines of an answer as they arrive; Unavailable if one is longer than `most` bytes."""
    pending = bytearray()
    async for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield (pending + line).decode("utf-8", "replace").rstrip("\r")
            pending = bytearray()
        pending += rest
        if len(pending) > most:
            raise too_long(most)
    if pending:
        yield pending.decode("utf-8", "replace")


def too_long(most: int) -> Unavailable:
    """The error for an answer that is too long."""
    return Unavailable(f"its answer is longer than {most / 2**20:.3g} MiB")
