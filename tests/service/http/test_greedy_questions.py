"""Whoever asks what would become of the jobs stops nobody else, however much it would take to answer."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.service.http.rig import SMALL, Rig, a_rig, play, token_of
from tests.service.running import Running

from stretto.demo.own_service import until
from stretto.jobfile import read_submission
from stretto.model import InputError

pytestmark = [pytest.mark.processes, pytest.mark.sqlite]

ENDLESS = {  # hours of evolution, within the bounds of settings
    "policy": "pollux",
    "settings": {"policy.generations": "1000", "policy.population": "1000"},
    "draws": 64,
}
HUGE = {  # a thousand schedules of 620,000 GPUs
    "policy": "ones",
    "settings": {"policy.population": "1000"},
    "nodes": [{"gpu_type": "a100", "gpus": 62, "count": 10_000}],
}
SLOW = {**HUGE, "settings": {"policy.population": "20", "policy.generations": "1000"}}  # minutes a decision
ELASTIC = {"text": "run: x\nelastic: {min: 1, max: 4}\nexpected_time: 10h"}
LONG_TEXT = "#!/bin/bash\n" + "#SBATCH --gres=gpu:1\n" * 45_000 + "true"  # a third of a second of reading


def children_of(process: int) -> list[int]:
    """Processes of a service's pools."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if b"stretto.service.pool.child" in command:
                found.append(int(child))
    return found


