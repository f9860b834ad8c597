"""A gateway to Ray that talks without a pause is ended whenever the service lets go of it."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from stretto.backends.ray.backend import Call, Gateway

pytestmark = pytest.mark.processes

TALKS = "import os, sys\nwhile True: os.write(int(sys.argv[1]), b'{}\\n' * 50)"


@dataclass(frozen=True)
class Talking(Call):
    """A process that says nothing of Ray, all the time."""

    def command(self, file: int) -> list[str]:
        return [sys.executable, "-c", TALKS, str(file)]


@pytest.mark.parametrize("lines", range(1, 6))
def test_a_cancelled_gateway_ends_also_where_a_line_comes_at_that_moment(tmp_path: Path, lines: int) -> None:
    async def story() -> None:
        heard = asyncio.Semaphore(0)
        gateway = Gateway(Talking("", "talks", tmp_path / "log", 1.0, 1.0), lambda _: heard.release())
        keeping = asyncio.create_task(gateway.keep())
        for _ in range(lines):
            await heard.acquire()
        keeping.cancel()
        done, _ = await asyncio.wait([keeping], timeout=10)
        keeping.cancel()
        assert done
        assert keeping.cancelled()
        assert gateway.process is None

    asyncio.run(story())
