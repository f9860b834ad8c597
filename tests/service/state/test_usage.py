"""GPU time by user, queue, type, job and period, against sums by hand and a walk over the log."""

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.service.scene import Scene
from tests.service.state.usage_lives import BEGAN_S, Life, report_of

from stretto.model import InputError
from stretto.service.eventlog import open_store
from stretto.service.retention.job_retention import mend
from stretto.service.state import events as happened
from stretto.service.state.events import Event
from stretto.service.state.gpu_prices import GpuPrices
from stretto.service.state.reducer import apply_or_skip
from stretto.service.state.state import State
from stretto.service.state.usage import NO_CAUSE, US_PER_S, CauseKind, JobUsage, Use
from stretto.service.state.usage_report import Question


def test_usage_is_gpus_times_hours_by_user_and_queue() -> None:
    scene = Scene()
    scene.submit("1", 2, elastic=(1, 4), queue="long")
    scene.submit("2", 1)
    scene.tell(happened.Submitted("3", scene.state.jobs["2"].spec.to_json(), "bob"))
    scene.give(_1={"n0": 0b11}, _2={"n1": 0b1})
    scene.now_s = 3600.0  # job 1: 2 GPUs for an hour
    scene.give(_1={"n0": 0b1111})
    scene.now_s = 5400.0  # and 4 for half an hour: 4 in all; job 2: 1 for an hour and a half
    scene.give(_1=None, _3={"n0": 0b1})
    scene.tell(happened.Ended("2", "COMPLETED", 0))
    scene.now_s = 9000.0  # job 3: 1 for an hour, and goes on

    def sums(by: str) -> list[tuple[str, int, int, float]]:
        rows = report_of(scene.state, scene.now_s, Question((by,)))
        return [(row[by], row["jobs"], row["gpus"], row["gpu_hours"]) for row in rows]

    assert sums("user") == [("ada", 2, 0, 5.5), ("bob", 1, 1, 1.0)]
    assert sums("queue") == [("", 2, 1, 2.5), ("long", 1, 0, 4.0)]
    assert sums("job") == [("1", 1, 0, 4.0), ("2", 1, 0, 1.5), ("3", 1, 1, 1.0)]
    assert sums("type") == [("a100", 3, 1, 6.5)]


def test_periods_are_those_of_a_zone_and_a_range_cuts_exactly() -> None:
    scene = Scene()
    scene.submit("1", 2)
    scene.give(_1={"n0": 0b11})
    scene.now_s = 30 * 3600.0  # from 01:46:40 on the 9th to 07:46:40 on the 10th, UTC

    def days(zone: str, **more: Any) -> list[tuple[str, float]]:
        rows = report_of(scene.state, scene.now_s, Question(("day",), zone=ZoneInfo(zone), **more))
        return [(row["period"], row["gpu_seconds"]) for row in rows]

    to_midnight_s = 24 * 3600 - (3600 + 46 * 60 + 40)
    assert days("UTC") == [
        ("2001-09-09", 2.0 * to_midnight_s),
        ("2001-09-10", 2.0 * (108_000 - to_midnight_s)),
    ]
    kathmandu_s = to_midnight_s - (5 * 3600 + 45 * 60)  # five hours and three quarters ahead
    assert days("Asia/Kathmandu") == [
        ("2001-09-09", 2.0 * kathmandu_s),
        ("2001-09-10", 2.0 * (108_000 - kathmandu_s)),
    ]
    noon_us = round(datetime(2001, 9, 9, 12, tzinfo=UTC).timestamp() * US_PER_S)
    asked = {"from_us": noon_us, "until_us": noon_us + 3_600 * US_PER_S}
    assert days("UTC", **asked) == [("2001-09-09", 7200.0)]
    with pytest.raises(
        InputError, match="from: expected a time at a quarter of an hour, got 2001-09-09T12:00:01"
    ):
        Question(from_us=noon_us + US_PER_S)
    with pytest.raises(InputError, match="by: expected each once, and one period at most, got day, week"):
        Question(("day", "week"))


def uses(scene: Scene, job: str) -> dict[str, float]:
    (row,) = [row for row in report_of(scene.state, scene.now_s, Question(("job",))) if row["job"] == job]
    return {use.value: row[f"{use.value}_gpu_seconds"] for use in Use if row[f"{use.value}_gpu_seconds"]}


