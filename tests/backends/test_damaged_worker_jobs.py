"""A damaged directory of one worker job keeps no service from the others, and no start that is repeated."""

import asyncio
import threading
from pathlib import Path

import pytest

from stretto.backends.protocol import StartRefused, WorkerStart
from stretto.backends.slurm import worker_jobs
from stretto.backends.slurm.backend import SlurmBackend
from stretto.backends.slurm.nodes import NodeResources
from stretto.backends.slurm.options import SlurmOptions

pytestmark = [pytest.mark.processes, pytest.mark.large]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": "x", "gpus": -1}', "[" * 100_000])
@pytest.mark.parametrize("name", ["start.json", "running.json", "slice.json"])
def test_of_two_worker_jobs_the_damaged_one_is_set_aside(
    tmp_path: Path, name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = SlurmBackend(SlurmOptions(()), "s", tmp_path)
    backend.adopt()
    for worker in ("1.1.0", "2.1.0"):
        start = WorkerStart(worker, worker[0], "n1", (0,), "exit 0", {})
        run = worker_jobs.prepare(backend.runs, start, NodeResources(1, 1, 1))
        worker_jobs.note_job(run, 7)
    (backend.runs / "1.1.0" / name).write_text(text)
    backend.known.clear()
    backend.adopt()
    assert list(backend.known) == ["2.1.0"]
    assert backend.known["2.1.0"].job_id == 7
    assert f"worker 1.1.0 is set aside: {name}" in caplog.text


START = WorkerStart("1.1.0", "1", "n1", (0,), "exit 0", {})
ENOUGH = NodeResources(1, 1, 1)


def test_a_start_that_was_given_up_while_it_was_written_down_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SlurmBackend(SlurmOptions(()), "s", tmp_path)
    backend.adopt()
    begun, goes_on, prepare = threading.Event(), threading.Event(), worker_jobs.prepare

    def slowly(*arguments: object) -> Path:
        begun.set()
        goes_on.wait(60)
        return prepare(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(worker_jobs, "prepare", slowly)

    async def story() -> None:
        first = asyncio.create_task(backend.write_down(START, ENOUGH))
        await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(backend.written_before("1.1.0"))
        await asyncio.sleep(0)
        goes_on.set()
        found = await second
        assert found is backend.known["1.1.0"]

    asyncio.run(story())


def test_what_an_earlier_start_wrote_down_is_found_though_nobody_took_note_of_it(tmp_path: Path) -> None:
    backend = SlurmBackend(SlurmOptions(()), "s", tmp_path)
    backend.adopt()
    worker_jobs.prepare(backend.runs, START, ENOUGH)
    found = asyncio.run(backend.written_before("1.1.0"))
    assert found is backend.known["1.1.0"]
    assert found.started["command"] == "exit 0"


def test_a_directory_that_cannot_be_read_gives_the_start_up(tmp_path: Path) -> None:
    backend = SlurmBackend(SlurmOptions(()), "s", tmp_path)
    backend.adopt()
    (worker_jobs.prepare(backend.runs, START, ENOUGH) / "start.json").write_text("[")

    async def story() -> None:
        assert await backend.written_before("1.1.0") is None
        with pytest.raises(StartRefused, match="is there, and damaged"):
            await backend.write_down(START, ENOUGH)

    asyncio.run(story())