def cpu_s_of(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def with_jobs(rig: Rig) -> None:
    for _ in range(6):
        await rig.submit("ada", **ELASTIC)


@contextmanager
def asking(url: str, body: object) -> Iterator[None]:
    """A what-if that is on its way meanwhile."""
    client = httpx.Client(trust_env=False, timeout=300)

    def ask() -> None:
        with suppress(httpx.HTTPError):
            client.post(f"{url}/api/v1/whatif", json=body)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        thread.join(300)
        client.close()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        pytest.param(
            {"policy": "ones", "settings": {"policy.generations": "1000000000"}},
            "policy.generations in a what-if must be at most 1000, got 1000000000",
            id="a count without end",
        ),
        pytest.param(
            {"policy": "ones", "settings": {"policy.population": "+30_000_000"}},
            "policy.population in a what-if must be at most 1000, got 30000000",
            id="a count that takes all memory, in other words",
        ),
        pytest.param(
            {"nodes": [{"gpu_type": "a100", "gpus": 8, "count": 10_000}] * 2},
            "nodes: expected at most 10000 in all",
            id="a cluster without end",
        ),
    ],
)
def test_what_would_take_without_end_is_refused_in_one_line(
    tmp_path: Path, settings: dict[str, object], line: str
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            answer = await ada.post("/api/v1/whatif", json=settings)
            assert (answer.status_code, answer.json()["detail"]) == (422, line)

    play(story)


@pytest.mark.slow
def test_a_what_if_beyond_its_time_or_memory_is_ended_and_said_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada", timeout=300) as ada:
            await with_jobs(rig)
            rig.service.long_work.most_s = 2.0
            answer = await ada.post("/api/v1/whatif", json=ENDLESS)
            assert answer.status_code == 422
            assert answer.json()["detail"] == "the what-if took longer than 2 s: ask for less"
            rig.service.long_work.most_s, rig.service.long_work.most_bytes = 300.0, 512 << 20
            answer = await ada.post("/api/v1/whatif", json=HUGE)
            assert answer.status_code == 422
            assert answer.json()["detail"] == "the what-if needs more than 512 MiB of memory: ask for less"
            assert (await ada.post("/api/v1/jobs/dry-run", json=SMALL)).status_code == 200

    play(story)


def test_an_explanation_for_which_there_is_no_time_says_what_is_known_already(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada", timeout=300) as ada:
            jobs = [await rig.submit("ada", text="run: x\nresources: {accelerators: 4}") for _ in range(4)]
            last = rig.service.state.jobs[jobs[-1]]
            await rig.until(lambda: rig.service.status_of(last).reason not in ("", "NOT_CONSIDERED"))
            rig.service.short_work.most_s = 0.001
            answer = await ada.get(f"/api/v1/jobs/{jobs[-1]}/explain")
            assert answer.status_code == 200, answer.text
            told = answer.json()
            assert (told["reason"], told["draws"]) == (rig.service.status_of(last).reason, 0)
            assert [one["gpus"] for one in told["holders"]] == [4, 4]

    play(story)


@pytest.mark.slow
def test_what_ifs_whose_askers_have_gone_are_stopped_and_do_not_wait(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as (host, port):
            await with_jobs(rig)
            body = json.dumps(ENDLESS).encode()
            head = (
                f"POST /api/v1/whatif HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token_of('ada')}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writers = []
            for _ in range(4):
                _, writer = await asyncio.open_connection(host, port)
                writer.write(head.encode() + body)
                writers.append(writer)
            await rig.until(lambda: any(cpu_s_of(one) > 1.0 for one in children_of(os.getpid())))
            (working,) = children_of(os.getpid())
            for writer in writers:
                writer.close()
            await rig.until(lambda: working not in children_of(os.getpid()))
            turns = rig.service.long_work.turns
            await rig.until(lambda: turns.is_idle)

    play(story)


@pytest.mark.slow
def test_questions_of_one_user_let_those_of_another_pass(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob", timeout=300) as bob:
            await with_jobs(rig)
            most = rig.service.long_work.turns.most_waiting
            greedy = [asyncio.create_task(ada.post("/api/v1/whatif", json=ENDLESS)) for _ in range(most + 1)]
            await rig.until(lambda: children_of(os.getpid()))
            refused = await ada.post("/api/v1/whatif", json={})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
            assert refused.json()["detail"].startswith("at most 4 requests of one user wait")
            assert (await bob.post("/api/v1/jobs/dry-run", json=SMALL)).status_code == 200
            assert (await bob.post("/api/v1/jobs", json=SMALL)).status_code == 201
            for one in greedy:
                one.cancel()
            await asyncio.gather(*greedy, return_exceptions=True)

    play(story)


@pytest.mark.parametrize("route", ["/api/v1/jobs/dry-run", "/api/v1/jobs", "/api/v1/whatif"])
def test_a_long_job_file_is_not_read_on_the_event_loop(tmp_path: Path, route: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada", timeout=300) as ada:
            began_s = time.process_time()
            with pytest.raises(InputError, match="expected at most"):
                read_submission(LONG_TEXT)
            reading_s = time.process_time() - began_s
            began_s = time.process_time()  # of this process, all its threads
            body = {"job": LONG_TEXT} if route.endswith("whatif") else {"text": LONG_TEXT}
            answer = await ada.post(route, json=body)
            assert answer.status_code == 422
            assert "expected at most" in answer.json()["detail"]
            assert time.process_time() - began_s < reading_s / 2

    play(story)


@pytest.mark.slow
def test_a_service_ends_at_once_beside_a_what_if(tmp_path: Path) -> None:
    running = Running(tmp_path, "--slots", "4", "--gpu-type", "cpu", "--policy", "fifo")
    try:
        running.begin()
        with running.client() as client:
            for _ in range(6):
                client.submit("run: sleep 600\nelastic: {min: 1, max: 4}\nexpected_time: 10h")
        with asking(running.url, SLOW):
            assert running.process is not None
            service = running.process.pid
            until(lambda: any(cpu_s_of(one) > 1.0 for one in children_of(service)), what="it is worked on")
            children = children_of(service)
            assert running.kill(signal.SIGTERM) == 0  # one decision of the what-if takes more than this waits
            until(lambda: not any(Path(f"/proc/{one}").exists() for one in children), what="it is stopped")
    finally:
        running.end()
