"""The async client: its blocking twin is made from it, and both are used on one service."""

import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import sync_client

from stretto.client import AsyncClient, Client, ServiceError
from stretto.demo.own_service import OwnService
from stretto.model import InputError

pytestmark = [pytest.mark.processes, pytest.mark.sqlite]

PAGE = Path(__file__).parents[2] / "docs" / "python-client.md"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnService]:
    folder = tmp_path_factory.mktemp("async")
    options = ["--slots", "2", "--gpu-type", "cpu", "--policy", "fifo"]
    one = OwnService(folder, options, ("-m", "stretto.cli.app"), {**os.environ})
    one.begin()
    yield one
    one.end()


@pytest.mark.parametrize("source", sync_client.MADE)
def test_the_blocking_client_is_what_is_made_of_the_async_one(source: str) -> None:
    lies_there = (sync_client.CLIENT / sync_client.MADE[source]).read_text(encoding="utf-8")
    assert lies_there == sync_client.made(source), "run python tools/sync_client.py"


def test_only_words_of_the_language_go_and_none_of_a_text() -> None:
    written = 'async def f():\n    """It may await."""\n    return await g(AsyncClient, "await")  # async\n'
    made = 'def f():\n    """It may await."""\n    return g(Client, "await")  # async\n'
    assert sync_client.blocking(written) == made


def test_both_have_the_same_methods_with_the_same_arguments() -> None:
    def methods_of(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: [*inspect.signature(one).parameters] for name, one in found if name[0] != "_"}

    assert methods_of(Client) == methods_of(AsyncClient)
    assert len(methods_of(Client)) > 30
    for name in methods_of(AsyncClient):
        method = getattr(AsyncClient, name)
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method), name


@pytest.mark.slow
async def test_two_jobs_are_followed_at_once_on_one_thread(service: OwnService, tmp_path: Path) -> None:
    """Each job ends only after something was heard of the other one."""
    heard = {name: tmp_path / name for name in ("one", "other")}
    async with AsyncClient(service.url) as client:
        assert await client.is_ready()

        async def follow(name: str, awaited: Path) -> tuple[str, str, str]:
            run = f"echo {name}; until [ -e {awaited} ]; do sleep 0.05; done; echo done"
            text = f"name: {name}\nrun: '{run}'\nresources: {{accelerators: 1}}"
            job, said = (await client.submit(text))["id"], ""
            async for piece in client.log(job, follow=True):
                heard[name].touch()
                said += piece
            return job, said, (await client.wait(job))["state"]

        (one, *first), (other, *second) = await asyncio.gather(
            follow("one", heard["other"]), follow("other", heard["one"])
        )
        assert (first, second) == (["one\ndone\n", "COMPLETED"], ["other\ndone\n", "COMPLETED"])
        assert [event["kind"] async for event in client.events(one, follow=True)]
        assert {one, other} <= {job["id"] async for job in client.jobs(ended=True)}
    with service.client() as blocking:
        assert [blocking.describe(job)["state"] for job in (one, other)] == ["COMPLETED", "COMPLETED"]
        assert "".join(blocking.log(one)) == "one\ndone\n"


async def test_a_follower_may_leave_at_any_time(service: OwnService) -> None:
    async with AsyncClient(service.url) as client:
        job = (await client.submit("run: 'echo here; sleep 600'\nresources: {accelerators: 1}"))["id"]
        async with asyncio.timeout(120):
            async for piece in client.log(job, follow=True):
                assert piece == "here\n"
                break
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.wait(job)
        await client.change(job, "cancel")
        assert (await client.wait(job))["state"] == "CANCELLED"


async def test_a_job_file_is_read_while_others_go_on(service: OwnService, tmp_path: Path) -> None:
    pipe = tmp_path / "job.yaml"
    os.mkfifo(pipe)
    keeps = os.open(pipe, os.O_RDWR)  # somebody has it open, and writes late
    async with AsyncClient(service.url) as client:
        submitted = asyncio.create_task(client.submit(pipe))
        await asyncio.sleep(0.2)
        assert [*await client.nodes()], "another request is answered meanwhile"
        assert not submitted.done()
        os.write(keeps, b"run: 'true'\n")
        os.close(keeps)
        assert (await client.wait((await submitted)["id"]))["state"] == "COMPLETED"


async def test_what_is_wrong_is_raised_as_by_the_other(service: OwnService) -> None:
    async with AsyncClient(service.url) as client:
        with pytest.raises(InputError, match=r"unknown key 'gpus'"):
            await client.submit("run: 'true'\ngpus: many")
        with pytest.raises(InputError, match="nowhere"):
            await client.describe("nowhere")
    async with AsyncClient("http://127.0.0.1:9", patience_s=0.0) as client:
        with pytest.raises(ServiceError, match="no service answers at http://127"):
            await client.wait("1")
        assert not await client.is_ready()


@pytest.mark.parametrize("number", [0, 1])
def test_what_the_page_shows_runs(service: OwnService, tmp_path: Path, number: int) -> None:
    script = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)[number]
    (tmp_path / "train.yaml").write_text("run: echo trained\nresources: {accelerators: 1}\n")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "STRETTO_URL": service.url, "USER": "ada"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == done.stdout.count("COMPLETED") == number + 1
