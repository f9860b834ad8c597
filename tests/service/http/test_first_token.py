"""Who starts a service that asks for tokens finds the first one beside its log, and nobody else does."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import SMALL, play

from stretto.model import InputError
from stretto.service.config import Config
from stretto.service.emulated.options import EmulatedOptions
from stretto.service.main import FIRST_TOKEN, serve

pytestmark = [pytest.mark.sockets, pytest.mark.sqlite]


async def answers(config: Config, token: str = "") -> tuple[str, list[int]]:
    """(the token in the file, what a submission and a look at tokens are answered with)."""
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(config, announced))
    try:
        both: set[asyncio.Future[Any]] = {running, announced}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        file = config.state / FIRST_TOKEN
        found = file.read_text().strip() if file.exists() else ""
        given = {"authorization": f"Bearer {token or found}"} if token or found else {}
        async with httpx.AsyncClient(base_url=announced.result(), headers=given, trust_env=False) as client:
            async with asyncio.timeout(60):
                while (await client.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.02)
            made = (await client.post("/api/v1/jobs", json=SMALL)).status_code
            return found, [made, (await client.get("/api/v1/tokens")).status_code]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_first_admin_finds_a_token_that_works_and_is_not_replaced(tmp_path: Path) -> None:
    async def story() -> None:
        config = Config(tmp_path / "state", port=0, backend=EmulatedOptions("gpu8-256"), policy="fifo")
        token, statuses = await answers(config)
        assert statuses == [201, 200]
        assert stat.S_IMODE((config.state / FIRST_TOKEN).stat().st_mode) == 0o600
        assert token.encode() not in (config.state / "stretto.db").read_bytes()
        assert token not in (config.state / "service.log").read_text()
        assert await answers(config) == (token, [201, 200])
        assert (await answers(config, "another"))[1] == [401, 401]

    play(story)


def test_an_open_door_has_no_first_token(tmp_path: Path) -> None:
    async def story() -> None:
        config = Config(
            tmp_path / "state",
            port=0,
            backend=EmulatedOptions("gpu8-256"),
            policy="fifo",
            open_on_loopback=True,
        )
        assert await answers(config) == ("", [201, 200])

    play(story)


@pytest.mark.parametrize("key", [b"", b"half of a ke"])
def test_a_key_that_was_cut_opens_no_service(tmp_path: Path, key: bytes) -> None:
    (tmp_path / "key").write_bytes(key)
    with pytest.raises(InputError, match=f"key: expected 32 bytes, got {len(key)}"):
        asyncio.run(serve(Config(tmp_path, port=0, backend=EmulatedOptions("gpu8-256"))))


def test_a_state_directory_or_log_that_cannot_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    usual = {"port": 0, "backend": EmulatedOptions("gpu8-256")}
    with pytest.raises(InputError, match=r"--state .*file: expected a directory"):
        asyncio.run(serve(Config(tmp_path / "file", **usual)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"--log-file .*: cannot be written: Is a directory"):
        asyncio.run(serve(Config(tmp_path / "state", log_file=str(tmp_path), **usual)))  # type: ignore[arg-type]