def test_training_is_unsaved_until_a_checkpoint_and_lost_with_the_start_after_a_stop() -> None:
    scene = Scene()
    scene.submit("1", 2)
    scene.give(_1={"n0": 0b11})
    scene.now_s = 10.0  # nothing has started yet
    scene.reconcile()
    scene.now_s = 110.0
    assert uses(scene, "1") == {"idle": 20.0, "unsaved": 200.0}
    scene.tell(happened.Checkpointed("1", 5, "/c"))
    scene.now_s = 140.0
    assert uses(scene, "1") == {"idle": 20.0, "useful": 200.0, "unsaved": 60.0}
    for name in scene.names("1"):
        scene.end(name, 137)  # somebody kills it, and it is tried again
    scene.tell(happened.Requeued("1", 150.0))
    scene.reconcile()
    assert uses(scene, "1") == {"idle": 20.0, "useful": 200.0, "lost": 60.0}
    scene.now_s = 150.0
    scene.give(_1={"n1": 0b11})
    scene.now_s = 160.0
    scene.reconcile()
    scene.now_s = 161.0
    assert uses(scene, "1") == {"idle": 20.0, "useful": 200.0, "lost": 60.0 + 20.0, "unsaved": 2.0}
    for name in scene.names("1"):
        scene.end(name, 0)
    scene.reconcile()
    assert uses(scene, "1") == {"idle": 20.0, "useful": 202.0, "lost": 80.0}


def test_lost_time_is_charged_to_who_caused_it() -> None:
    scene = Scene()
    scene.submit("1", 2, queue="low")
    scene.submit("2", 4, user="bob", queue="high")
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.now_s = 100.0
    action = {"verb": "stop", "job": "1", "before": {"nodes": {"n0": 0b11}}, "after": None}
    scene.tell(happened.Decided(scene.state.seq, 100.0, (), (action,), preempted={"1": ("2", 10, 0)}))
    scene.reconcile()
    for name in scene.names("1"):
        scene.end(name, 143)
    scene.reconcile()
    (spell,) = [spell for spell in scene.state.jobs["1"].usage.spells if spell.use is Use.LOST]
    assert (spell.cause.kind, spell.cause.name, spell.cause.user) == (CauseKind.JOB, "2", "bob")
    rows = {row["user"]: row for row in report_of(scene.state, scene.now_s, Question(("user",)))}
    assert (rows["ada"]["lost_gpu_seconds"], rows["ada"]["charged_gpu_seconds"]) == (200.0, 0.0)
    assert (rows["bob"]["gpu_seconds"], rows["bob"]["charged_gpu_seconds"]) == (0.0, 200.0)
    by_queue = {row["queue"]: row for row in report_of(scene.state, scene.now_s, Question(("queue",)))}
    assert by_queue["high"]["charged_gpu_seconds"] == 200.0

    scene.give(_1={"n1": 0b11})
    scene.reconcile()
    scene.now_s = 150.0
    scene.silence(1)
    scene.bury(1)
    scene.reconcile()
    lost = [spell.cause for spell in scene.state.jobs["1"].usage.spells if spell.use is Use.LOST]
    assert [(cause.kind, cause.name, cause.user) for cause in lost][-1] == (CauseKind.NODE, "n1", "")
    rows = {row["user"]: row for row in report_of(scene.state, scene.now_s, Question(("user",)))}
    assert rows[""]["charged_gpu_seconds"] == 100.0  # the cluster


def test_a_job_on_several_types_has_the_gpu_time_of_each() -> None:
    usage = JobUsage()
    usage.hold({"a100": 2, "t4": 1}, "", 0.0, BEGAN_S)
    usage.trains = True
    usage.note(1000.0, BEGAN_S)
    usage.hold({"a100": 2, "t4": 3}, "", 1000.0, BEGAN_S)
    usage.note(1100.0, BEGAN_S)

    def gpu_s(use: Use) -> Counter[str]:
        sums: Counter[str] = Counter()
        for spell in usage.until(1100.0):
            if spell.use is use:
                sums[spell.gpu_type] += spell.gpu_us // US_PER_S
        return sums

    assert gpu_s(Use.UNSAVED) == {"a100": 2200, "t4": 1300}
    usage.lose(40.0, NO_CAUSE)  # of the newest time, on all of its GPUs
    assert gpu_s(Use.LOST) == {"a100": 80, "t4": 120}
    usage.lose(160.0, NO_CAUSE)  # the other 60 s of the newest, and 100 s before
    assert gpu_s(Use.LOST) == {"a100": 400, "t4": 400}
    assert gpu_s(Use.UNSAVED) == {"a100": 1800, "t4": 900}


