"""Reports of weeks take little room in the log, and what decisions are made of is in it at once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import Rig, a_rig, play
from tests.service.scene import Scene

from stretto.model import Trigger
from stretto.service.eventlog import Unrecorded
from stretto.service.eventlog.report_sampling import ReportSampler, changes_of
from stretto.service.eventlog.writer import LogWriter
from stretto.service.scheduling.loop import trigger_of
from stretto.service.state.events import Reported, body_of
from stretto.service.state.records import JobRecord
from stretto.service.state.reported_metrics import with_report
from stretto.service.state.workers import kind_of

DAY_S = 86_400.0
EVERY_S = 30.0  # as the SDK reports


def usual(now_s: float, days: float = 30.0) -> dict[str, Any]:
    """What rank 0 says of a training of so many days, of an epoch an hour."""
    step = int(now_s * 3)
    epoch = int(now_s // 3600)
    return {
        "step": step,
        "epoch": epoch,
        "samples": step * 256,
        "dataset_samples": 2_764_800,
        "progress_steps": step * 0.97,
        "points": [[1, 4, 64, 1, 0.081234, 0.331234 + 1e-6 * (step % 7)]],
        "grad_sqr": 0.0123456789 + 1e-9 * step,
        "grad_var": 3.123456789 + 1e-9 * step,
        "init_batch": 256,
        "max_batch": 4096,
        "max_local": 64,
        "loss": 2.0 / (1 + now_s / DAY_S),
        "metric": 0.5 + epoch / 10_000,
        "epoch_metrics": [0.5 + n / 10_000 for n in range(epoch)],
        "batch": 256,
        "left_s": days * DAY_S - now_s + step % 11,
    }


class Clerk:
    """Reports of one running job, taken without a database."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.scene.submit("j", 4, elastic=(1, 4))
        self.scene.give(_j={"n0": 15})
        self.scene.reconcile()
        self.written: list[Reported] = []
        scene, written = self.scene, self.written

        class Fake(LogWriter):
            def __init__(self) -> None:
                self.state, self.listeners = scene.state, []

            def record(self, *events: Any) -> Any:
                for event in events:
                    written.append(event)
                    scene.tell(event)
                done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                done.set_result(scene.state.seq)
                return done

        class Now:
            def now_s(self) -> float:
                return scene.now_s

        self.reports = ReportSampler(Fake(), Now())  # type: ignore[arg-type]

    @property
    def record(self) -> JobRecord:
        return self.scene.state.jobs["j"]

    async def take(self, now_s: float, report: dict[str, Any]) -> int:
        """How many events it makes."""
        self.scene.now_s, before = now_s, len(self.written)
        await self.reports.take(self.record, report)
        return len(self.written) - before


@pytest.mark.heavy
def test_a_training_of_thirty_days_leaves_a_megabyte_in_the_log() -> None:
    clerk = Clerk()

    async def train() -> None:
        for number in range(1, int(30 * DAY_S / EVERY_S)):
            await clerk.take(number * EVERY_S, usual(number * EVERY_S))

    asyncio.run(train())
    bodies = [Unrecorded(0.0, "Reported", "j", body_of(event)).text for event in clerk.written]
    assert 2_000 < len(bodies) < 4_500
    assert sum(map(len, bodies)) < 1 << 20
    assert len(clerk.record.learned.metrics) >= 30 * 24 - 1  # none is lost


