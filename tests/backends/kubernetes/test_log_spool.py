"""Logs that are copied from pods are bounded, job by job."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, until
from tests.backends.kubernetes.test_faults import WORKER, bind, end, name_of

from stretto.agent.log_bounds import NOTICE, taken_by
from stretto.backends.kubernetes import log_spool

pytestmark = pytest.mark.sockets

LINE = "2026-11-20T10:00:{:02d}.000000000Z " + "x" * 9_990 + "\n"
MOST_BYTES = 1 << 20


async def test_logs_of_a_job_take_no_more_than_was_said_and_its_end_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_spool, "BOUND_LOGS_S", 0.01)
    monkeypatch.setattr(log_spool, "RETRY_S", 0.01)
    workers = [replace(WORKER, id=f"{job}.1.0", job=job, gpus=(gpu,)) for job, gpu in (("7", 0), ("8", 1))]
    async with backend_in_memory(tmp_path, max_log_bytes=MOST_BYTES) as (server, backend):
        long = "".join(LINE.format(number % 60) for number in range(300))
        for worker, text in zip(workers, (long, LINE.format(1)), strict=True):
            await backend.start(worker)
            server.logs["jobs", name_of(worker)] = text.encode()
            bind(server, worker)
        path = backend.logs.path("7.1.0")
        written = 2_900_000  # or more, as the log still comes; what is dropped depends on how much had come
        await until(lambda: path.stat().st_size > written and taken_by(path) <= MOST_BYTES)
        piece = await backend.log("7.1.0")
        assert piece.offset >= written - MOST_BYTES, "readers go on at the same offsets"
        assert piece.data.startswith(NOTICE)
        assert len((await backend.log("8.1.0")).data) == 9_991, "the log of another job is left alone"


async def test_logs_of_earlier_lives_of_the_service_count_and_are_deleted_with_their_job(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path) as (_, backend):
        backend.logs.finish("7.1.0", "it ended")
        backend.logs.finish("77.1.0", "another job")
    async with backend_in_memory(tmp_path) as (_, backend):
        assert backend.logs.of_job("7") == ["7.1.0"]
        await backend.delete_logs("7")
        assert backend.logs.of_job("7") == []
        assert not backend.logs.path("7.1.0").exists()
        assert backend.logs.path("77.1.0").exists()


async def test_a_server_that_gives_no_logs_is_asked_for_them_ever_later_and_at_once_when_their_worker_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_spool, "RETRY_S", 0.01)
    async with backend_in_memory(tmp_path) as (server, backend):
        server.fail("GET", "pods", 500, "its kubelet does not answer", times=1_000_000)
        await backend.start(WORKER)
        bind(server)
        await asyncio.sleep(2.0)
        assert 2 < len(server.of("GET", "pods")) < 40, "and not two hundred times"
        server.faults.clear()
        server.logs["jobs", name_of()] = b"2026-11-20T10:00:30.5Z its last words\n"
        end(server)
        async with asyncio.timeout(5.0):
            await until(lambda: backend.logs.is_complete(WORKER.id))
        assert (await backend.log(WORKER.id)).data == b"its last words\n"


async def test_a_log_for_which_the_disk_has_no_room_is_copied_once_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_spool, "RETRY_S", 0.01)
    is_full, opened = [True], Path.open

    def open_if_there_is_room(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        if is_full[0] and mode == "ab":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, mode, *args, **more)

    monkeypatch.setattr(Path, "open", open_if_there_is_room)
    async with backend_in_memory(tmp_path) as (server, backend):
        server.logs["jobs", name_of()] = b"2026-11-20T10:00:30.5Z words\n"
        await backend.start(WORKER)
        bind(server)
        await until(lambda: backend.logs.followers)
        await asyncio.sleep(0.1)
        assert (await backend.log(WORKER.id)).data == b""
        is_full[0] = False
        async with asyncio.timeout(5.0):
            while (await backend.log(WORKER.id)).data != b"words\n":
                await asyncio.sleep(0.01)
