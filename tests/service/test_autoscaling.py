"""What a cluster that grows is asked for: room for jobs that wait for GPUs and for nothing else."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import PATIENCE_S, Rig, a_rig, play
from tests.service.scene import Scene

from stretto.backends.protocol import Autoscales, BackendUnreachable, NodeRequest, NodeState
from stretto.service import autoscaling
from stretto.service.state.events import QueueSet

ONE_MORE = NodeRequest("l4", 2, 1)  # two workers of a GPU each
pytestmark = pytest.mark.sqlite


def a_job(gpus: int = 2, gpu_type: str = "l4", more: str = "") -> str:
    return f"run: 'true'\nresources: {{accelerators: '{gpu_type}:{gpus}'}}\n{more}"


@dataclass
class GrowingBackend(FakeBackend):
    """n0 is there; small-1 and small-2, of two GPUs each, come when a test says so."""

    wishes: list[Sequence[NodeRequest]] = field(default_factory=list)  # without the jobs that they are of
    jobs: list[list[str]] = field(default_factory=list)  # of each wish
    words: dict[str, str] = field(default_factory=dict)  # of the cluster, by job
    is_deaf: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("small-1", "small-2"):
            self.known[name] = NodeState(name, "l4", 2, 4, up=False, dead=True, why="to come", comes=True)

    async def wish(self, wishes: Sequence[NodeRequest]) -> None:
        if self.is_deaf:
            raise BackendUnreachable("Ray does not answer")
        self.wishes.append(tuple(replace(each, job="") for each in wishes))
        self.jobs.append([each.job for each in wishes])

    async def answers(self) -> Mapping[str, str]:
        return self.words

    async def come(self, node: str, is_there: bool = True) -> None:
        self.known[node] = replace(self.known[node], up=is_there, dead=not is_there)
        await self.tell()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaling, "LOOK_S", 0.01)
    monkeypatch.setattr(autoscaling, "SURE_S", 0.05)


@asynccontextmanager
async def growing(path: Path) -> AsyncIterator[tuple[Rig, GrowingBackend]]:
    """A service over it that wishes."""
    backend = GrowingBackend(nodes_count=1, gpus=2)
    async with a_rig(path, backend=backend) as rig:
        rig.loops.append(asyncio.create_task(rig.service.autoscaler.run()))
        yield rig, backend


async def asked(rig: Rig, *wishes: NodeRequest) -> None:
    """Wait until the cluster is asked for just this."""
    await rig.until(lambda: rig.backend.wishes[-1:] == [wishes])


async def reason_of(rig: Rig, job: str) -> tuple[str, str]:
    async with rig.client("ada") as client:
        found = (await client.get(f"/api/v1/jobs/{job}")).json()
        return found["reason"], found["evidence"]


async def requested_metric(rig: Rig) -> list[str]:
    async with rig.client("ada") as client:
        lines = (await client.get("/metrics")).text.splitlines()
    return [line for line in lines if line.startswith("stretto_requested_gpus{")]


async def is_told(rig: Rig, job: str, why: str) -> None:
    """Wait until a job waits for this reason."""
    async with asyncio.timeout(PATIENCE_S):
        while (await reason_of(rig, job))[0] != why:
            await asyncio.sleep(0.01)


@pytest.mark.processes
def test_a_job_is_accepted_and_waits_for_a_node_that_comes_when_it_is_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            assert isinstance(backend, Autoscales)
            job = await rig.submit(text=a_job())
            await asked(rig, ONE_MORE)
            assert await reason_of(rig, job) == ("NODES_TO_COME", "the cluster is asked for 2 x l4")
            async with rig.client("ada") as client:
                found = (await client.get(f"/api/v1/jobs/{job}/explain")).json()
                assert found["headline"].startswith(
                    "nodes that suit it are to come: the cluster is asked for"
                )
            snapshot = rig.service.scheduling.latest_snapshot
            assert snapshot is not None
            assert snapshot.capacity.tolist() == [2, 0], "no policy is shown what is not there"
            await backend.come("small-1")
            await rig.until(lambda: len(backend.started) == 2)
            assert {one.node for one in backend.started} == {"small-1"}
            await asked(rig)  # for nothing any more

    play(story)


def test_what_runs_is_asked_for_too_so_that_nobody_is_counted_twice_while_he_begins(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            for _ in range(2):
                await rig.submit(text=a_job(more="name: each"))
            await asked(rig, ONE_MORE, ONE_MORE)
            await backend.come("small-1")
            await rig.until(lambda: len(backend.started) == 2)
            await asyncio.sleep(0.2)
            assert backend.wishes == [(ONE_MORE, ONE_MORE)], "the same two, of which one has begun"

    play(story)


@pytest.mark.parametrize(("most", "kinds"), [(3, []), (4, ["l4"])])
def test_no_node_is_asked_for_of_a_type_without_a_whole_number_of_workers_in_the_range(
    most: int, kinds: list[str]
) -> None:
    resources = {"gpus_per_worker": 1, "replica_gpus": {"a100": 1, "l4": 2}}
    record = Scene().submit("1", elastic=(3, most), resources=resources)
    record.job = replace(record.job, replica_gpus={"a100": 1, "l4": 2})  # no node of l4 has been there
    coming = NodeState("small", "l4", 4, 4, up=False, dead=True, comes=True)
    assert autoscaling.kinds_of(record, [coming]) == kinds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(a_job(gpu_type="a100"), "BEHIND_IN_ORDER", id="its type does not come and go"),
        pytest.param(a_job(more="start_after: 1h"), "NOT_BEFORE", id="its time has not come"),
        pytest.param(a_job(more="depends_on: ['1']"), "DEPENDENCY", id="another job comes first"),
        pytest.param(a_job(more="queue: small"), "EXCEEDS_QUOTA", id="its queue may not hold so many"),
    ],
)
def test_nothing_is_asked_for_jobs_that_wait_for_something_else(tmp_path: Path, text: str, why: str) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            await rig.service.record(QueueSet("small", 1))
            first = await rig.submit(text=a_job())
            await asked(rig, ONE_MORE)
            job = await rig.submit(text=text)
            await asyncio.sleep(0.4)
            await is_told(rig, job, why)
            assert backend.wishes == [(ONE_MORE,)], first

    play(story)


def test_no_more_is_asked_for_than_may_come_nor_than_a_queue_may_hold(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, _):
            await rig.service.record(QueueSet("two", 2))
            jobs = [await rig.submit(text=a_job(more="queue: two")) for _ in range(2)]
            await asked(rig, ONE_MORE)
            others = [await rig.submit(text=a_job()) for _ in range(2)]
            await asked(rig, ONE_MORE, ONE_MORE)
            async with asyncio.timeout(PATIENCE_S):
                while "no more" not in (await reason_of(rig, others[1]))[1]:
                    await asyncio.sleep(0.01)
            reasons = [await reason_of(rig, each) for each in (*jobs, *others)]
            assert [why for why, _ in reasons].count("NODES_TO_COME") == 3
            async with rig.client("ada") as client:
                answer = await client.post("/api/v1/jobs", json={"text": a_job(5)})
                assert answer.status_code == 422, "more than there may ever be"

    play(story)


def test_nodes_are_asked_for_where_what_is_left_over_grows_with_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            await rig.service.record(replace(rig.service.state.configured, quotas="kept"))
            await rig.service.record(QueueSet("all", 2, 4), QueueSet("default", is_default=True))
            jobs = [await rig.submit(text=a_job(more="preemptible: false")) for _ in range(3)]
            await asked(rig, ONE_MORE, ONE_MORE)  # 2 of 6 GPUs are guaranteed to others
            await is_told(rig, jobs[2], "MAY_NOT_BORROW")
            for node in ("small-1", "small-2"):
                await backend.come(node)
            await rig.until(lambda: len(backend.started) == 4)
            assert all(len(wish) <= 2 for wish in backend.wishes), "the third one may not have them"

    play(story)


def test_a_job_that_may_have_several_types_or_sizes_is_asked_the_least_of_the_first_that_may_come(
    tmp_path: Path,
) -> None:
    text = (
        "run: 'true'\nresources: {accelerators: {'a100': 2, 'l4': 2}, cpus: 2}\nelastic: {min: 1, max: 2}\n"
    )

    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            await rig.submit(text="run: 'true'\nresources: {accelerators: 'a100:2'}\n")
            await rig.until(lambda: len(backend.started) == 2)
            await rig.submit(text=text)
            await asked(rig, NodeRequest("l4", 1, 1, 1.0))

    play(story)


def test_a_cluster_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            backend.is_deaf = True
            job = await rig.submit(text=a_job())
            async with asyncio.timeout(PATIENCE_S):
                while "Ray does not answer" not in (await reason_of(rig, job))[1]:
                    await asyncio.sleep(0.01)
            assert backend.wishes == []
            assert await requested_metric(rig) == []
            backend.is_deaf = False
            await asked(rig, ONE_MORE)
            assert await reason_of(rig, job) == ("NODES_TO_COME", "the cluster is asked for 2 x l4")
            assert await requested_metric(rig) == ['stretto_requested_gpus{type="l4"} 2.0']
            await backend.come("small-1")
            await asked(rig)
            assert await requested_metric(rig) == []

    play(story)


def test_what_the_cluster_says_of_a_request_is_said_of_its_job(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            first, second = [await rig.submit(text=a_job()) for _ in range(2)]
            await asked(rig, ONE_MORE, ONE_MORE)
            assert backend.jobs[-1] == [first, second]
            backend.words = {second: "Failed: OutOfStock: none is left"}
            said = "the cluster is asked for 2 x l4"
            async with asyncio.timeout(PATIENCE_S):
                while (await reason_of(rig, second))[1] != f"{said}: Failed: OutOfStock: none is left":
                    await asyncio.sleep(0.01)
            assert (await reason_of(rig, first))[1] == said

    play(story)


def test_a_node_that_goes_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path) as (rig, backend):
            await rig.submit(text=a_job())
            await backend.come("small-1")
            await rig.until(lambda: len(backend.started) == 2)
            for each in backend.started:
                await backend.finish(each.id)
            await backend.come("small-1", False)
            await rig.until(lambda: not rig.service.state.nodes[1].up)
            await rig.submit(text=a_job())
            await rig.until(lambda: ONE_MORE in (backend.wishes or [()])[-1])
            await backend.come("small-1")
            await rig.until(lambda: len(backend.started) == 4)
            assert [node.name for node in rig.service.state.nodes] == ["n0", "small-1", "small-2"]

    play(story)