def test_a_report_that_is_written_while_others_are_is_written_once() -> None:
    scene = Scene()
    under_way: list[tuple[Reported, asyncio.Future[int]]] = []
    for name, mask in (("1", 3), ("2", 12)):
        scene.submit(name, 2, elastic=(1, 4))
        scene.give(**{f"_{name}": {"n0": mask}})
    scene.reconcile()

    class Slow(LogWriter):
        """Folds an event only once it is on disk, which takes until the test says so."""

        def __init__(self) -> None:
            self.state, self.listeners = scene.state, []

        def record(self, *events: Any) -> Any:
            (event,) = events
            under_way.append((event, asyncio.get_running_loop().create_future()))
            return under_way[-1][1]

        def finish(self) -> None:
            for event, done in under_way:
                scene.tell(event)
                done.set_result(scene.state.seq)
            under_way.clear()

    class Now:
        def now_s(self) -> float:
            return scene.now_s

    writer = Slow()
    reports = ReportSampler(writer, Now())  # type: ignore[arg-type]

    async def told(name: str, step: int) -> asyncio.Task[None]:
        taking = asyncio.create_task(reports.take(scene.state.jobs[name], {"step": step}))
        await asyncio.sleep(0)
        return taking

    async def train() -> None:
        scene.now_s = 10_000.0
        first = [await told(name, 1) for name in ("1", "2")]
        writer.finish()
        await asyncio.gather(*first)
        scene.now_s = 10_010.0
        for name in ("1", "2"):
            await told(name, 2)  # which is held
        assert not under_way
        scene.now_s = 20_000.0
        writing = asyncio.create_task(reports.run())
        await asyncio.sleep(0)
        assert [event.job for event, _ in under_way] == ["1"]
        second = await told("2", 3)
        assert [event.job for event, _ in under_way] == ["1", "2"]
        under_way[0][1].set_result(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not writing.done(), "what is under way is left alone"
        writing.cancel()
        under_way[1][1].set_result(0)
        await second

    asyncio.run(train())


def test_what_is_held_is_shown_and_is_written_when_its_workers_end() -> None:
    clerk = Clerk()

    async def train() -> None:
        await clerk.take(10.0, usual(10.0))
        for now_s in (10_000.0, 10_030.0, 10_060.0):
            await clerk.take(now_s, usual(now_s))
        assert clerk.record.learned.latest["step"] == 30_000
        assert clerk.reports.shown(clerk.record).learned.latest["step"] == 30_180
        (worker,) = [name for name in clerk.record.workers if name.endswith(".0")]
        clerk.scene.end(worker, 0)
        clerk.reports.heard([(1, clerk.scene.log[-1])])
        assert clerk.record.learned.latest["step"] == 30_180

    asyncio.run(train())


@pytest.mark.parametrize(
    ("changed", "events"),
    [
        pytest.param({}, 0, id="nothing new"),
        pytest.param({"loss": 1.0}, 0, id="another loss"),
        pytest.param({"batch": 512}, 1, id="another batch"),
        pytest.param({"epoch": 9}, 1, id="another epoch"),
        pytest.param({"epoch_end": True}, 1, id="the end of an epoch"),
        pytest.param({"finished": True}, 1, id="the end"),
        pytest.param({"in_place": False}, 1, id="no change of size in place"),
        pytest.param({"points": [[1, 4, 64, 1, 0.2, 0.9]]}, 1, id="another speed"),
        pytest.param({"points": [[1, 4, 64, 1, 0.0812, 0.3312]]}, 0, id="nearly the same speed"),
        pytest.param({"epoch_metrics": [0.5, 0.6, 0.7]}, 1, id="another metric"),
        pytest.param({"left_s": 60.0}, 1, id="much less is left"),
    ],
)
def test_what_may_change_a_decision_is_written_at_once(changed: dict[str, Any], events: int) -> None:
    clerk = Clerk()

    async def train() -> None:
        await clerk.take(10.0, usual(10.0))
        await clerk.take(10_000.0, {**usual(10_000.0), "epoch_metrics": [0.5, 0.6]})
        said = {**usual(10_030.0), "epoch_metrics": [0.5, 0.6], **changed}
        assert await clerk.take(10_030.0, said) == events

    asyncio.run(train())


def test_what_is_written_says_the_same_in_fewer_words() -> None:
    clerk = Clerk()
    asyncio.run(clerk.take(10.0, usual(10.0)))
    record, now_s = clerk.record, 7_200.0
    made_of = {"points", "epoch_metrics", "epoch_end"}  # kept as `points` and `metrics`; what it wakes
    for report in (usual(now_s), {**usual(now_s), "epoch_metrics": [9.0]}, {"step": 3}, {}):
        event = changes_of(record, report)
        short = with_report(record.learned, event.report, kind_of(record), now_s, event.metrics_kept)
        long = with_report(record.learned, report, kind_of(record), now_s)
        assert (short.points, short.metrics) == (long.points, long.metrics)
        assert short.initial_loss == long.initial_loss
        for key in {*short.latest, *long.latest} - made_of:
            assert short.latest[key] == long.latest[key]


@pytest.mark.parametrize(("epoch", "ended"), [(0, False), (8, False), (9, True), (12, True)])
def test_the_first_report_of_a_later_epoch_says_that_one_has_ended(epoch: int, ended: bool) -> None:
    clerk = Clerk()

    async def train() -> None:
        await clerk.take(10.0, {**usual(10.0), "epoch": 8})
        await clerk.take(10_000.0, {**usual(10_000.0), "epoch": epoch})

    asyncio.run(train())
    first, second = clerk.written
    assert trigger_of(first) is Trigger.EPOCH_END  # eight were over when it first reported
    assert trigger_of(second) is (Trigger.EPOCH_END if ended else None)


def test_a_job_that_calls_everything_news_is_written_once_a_minute_in_the_long_run() -> None:
    clerk = Clerk()

    async def train() -> None:
        for number in range(10_000):
            await clerk.take(10_000.0 + number, {"epoch_end": True, "batch": number + 1})

    asyncio.run(train())
    assert len(clerk.written) < 100 + 10_000 / 60 + 20


async def speaking(rig: Rig) -> tuple[str, dict[str, str]]:
    """A job's worker, and what opens its channel."""
    job = await rig.submit("ada")
    await rig.until(lambda: rig.backend.started)
    return f"{job}.1.0", {"authorization": f"Bearer {rig.service.context.token(job)}"}


@pytest.mark.sqlite
def test_a_large_report_and_too_many_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client() as client:
            worker, headers = await speaking(rig)
            large = {"worker": worker, "note": ["x" * 1000] * 70}
            answer = await client.post("/api/v1/worker/report", json=large, headers=headers)
            assert answer.status_code == 413
            assert answer.json()["detail"] == "a request may have 65536 bytes here"
            buckets = rig.app.state.said
            buckets.now_s = lambda: 0.0  # no time passes: what may be said is said at once
            before = rig.service.state.seq
            for number in range(int(buckets.burst)):
                said = {"worker": worker, "step": number, "note": "x" * 1000}
                answer = await client.post("/api/v1/worker/report", json=said, headers=headers)
                assert answer.status_code == 204
            answer = await client.post("/api/v1/worker/report", json=said, headers=headers)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json()["detail"] == "at most 5 messages a second of one job"
            assert rig.service.state.seq - before < buckets.burst

    play(story)


@pytest.mark.sqlite
def test_what_was_said_before_is_not_written_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client() as client:
            worker, headers = await speaking(rig)

            async def say(what: str, **more: Any) -> int:
                body = {"worker": worker, **more}
                answer = await client.post(f"/api/v1/worker/{what}", json=body, headers=headers)
                return answer.status_code

            record = rig.service.state.jobs[worker.split(".")[0]]
            await rig.until(lambda: record.workers)
            kinds = {"WorkerReady", "StoreOpened", "Joined"}
            assert await say("ready") == 204
            told: list[str] = []
            for _ in range(5):
                assert await say("ready") == 204
                if record.members.number:
                    assert await say("store", generation=1, address="127.0.0.1:1") == 204
                    assert await say("joined", generation=1) == 204
                told = told or [one.kind for one in rig.store.read(kinds=kinds)]
            assert sorted(one.kind for one in rig.store.read(kinds=kinds)) == sorted(told)
            assert told[0] == "WorkerReady"

    play(story)


@pytest.mark.sqlite
def test_the_newest_events_in_memory_are_bounded_in_bytes(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            job = await rig.submit("ada")
            feed = rig.app.state.feed
            feed.most_bytes = 50_000
            for number in range(100):
                await rig.service.record(Reported(job, {"step": number, "note": "x" * 1000}))
            events, size = feed.in_memory
            assert events < 50
            assert 40_000 < size <= 50_000
            seen, numbers = 0, []
            while seen < feed.last:  # what is not in memory any more is read from the store
                seen, entries = await feed.after(seen)
                numbers += [one.seq for one in entries]
            assert numbers == list(range(1, feed.last + 1))

    play(story)
