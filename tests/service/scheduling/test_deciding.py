"""When the policy is asked: by what happens, by its rounds, and in any case every now and then."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.http.rig import play

from stretto.jobfile import JobSpec
from stretto.model import Shares, Snapshot, Speeds
from stretto.place.registry import load_placer
from stretto.policies.fifo import FirstInFirstOut
from stretto.policies.unisched.policy import UniSched
from stretto.service import control_loop
from stretto.service.eventlog import open_store
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.scheduling.scheduler import scheduler_of, with_resolved_settings
from stretto.service.state.events import (
    Began,
    Configured,
    Decided,
    Event,
    NodeSeen,
    Reported,
    Submitted,
    event_of,
)
from stretto.service.state.state import State

pytestmark = pytest.mark.sqlite

PATIENCE_S = 180.0


@asynccontextmanager
async def deciding(
    path: Path, policy: str = "fifo", eager: bool = True, at_least_every_s: float = 1000.0, **settings: str
) -> AsyncIterator[tuple[LogWriter, list[Decided]]]:
    """A policy that is asked over a log, and the decisions so far. No node is there yet."""
    with open_store(path / "log.db") as store:
        log_writer = LogWriter(store, State(), Clock())
        made: list[Decided] = []
        log_writer.listeners.append(
            lambda told: made.extend(one for _, one in told if isinstance(one, Decided))
        )
        configured = Configured(policy, settings={f"policy.{key}": value for key, value in settings.items()})
        scheduling = SchedulingLoop(log_writer, scheduler_of(configured), log_writer.clock, eager)
        scheduling.at_least_every_s = at_least_every_s
        loops = [
            asyncio.create_task(log_writer.run()),
            asyncio.create_task(control_loop.schedule(scheduling)),
        ]
        try:
            await log_writer.record(Began(1.7e9), configured)
            yield log_writer, made
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)


async def comes_to(made: list[Decided], count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(made) < count:
            await asyncio.sleep(0.005)


async def has_seen(made: list[Decided], seq: int) -> None:
    """Wait for a decision that knew this event; several events may have been seen by one."""
    async with asyncio.timeout(PATIENCE_S):
        while not made or made[-1].seen < seq:
            await asyncio.sleep(0.005)


def a_job(name: str, gpus: int = 1) -> Submitted:
    given = {"run": "true", "resources": {"accelerators": [{"gpu_type": "", "gpus": gpus}]}}
    return Submitted(name, JobSpec.from_json(given).to_json(), "ada")


def test_a_service_without_nodes_waits_for_the_first_and_is_not_kept_busy(tmp_path: Path) -> None:
    async def story() -> None:
        async with deciding(tmp_path) as (log_writer, made):
            await asyncio.sleep(0.05)
            assert made == []
            await log_writer.record(NodeSeen("n0", "a100", 2))
            await comes_to(made, 1)

    play(story)


@pytest.mark.parametrize(("policy", "settings"), [("fifo", {}), ("lyra", {"round_s": "0.3"})])
def test_a_decision_is_made_every_now_and_then_though_nothing_happens(
    tmp_path: Path, policy: str, settings: dict[str, str]
) -> None:
    async def story() -> None:
        async with deciding(tmp_path, policy, True, 0.1, **settings) as (log_writer, made):
            await log_writer.record(NodeSeen("n0", "a100", 2))
            await comes_to(made, 1)
            await asyncio.sleep(0.5)
            idle = len(made)
            assert idle <= 2  # nobody is there
            await log_writer.record(a_job("1", gpus=2))
            await comes_to(made, idle + 4)

    play(story)


def test_a_decision_about_a_newcomer_knows_what_is_told_of_it_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with deciding(tmp_path) as (log_writer, made):
            await log_writer.record(NodeSeen("n0", "a100", 2))
            await comes_to(made, 1)

            def tell(events: Sequence[tuple[int, Event]]) -> None:
                for _, event in events:
                    if isinstance(event, Submitted):
                        log_writer.record(Reported(event.job, {"init_batch": 8}))

            log_writer.listeners.append(tell)
            await asyncio.sleep(2 * control_loop.AT_MOST_EVERY_S)  # then a decision follows at once
            submitted = await log_writer.record(a_job("1"))
            await comes_to(made, 2)
            assert made[1].seen == submitted + 1

    play(story)


def test_a_policy_of_rounds_only_is_asked_in_the_next_round_about_who_came(tmp_path: Path) -> None:
    async def story() -> None:
        async with deciding(tmp_path, "lyra", False, round_s="0.5") as (log_writer, made):
            await log_writer.record(NodeSeen("n0", "a100", 2))
            await comes_to(made, 1)
            await asyncio.sleep(1.2)  # nobody is there, so no round is held
            before = len(made)
            await log_writer.record(a_job("1"))
            await comes_to(made, before + 1)
            assert made[before].due == ("round",)
            assert made[before].actions

    play(story)


@pytest.mark.parametrize(
    ("configured", "by_clock", "late"),
    [
        pytest.param(event_of("Configured", {"policy": "unisched"}), False, 0.0, id="of an old log"),
        pytest.param(Configured("unisched", defaults="current"), True, 0.1, id="of now"),
        pytest.param(
            Configured("unisched", settings={"policy.by_clock": "yes"}), True, 0.0, id="that was set"
        ),
    ],
)
def test_settings_that_are_younger_than_a_log_are_as_it_meant_them(
    configured: Configured, by_clock: bool, late: float
) -> None:
    assert scheduler_of(configured).policy == UniSched(by_clock=by_clock, late=late)


@pytest.mark.parametrize("policy", ["fifo", "lyra", "unisched", "stretto"])
def test_resolved_settings_make_the_same_scheduler(policy: str) -> None:
    words = Configured(policy, settings={"place.rule": "spread", "lend.rule": "lyra"}, defaults="current")
    scheduler = scheduler_of(words)
    assert scheduler_of(with_resolved_settings(words, scheduler)) == scheduler


def test_a_log_with_resolved_settings_is_decided_as_it_was_when_defaults_have_changed() -> None:
    """The present defaults stand for those of another version: the log has other ones, which nobody set."""
    then = {"policy.late": "0.3", "policy.by_clock": "false", "place.rule": "spread"}
    decides = scheduler_of(Configured("unisched", defaults="current", resolved=then))
    assert decides.policy == UniSched(by_clock=False, late=0.3)
    assert decides.placer == load_placer("spread")
    typed = {"policy.late": "0.4"}
    assert scheduler_of(Configured("unisched", settings=typed, resolved=then)).policy == UniSched(
        by_clock=False, late=0.4
    )


class FailsAtFirst(FirstInFirstOut):
    """It breaks its promise twice, and then decides."""

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """More than a job asked for, at first."""
        shares = super().allocate(snapshot, speeds)
        FAILED.append(snapshot.now_s)
        return replace(shares, gpus=shares.gpus + 1) if len(FAILED) <= 2 and len(shares.gpus) else shares


FAILED: list[float] = []


def test_a_decision_that_fails_changes_nothing_and_the_policy_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with deciding(tmp_path, f"{__name__}:FailsAtFirst", True, 0.1) as (log_writer, made):
            await log_writer.record(NodeSeen("n0", "a100", 2), a_job("1"))
            await comes_to(made, 1)
            assert [action["verb"] for action in made[0].actions] == ["start"]

    FAILED.clear()
    play(story)
    told = [record for record in caplog.records if record.message.startswith("a decision failed")]
    assert [bool(record.exc_info) for record in told] == [True, False]
    assert "BadPlan: the policy gives job 1 2 GPUs, expected 1" in told[0].message