def test_a_price_holds_from_a_time_on() -> None:
    scene = Scene()
    scene.submit("1", 2)
    scene.now_s = 800.0  # a quarter begins: 02:00
    scene.give(_1={"n0": 0b11})
    scene.now_s += 2 * 3600.0
    prices = GpuPrices()
    two_us = round((BEGAN_S + 800.0) * US_PER_S)
    prices.set("a100", 3.0, two_us + 3600 * US_PER_S)
    (row,) = report_of(scene.state, scene.now_s, Question(), prices=prices)
    assert (row["cost"], row["unpriced_gpu_seconds"]) == (6.0, 7200.0)
    prices.set("a100", 1.0, 0)
    (row,) = report_of(scene.state, scene.now_s, Question(), prices=prices)
    assert (row["cost"], row["unpriced_gpu_seconds"]) == (8.0, 0.0)
    prices.set("a100", 2.0, 0)  # instead
    (row,) = report_of(scene.state, scene.now_s, Question(), prices=prices)
    assert row["cost"] == 10.0
    (row,) = report_of(scene.state, scene.now_s, Question())
    assert (row["cost"], row["unpriced_gpu_seconds"]) == (None, None)


# ── sums are those of the log ─────────────────────────────────────────────────────────────────────


def walked(log: Sequence[Event], times: Sequence[float], until_s: float) -> Counter[tuple[str, str, str]]:
    """(job, user, queue) → GPU-microseconds, from who holds what between any two events; no usage is read."""
    state, gpu_us, users = State(), Counter[tuple[str, str, str]](), dict[str, str]()
    for number, (event, at_s) in enumerate(zip(log, times, strict=True)):
        apply_or_skip(state, event, number + 1, at_s)
        users |= {name: record.user for name, record in state.jobs.items()}
        ends_s = times[number + 1] if number + 1 < len(times) else until_s
        length_us = round(ends_s * US_PER_S) - round(at_s * US_PER_S)
        for job, allocation in dict(state.placement or {}).items():
            gpu_us[str(job), users[job], state.jobs[job].queue] += allocation.gpus * length_us
    return +gpu_us


@pytest.mark.sqlite
@settings(max_examples=scaled(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sums_over_periods_users_and_jobs_are_those_of_the_log(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path: Path = tmp_path_factory.mktemp("usage")
    with open_store(path / "log.db") as store:
        life = Life(seed, store)
        for _ in range(60):
            life.step()
        scene = life.scene
        scene.now_s += 12_345.678901
        gpu_us = walked(scene.log, scene.times, scene.now_s)
        everything = sum(gpu_us.values())

        def check(state: State) -> None:
            zone = ZoneInfo(random.Random(seed).choice(["UTC", "Europe/Berlin", "Asia/Kathmandu"]))
            for by in ([], ["user"], ["queue"], ["job"], ["type", "day"], ["user", "week"], ["job", "month"]):
                rows = report_of(state, scene.now_s, Question(tuple(by), zone=zone), store)
                us = [round(row["gpu_seconds"] * US_PER_S) for row in rows]
                parts = [round(row[f"{use.value}_gpu_seconds"] * US_PER_S) for row in rows for use in Use]
                charged = [round(row["charged_gpu_seconds"] * US_PER_S) for row in rows]
                assert sum(us) == sum(parts) == sum(charged) == everything, by
                if len(by) == 1:
                    place = {"job": 0, "user": 1, "queue": 2}[by[0]]
                    sums = Counter[str]()
                    for key, amount in gpu_us.items():
                        sums[key[place]] += amount
                    shown = {row[by[0]]: amount for row, amount in zip(rows, us, strict=True) if amount}
                    assert shown == +sums, by

        check(scene.state)
        life.append()
        again = State()  # a restart without a kept state
        for number, (event, at_s) in enumerate(zip(scene.log, scene.times, strict=True)):
            apply_or_skip(again, event, number + 1, at_s)
        check(again)
        store.ended.clear()  # the tables are lost, and made anew
        mend(store, again)
        check(again)
