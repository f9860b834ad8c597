"""How busy GPUs are, as the interface shows it, and which jobs are idle holders."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.http.rig import Rig, a_rig, play

from stretto.backends.protocol import GpuUse
from stretto.service.eventlog.clock import Clock
from stretto.service.state.status import JobState, state_of

pytestmark = pytest.mark.sqlite

GB = 10**9


def use(*busy: float | None) -> tuple[GpuUse | None, ...]:
    """Of the GPUs of a node, in order; the last ones are not known."""
    return (*(GpuUse(each, 10 * GB, 80 * GB) for each in busy), *([None] * (4 - len(busy))))


async def idle(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/api/v1/usage/idle")).json()["idle"]
    return found


def look(rig: Rig, at_s: float) -> None:
    """The watch looks at a time of its clock."""
    rig.service.gpu_watch.clock = Clock(at_s, monotonic=lambda: 0.0)
    rig.service.gpu_watch.look()


def test_a_job_is_an_idle_holder_once_its_gpus_were_nearly_idle_for_long(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("olga") as olga, rig.client("bob") as bob:
            text = "run: x\nname: sleepy\nresources: {accelerators: '2'}"
            job = await rig.submit("ada", text=text)
            await rig.until(lambda: len(rig.backend.started) == 2)
            path = f"/api/v1/jobs/{job}"
            shown = (await olga.get(path)).json()
            assert (shown["gpus_busy"], shown["idle_s"]) == (None, None)  # nothing is made up
            assert not (await olga.get("/api/v1/usage/idle")).json()["is_measured"]
            node = next(iter(shown["nodes"]))
            rig.backend.use = {node: use(0.02, 0.06, 1.0)}  # the third is not its own
            state = rig.service.state
            await rig.until(lambda: state_of(state, state.jobs[job]) is JobState.RUNNING)
            look(rig, 0.0)
            shown = (await olga.get(path)).json()
            assert (shown["gpus_busy"], shown["gpu_memory_gb"]) == (0.04, 20)
            assert (shown["gpu_memory_total_gb"], shown["idle_s"]) == (160, 0)
            assert await idle(olga) == []
            look(rig, 599.0)
            assert await idle(olga) == []
            look(rig, 601.0)
            (row,) = await idle(olga)
            assert (row["job"], row["user"], row["gpus"], row["busy"]) == (job, "ada", 2, 0.04)
            assert row["idle_gpu_seconds"] == 1202.0
            assert await idle(bob) == []  # it is not his
            found = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families((await olga.get("/metrics")).text)
                for sample in family.samples
            }
            assert (found["stretto_idle_holders",], found["stretto_idle_gpus",]) == (1.0, 2.0)
            assert found["stretto_gpu_busy_ratio", "a100", "held"] == pytest.approx(0.04)
            assert found["stretto_gpu_busy_ratio", "a100", "free"] == 1.0
            assert found["stretto_gpu_memory_used_bytes", "a100", "held"] == 20 * GB
            nodes = (await olga.get("/api/v1/nodes")).json()["nodes"]
            (mine,) = [each for each in nodes if each["name"] == node]
            assert mine["gpu_use"][0] == {"busy": 0.02, "memory_gb": 10.0, "memory_total_gb": 80.0}
            assert mine["gpu_use"][3] is None
            assert mine["busy"] == pytest.approx(0.36)
            assert [each["busy"] for each in nodes if each["name"] != node] == [None]
            rig.backend.use = {node: use(0.02, 0.2)}
            look(rig, 602.0)
            assert await idle(olga) == []
            rig.backend.use = {node: use(0.0, 0.0)}
            look(rig, 603.0)
            look(rig, 1200.0)
            assert await idle(olga) == []  # it counts from the newest time on

    play(story)


def test_gpus_that_do_not_tell_make_no_job_an_idle_holder(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("olga") as olga:
            job = await rig.submit("ada")
            state = rig.service.state
            await rig.until(lambda: state_of(state, state.jobs[job]) is JobState.RUNNING)
            rig.backend.use = {"n0": use(None, None, None, None), "n1": use(None)}
            for passed_s in (0.0, 10_000.0):
                look(rig, passed_s)
            assert await idle(olga) == []
            shown = (await olga.get(f"/api/v1/jobs/{job}")).json()
            assert (shown["gpus_busy"], shown["gpu_memory_gb"]) == (None, 10.0)

    play(story)
