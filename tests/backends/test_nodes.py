"""Two real agents under a real driver: a node is cordoned, drained, silent for too long, and back."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.backends.test_local import end, pid_of
from tests.service.http.rig import Rig, a_rig, play

from stretto.backends.local.agent_client import OwnAgent
from stretto.backends.local.backend import LocalBackend
from stretto.service import control_loop
from stretto.service.state.events import NodeCordoned
from stretto.service.state.records import JobRecord, WorkerPhase

pytestmark = [pytest.mark.processes, pytest.mark.large]

DOWN_AFTER_S, DEAD_AFTER_S = 3.0, 0.5
SLEEPS = {"text": "name: sleeps\nrun: echo $$ >>began; exec sleep 600\ngrace_period: 5s\n"}


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[OwnAgent]]:
    agents = [OwnAgent(name, tmp_path / name, gpus=1, gpu_type="cpu") for name in ("n0", "n1")]
    yield agents
    for one in agents:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(pid_of(one), signal.SIGCONT)
        end(one)


def node_of(rig: Rig, record: JobRecord) -> str:
    """Where its worker runs; "" while none does."""
    ran = [one for one in record.alive if one.life is WorkerPhase.RUNNING and not one.stopped]
    return rig.service.state.nodes[ran[0].node].name if ran else ""


def test_a_job_stays_on_a_cordoned_node_leaves_a_drained_one_and_is_given_up_on_a_silent_one(
    tmp_path: Path, agents: list[OwnAgent]
) -> None:
    async def story() -> None:
        backend = await LocalBackend(agents, DOWN_AFTER_S).open()
        try:
            async with a_rig(tmp_path, backend=backend) as rig:
                await scenes(rig, {one.node: one for one in agents})
        finally:
            await backend.close()

    async def scenes(rig: Rig, of: dict[str, OwnAgent]) -> None:
        state, record = rig.service.state, rig.service.state.jobs
        job = record[await rig.submit(**SLEEPS)]
        await rig.until(lambda: node_of(rig, job))
        first = node_of(rig, job)
        (other,) = set(of) - {first}

        await rig.service.record(NodeCordoned(first, True))
        second = record[await rig.submit(**SLEEPS)]
        third = record[await rig.submit(**SLEEPS)]
        await rig.until(lambda: node_of(rig, second) == other)
        assert (node_of(rig, job), job.attempt, third.attempt) == (first, 1, 0)

        await rig.service.record(NodeCordoned(other, True, drain=True), NodeCordoned(first, False))
        await rig.until(lambda: second.closed == 1)
        assert second.workers[f"{second.id}.1.0"].status == 143
        assert (node_of(rig, job), job.attempt) == (first, 1)

        await rig.service.record(NodeCordoned(other, False))
        await rig.until(lambda: node_of(rig, second) == other)
        rig.service.reconciler.dead_after_s = DEAD_AFTER_S
        burying = asyncio.create_task(control_loop.expire_silent_nodes(rig.service.reconciler))
        os.kill(pid_of(of[first]), signal.SIGSTOP)
        index = state.node_index[first]
        await rig.until(lambda: state.nodes[index].dead)
        await rig.until(lambda: job.closed == 1)
        lost = await rig.backend.workers()
        assert [one.phase for one in lost if one.id == f"{job.id}.1.0"] == ["unknown"]
        assert third.attempt == 0

        os.kill(pid_of(of[first]), signal.SIGCONT)
        await rig.until(lambda: state.nodes[index].up)
        await rig.until(lambda: first in (node_of(rig, job), node_of(rig, third)))
        assert f"{job.id}.1.0" not in {one.id for one in await rig.backend.workers() if one.holds_gpus}
        assert job.failures == 0
        burying.cancel()

    play(story)
