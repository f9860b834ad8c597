"""A deadline that was promised stays promised, also where the policy is asked about parts of the jobs."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import Rig, a_rig, play

from stretto.jobfile.to_job import DEADLINE_WORTH
from stretto.model import digest
from stretto.service.state.events import Configured

SOFT = "run: x\nname: soft\nexpected_time: 40m\nrewards: [{by: 1h, worth: 5}]"
DENSER = "run: x\nname: strict\nexpected_time: 30m\ndeadline: 1h"  # more reward for less work


async def two_levels(rig: Rig) -> None:
    """A job of a higher priority is there."""
    await rig.submit("olga", text="run: x\nname: high\npriority: 1")


async def reserved(rig: Rig) -> None:
    """One of the two nodes is kept for ada, and the other is taken."""
    async with rig.client("olga") as olga:
        until = rig.service.state.unix_s + rig.service.clock.now_s() + 86_400.0
        body = {"end": until, "nodes": ["n0"], "user": "ada"}
        answer = await olga.put("/api/v1/reservations/r", json=body)
        assert answer.status_code == 200, answer.text
    await rig.submit("bob", text="run: x\nname: other")


async def promise_of(rig: Rig, job: str) -> str:
    async with rig.client("ada") as ada:
        promise: str = (await ada.get(f"/api/v1/jobs/{job}")).json()["outlook"]["promise"]
        return promise


async def decided(rig: Rig, job: str) -> None:
    """The policy has been asked with this job there."""
    scheduling = rig.service.scheduling
    await rig.until(lambda: scheduling.latest is not None and job in scheduling.latest.jobs.ids)


@pytest.mark.sqlite
@pytest.mark.parametrize("prepare", [two_levels, reserved])
def test_what_was_promised_stays_promised_when_a_job_with_more_reward_for_its_work_comes(
    tmp_path: Path, prepare: Callable[[Rig], Awaitable[None]]
) -> None:
    async def story() -> None:
        backend = FakeBackend(nodes_count=2, gpus=1)
        async with a_rig(tmp_path, policy="stretto", backend=backend) as rig:
            configured = Configured(
                "stretto", priorities="preempt", reservations="kept", deadline_worth=DEADLINE_WORTH
            )
            await rig.service.record(configured)
            await prepare(rig)
            first = await rig.submit("ada", text=SOFT)
            await decided(rig, first)
            assert await promise_of(rig, first) == "yes"
            second = await rig.submit("ada", text=DENSER)
            assert await promise_of(rig, first) == "yes"
            await decided(rig, second)
            assert await promise_of(rig, first) == "yes"
            assert await promise_of(rig, second) == "at risk", "alone it would be in time"
            digest(rig.service.scheduling.memory)  # a value that logs can tell from others

    play(story)
