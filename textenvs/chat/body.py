"""Read the body of an HTTP answer within a bound, which also limits decompression."""

from __future__ import annotations

import zlib
from typing import Any

#: The encodings that are requested, and decoded here: their decompression can stop at any byte.
ACCEPTED = "gzip, deflate"
#: The largest answer, in bytes: room for a text of ``answer.MAX_TEXT`` characters with all of them escaped.
MAX_ANSWER = 8 * 2**20
#: Bytes of an error's body that are read; the rest is ignored.
MAX_ERROR = 64 * 2**10

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class BadBodyError(Exception):
    """A body that is not read; the message says why."""


async def read_body(response: Any, limit: int) -> tuple[bytes, bool]:
    """Read and unpack at most ``limit`` bytes of a streamed response of httpx, and close it.

    Returns the bytes, and whether they are the whole body. Raises ``BadBodyError`` where it cannot be unpacked.
    """
    packed = response.headers.get("content-encoding", "").strip().lower()
    if packed not in ("", "identity", "gzip", "x-gzip", "deflate"):
        await response.aclose()
        raise BadBodyError(f"its body is packed as {packed[:60]!r}; asked for was {ACCEPTED}")
    unpacker = None if packed in ("", "identity") else zlib.decompressobj(_GZIP_OR_ZLIB)
    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            if unpacker is not None:
                chunk = unpacker.decompress(chunk, limit + 1 - len(body))
            body += chunk
            if len(body) > limit:
                return bytes(body[:limit]), False
    except zlib.error as error:
        raise BadBodyError(f"its body cannot be unpacked as {packed}: {error}") from None
    finally:
        await response.aclose()
    return bytes(body), True
