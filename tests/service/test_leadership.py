"""Nothing is commanded by a service that may have lost its lead."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import Rig, a_rig, play

from stretto.backends.protocol import BackendUnreachable, Fences, StaleLeader, WorkerState
from stretto.service import control_loop
from stretto.service.eventlog import LeadLost, Standing, Unrecorded
from stretto.service.leadership import Leadership
from stretto.service.reconcile.controller import Reconciler
from stretto.service.state.events import LeadTaken, body_of

pytestmark = pytest.mark.sqlite


@dataclass
class PlayedLead:
    """A lead that stands as a test says."""

    now: Standing = Standing.HELD
    looks: int = 0
    is_near: bool = True

    def standing(self) -> Standing:
        self.looks += 1
        return self.now

    def holds(self) -> bool:
        return self.now is Standing.HELD

    def release(self) -> None:
        pass

    def __enter__(self) -> "PlayedLead":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class FencedBackend(FakeBackend):
    """Its nodes have seen a leader, and refuse those before it."""

    epoch: int = 0
    newest: int = 0

    async def stop(self, worker_id: str, grace_s: float) -> None:
        if self.epoch < self.newest:
            raise StaleLeader(f"leader {self.epoch} has been followed by {self.newest}", self.newest)
        self.newest = self.epoch
        await super().stop(worker_id, grace_s)


@dataclass
class Leading:
    """A service that leads, as far as the lead says, and a worker that it knows nothing of."""

    rig: Rig
    lead: PlayedLead = field(default_factory=PlayedLead)

    def __post_init__(self) -> None:
        service = self.rig.service
        self.leadership = Leadership(service.log_writer, self.lead, self.rig.backend, check_s=0.01)
        self.reconciler = Reconciler(
            service.log_writer, self.rig.backend, service.clock, service.context, leadership=self.leadership
        )

    async def look(self) -> None:
        """Look at the backend, which shows a stray; and do all that follows."""
        self.rig.backend.shown["99.1.0"] = WorkerState("99.1.0", "n0", (0,), "running", job="99")
        await control_loop.observe_once(self.reconciler)
        await asyncio.gather(*self.reconciler.dispatcher.tasks)


def test_a_stray_is_stopped_by_whoever_leads(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            await Leading(rig).look()
            assert "99.1.0" in rig.backend.stopped

    play(story)


@pytest.mark.parametrize("standing", [Standing.LOST, Standing.UNKNOWN])
def test_what_the_next_leader_runs_is_not_stopped_by_the_one_before(
    tmp_path: Path, standing: Standing
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            for loop in rig.loops[1:]:
                loop.cancel()
            leading = Leading(rig, PlayedLead(standing))
            await leading.look()
            assert rig.backend.stopped == []
            leading.lead.now = Standing.HELD
            await leading.look()  # nothing is certain for ever, but a lost lead is
            assert rig.backend.stopped == ([] if standing is Standing.LOST else ["99.1.0"])

    play(story)


def test_whoever_has_lost_the_lead_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            leading = Leading(rig)
            watching = asyncio.create_task(leading.leadership.run())
            await rig.until(lambda: leading.lead.looks > 2)
            leading.lead.now = Standing.UNKNOWN
            looks = leading.lead.looks
            await rig.until(lambda: leading.lead.looks > looks + 2)
            assert not watching.done()
            leading.lead.now = Standing.LOST
            with pytest.raises(LeadLost):
                await watching
            assert not leading.leadership.is_sure

    play(story)


def test_a_lead_that_was_taken_anew_counts_only_if_nobody_has_led_in_between(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            leadership = Leading(rig, PlayedLead(Standing.RETAKEN)).leadership
            await leadership.take()
            await leadership.check()
            log_writer = rig.service.log_writer
            other = LeadTaken(log_writer.state.epoch + 1)
            log_writer.store.append([Unrecorded(1.0, "LeadTaken", "", body_of(other))], log_writer.state.seq)
            with pytest.raises(LeadLost):
                await leadership.check()

    play(story)


def test_a_service_whose_lead_is_not_sure_is_not_ready(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client() as anybody:
            leading = Leading(rig)
            rig.service.leadership = leading.leadership
            assert (await anybody.get("/readyz")).status_code == 200
            leading.lead.now = Standing.LOST
            with pytest.raises(LeadLost):
                await leading.leadership.check()
            assert (await anybody.get("/readyz")).status_code == 503

    play(story)


def test_a_node_that_knows_a_later_leader_is_obeyed_by_whoever_leads_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        backend = FencedBackend(newest=57)
        assert isinstance(backend, Fences)
        async with a_rig(tmp_path, decides=False, backend=backend) as rig:
            for loop in rig.loops[1:]:
                loop.cancel()
            leading = Leading(rig)
            await leading.leadership.take()
            assert backend.epoch == 1
            await leading.look()
            assert backend.stopped == []
            assert backend.epoch == rig.service.state.epoch == 58
            await leading.look()
            assert backend.stopped == ["99.1.0"]

    play(story)


def test_many_commands_share_a_look_but_none_that_began_before_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            leading = Leading(rig)
            await asyncio.gather(*(leading.leadership.check() for _ in range(100)))
            assert leading.lead.looks == 1
            leading.lead.now = Standing.UNKNOWN
            with pytest.raises(BackendUnreachable):
                await leading.leadership.check()

    play(story)
