"""A real training that has nothing but what it brought along: its directory is gone once it is submitted."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.client import AsyncClient, Client
from stretto.demo.own_service import until
from stretto.model import InputError

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.sockets]

OPTIONS = ("--slots", "2", "--gpu-type", "cpu", "--policy", "fifo")
SAYS = "import helper, os; print('HERE', os.getcwd()); print(helper.WORDS, flush=True)"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "here", *OPTIONS)
    running.begin()
    try:
        yield running
    finally:
        running.end()


def a_tree(root: Path, words: str = "brought along") -> Path:
    """A script that imports another file beside it."""
    root.mkdir()
    (root / "train.py").write_text(SAYS)
    (root / "helper.py").write_text(f"WORDS = {words!r}\n")
    (root / "run.sh").write_text('#!/bin/sh\nexec "$@"\n')
    (root / "run.sh").chmod(0o755)
    return root


def text_of(client: Client, job: str) -> str:
    """What its worker has written; nothing while the agent does not know that worker yet."""
    try:
        return "".join(client.log(job))
    except InputError as refused:
        if "no worker" not in str(refused):
            raise
        return ""


def test_a_job_runs_in_a_copy_of_what_it_brought_along(service: Running, tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "mine")
    with service.client() as client:
        job = client.submit("run: ./run.sh python3 train.py; touch made", upload=tree)["id"]
        size = sum(file.stat().st_size for file in tree.iterdir())
        shutil.rmtree(tree)
        assert client.wait(job)["state"] == "COMPLETED", text_of(client, job)
        assert "brought along" in text_of(client, job)
        here = Path(text_of(client, job).split("HERE ")[1].split("\n")[0])
        assert here.is_relative_to(service.state)
        until(lambda: not here.exists(), what="the copy goes with its last worker")
        described = client.describe(job)["upload"]
        assert (described["files"], described["bytes"]) == (3, size)
        with pytest.raises(InputError, match=r"--upload .*mine: expected a directory"):
            client.submit("run: 'true'", upload=tree)


@pytest.mark.slow
def test_an_attempt_after_a_crash_of_all_finds_the_same_and_not_what_the_first_one_wrote(
    service: Running, tmp_path: Path
) -> None:
    tree = a_tree(tmp_path / "mine")
    (tree / "train.py").write_text(
        "import os, time\nprint(sorted(os.listdir()), flush=True)\nopen('made', 'w').close()\n"
        f"while not os.path.exists({str(tmp_path / 'enough')!r}): time.sleep(0.1)\n"
    )
    with service.client() as client:
        job = client.submit(
            "{run: python3 train.py, checkpoint: {every: 1h}, preemptible: true}", upload=tree
        )["id"]
        shutil.rmtree(tree)
        until(lambda: "helper.py" in text_of(client, job), what="it runs")
    service.kill()
    service.begin()
    with service.client() as client:
        client.change(job, "requeue")
        until(lambda: client.describe(job)["attempt"] == 2, what="it runs again")
        until(lambda: "helper.py" in text_of(client, job), what="it has listed its copy")
        assert "made" not in text_of(client, job)
        (tmp_path / "enough").touch()
        assert client.wait(job)["state"] == "COMPLETED"


def test_workers_of_one_node_share_a_copy_in_which_setup_ran_once(service: Running, tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "mine")
    file = "{resources: {accelerators: 2}, setup: echo x >>once, run: 'cat once; pwd'}"
    with service.client() as client:
        job = client.submit(file, upload=tree)["id"]
        assert client.wait(job)["state"] == "COMPLETED"
        texts = {"".join(client.log(job, rank=rank)) for rank in (0, 1)}
        assert len(texts) == 1
        assert texts.pop().startswith("x\n/")


def test_the_async_client_uploads_too_and_a_second_time_sends_nothing(
    service: Running, tmp_path: Path
) -> None:
    tree = a_tree(tmp_path / "mine")
    sent: list[int] = []

    async def story() -> None:
        async with AsyncClient(service.url, None) as client:

            async def count(request: object) -> None:
                if str(getattr(request, "url", "")).endswith("/parts"):
                    sent.append(1)

            client.http.event_hooks["request"].append(count)
            first = await client.submit("run: python3 train.py", upload=tree)
            assert len(sent) == 1
            again = await client.submit("run: python3 train.py", upload=tree, workdir=".")
            assert len(sent) == 1
            assert first["upload"] == again["upload"]
            assert (await client.wait(again["id"]))["state"] == "COMPLETED"

    asyncio.run(story())


@pytest.mark.slow
def test_an_upload_that_a_kill_of_the_service_cuts_goes_on_with_the_rest(
    service: Running, tmp_path: Path
) -> None:
    tree = a_tree(tmp_path / "mine")
    from stretto.client.upload_tree import upload_tree

    with service.client() as client:
        packed = upload_tree(tree, client.ask("GET", "/api/v1/uploads"))
        headers = {"content-type": "application/json"}
        offered = client.ask("POST", "/api/v1/uploads", content=packed.manifest.content, headers=headers)
        (pack,) = packed.packs(offered["missing"][:1])
        client.ask("POST", f"/api/v1/uploads/{offered['digest']}/parts", content=pack)
    service.kill()
    service.begin()
    with service.client() as client:
        offered_again = client.ask(
            "POST", "/api/v1/uploads", content=packed.manifest.content, headers=headers
        )
        assert offered_again["missing"] == offered["missing"][1:]
        job = client.submit("run: ./run.sh python3 train.py", upload=tree)["id"]
        assert client.wait(job)["state"] == "COMPLETED"


def test_a_limit_of_the_service_is_one_line_with_the_biggest_files(tmp_path: Path) -> None:
    running = Running(tmp_path / "here", *OPTIONS, "--max-upload-size", "1MB")
    tree = a_tree(tmp_path / "mine")
    (tree / "data.bin").write_bytes(b"x" * 1_000_000)
    try:
        running.begin()
        with running.client() as client:
            began_s = time.monotonic()
            with pytest.raises(InputError, match=r"expected at most 1 MB, got 1 MB in 4 files; the biggest"):
                client.submit("run: 'true'", upload=tree)
            assert time.monotonic() - began_s < 60
            (tree / ".strettoignore").write_text("data.bin\n")
            assert client.submit("run: 'true'", upload=tree)["upload"]["files"] == 4
    finally:
        running.end()
