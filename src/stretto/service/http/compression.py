"""Streams in gzip, of which every part can be read as soon as it is there."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator

from starlette.datastructures import Headers

LEVEL = 3  # chosen: 4.6 MB of 10,000 jobs become 0.17 in 7 ms; at 6 they become 0.14 in twice that
GZIP = 31  # a window of 32 KB, and the header of gzip
IN_PLACE = 64_000  # characters that are compressed at once, without a thread; chosen
ACCEPTS = re.compile(r"(?:^|,)\s*(?:gzip|\*)\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?=,|$)", re.I)


def accepts_gzip(headers: Headers) -> bool:
    """Whether the caller can read it."""
    return ACCEPTS.search(headers.get("accept-encoding", "")) is not None


async def in_gzip(texts: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """Each text as bytes that can be read without those that follow."""
    compressor = zlib.compressobj(LEVEL, wbits=GZIP)

    def packed(text: str) -> bytes:
        return compressor.compress(text.encode()) + compressor.flush(zlib.Z_SYNC_FLUSH)

    async for text in texts:
        yield await asyncio.to_thread(packed, text) if len(text) > IN_PLACE else packed(text)
    yield compressor.flush()
