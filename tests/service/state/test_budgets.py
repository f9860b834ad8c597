"""Budgets: what is used of them is what usage says, and jobs wait for those that are used up."""

import asyncio
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.service.play import Deciding
from tests.service.state.usage_lives import BEGAN_S, Life, report_of

from stretto.model import Why
from stretto.scheduler.round import decide
from stretto.service.budgets import BudgetWatch, Standing
from stretto.service.eventlog import Store, open_store
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.state import events as happened
from stretto.service.state.budgets import Budget, Level, Unit
from stretto.service.state.events import BudgetReached, BudgetSet
from stretto.service.state.periods import period_around
from stretto.service.state.status import reason_of
from stretto.service.state.usage import QUARTER_US, US_PER_S
from stretto.service.state.usage_report import Question

DAY_US = 86_400 * US_PER_S
TOMORROW_S = 80_000.0  # 2001-09-10T00:00:00Z, on the clock of a scene


def budget_set(name: str = "b", amount: float = 10.0, **more: Any) -> BudgetSet:
    fields: dict[str, Any] = {"user": "ada", "hold": 1.0} | more
    return BudgetSet(name, "gpu_hours", amount, "day", **fields)


def held(name: str = "b", used: float = 10.0) -> BudgetReached:
    """It is used up until the end of the first day."""
    until_us = round((BEGAN_S + TOMORROW_S) * US_PER_S)
    return BudgetReached(name, "hold", used, 10.0, "gpu_hours", until_us - DAY_US, until_us)


# ── what is used ──────────────────────────────────────────────────────────────────────────────────


def watch_of(life: Life, store: Store) -> BudgetWatch:
    """Follows a scene."""
    clock = SimpleNamespace(now_s=lambda: life.scene.now_s, wall_s=lambda seconds: seconds)
    writer = SimpleNamespace(state=life.scene.state, listeners=[])
    watch = BudgetWatch(writer, clock, store.ended)  # type: ignore[arg-type]
    told = life.scene.tell

    def tell(*events: happened.Event) -> None:
        told(*events)
        for listener in writer.listeners:
            listener([(life.scene.state.seq, event) for event in events])

    life.scene.tell = tell  # type: ignore[method-assign]
    return watch


def by_usage(life: Life, store: Store, one: Standing) -> float:
    """What usage says is charged to those whom a budget is for, in its period so far."""
    budget, queues = one.budget, life.scene.state.queues

    def is_in(queue: str, wanted: str) -> bool:
        return queue == wanted or (
            queue in queues and bool(queues[queue].parent) and is_in(queues[queue].parent, wanted)
        )

    question = Question(("user", "queue"), one.from_us, one.until_us)
    rows = report_of(life.scene.state, life.scene.now_s, question, store, life.scene.state.gpu_prices)
    mine = [
        row
        for row in rows
        if budget.user in ("", row["user"]) and (not budget.queue or is_in(row["queue"], budget.queue))
    ]
    if budget.unit is Unit.GPU_HOURS:
        return float(sum(row["charged_gpu_seconds"] for row in mine)) / 3600
    return float(sum(row["cost"] or 0.0 for row in mine))


BUDGETS = (
    BudgetSet("of-ada", "gpu_hours", 100.0, "day", "Europe/Berlin", user="ada", warn=0.5),
    BudgetSet("of-low", "gpu_hours", 100.0, "week", queue="low", warn=0.5),
    BudgetSet("of-high", "gpu_hours", 100.0, "month", queue="high", warn=0.5),
    BudgetSet("of-bob-in-high", "cost", 100.0, "month", "Asia/Kathmandu", user="bob", queue="high", warn=0.5),
    BudgetSet("of-all", "cost", 100.0, "week", warn=0.5),
)


@pytest.mark.sqlite
@settings(max_examples=scaled(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_used_of_budgets_is_what_usage_says(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    draw = random.Random(seed)

    async def story(store: Store) -> None:
        life = Life(seed, store)
        watch = watch_of(life, store)
        begin = draw.randrange(20)  # usage before a budget was set counts, too
        for step in range(60):
            life.step()
            if draw.random() < 0.1:
                now_us = round((BEGAN_S + life.scene.now_s) * US_PER_S)
                from_us = (now_us - draw.randrange(20 * DAY_US)) // QUARTER_US * QUARTER_US
                life.scene.tell(happened.GpuPriceSet("a100", draw.choice([0.5, 2.25, 3.0]), from_us))
            if draw.random() < 0.05:
                parent = draw.choice(["", "high"])
                life.scene.tell(happened.QueueSet("high", 8), happened.QueueSet("low", 4, parent=parent))
            if step == begin:
                life.scene.tell(*BUDGETS)
            if step > begin and draw.random() < 0.3:
                life.scene.now_s += draw.choice([0.0, 1.234567])
                standings = await watch.standings()
                assert [one.budget.name for one in standings] == sorted(one.name for one in BUDGETS)
                for one in standings:
                    assert one.used == pytest.approx(by_usage(life, store, one), abs=1e-5), one.budget.name

    with open_store(tmp_path_factory.mktemp("budgets") / "log.db") as store:
        asyncio.run(story(store))


def test_a_period_is_that_of_its_zone_also_where_clocks_change() -> None:
    def hours(period: str, zone: str, year: int, month: int, day: int, hour: int) -> tuple[str, float]:
        at = datetime(year, month, day, hour, tzinfo=UTC)
        begins_us, ends_us = period_around(period, ZoneInfo(zone), round(at.timestamp()) * US_PER_S)
        begins = datetime.fromtimestamp(begins_us / US_PER_S, ZoneInfo(zone))
        return begins.isoformat(), (ends_us - begins_us) / 3600 / US_PER_S

    assert hours("day", "UTC", 2026, 3, 29, 12) == ("2026-03-29T00:00:00+00:00", 24)
    assert hours("day", "Europe/Berlin", 2026, 3, 29, 12) == ("2026-03-29T00:00:00+01:00", 23)
    assert hours("day", "Europe/Berlin", 2026, 3, 28, 23) == ("2026-03-29T00:00:00+01:00", 23)
    assert hours("week", "Europe/Berlin", 2026, 10, 25, 12) == ("2026-10-19T00:00:00+02:00", 7 * 24 + 1)
    assert hours("month", "UTC", 2024, 2, 29, 23) == ("2024-02-01T00:00:00+00:00", 29 * 24)


def test_a_level_follows_from_what_is_used() -> None:
    budget = Budget("b", Unit.COST, 200.0, "day", warn=0.5, hold=1.2)
    levels = [budget.level_at(used) for used in (0.0, 99.9, 100.0, 239.9, 240.0)]
    assert levels == [Level.NONE, Level.NONE, Level.WARN, Level.WARN, Level.HOLD]
    assert [budget.next_threshold(used) for used in (0.0, 100.0, 240.0)] == [100.0, 240.0, None]


# ── jobs that wait ────────────────────────────────────────────────────────────────────────────────


def why(play: Deciding, job: str) -> tuple[str, str]:
    state = play.scene.state
    return reason_of(state, state.jobs[job], play.scene.now_s, None, None)


def test_jobs_of_a_budget_that_is_used_up_wait_for_its_next_period_and_others_do_not() -> None:
    play = Deciding("fifo")
    play.scene.tell(budget_set(), held(used=10.25))
    play.submit("1", "", 2)
    play.submit("2", "", 2, user="bob")
    plan = play.decide()
    assert [action.job for action in plan.actions] == ["2"]  # no policy is asked about the other
    assert (play.gpus("1"), play.gpus("2")) == (0, 2)
    assert why(play, "1") == (
        "BUDGET",
        "budget b: 10.25 of 10 GPU-hours are used this day; until 2001-09-10 00:00 UTC",
    )
    assert play.observer.next_change_s(play.scene.state, play.scene.now_s) == TOMORROW_S
    play.scene.now_s = TOMORROW_S - 30.001
    play.decide()
    assert play.gpus("1") == 0
    play.decide()
    assert play.gpus("1") == 2


def test_a_budget_that_is_raised_or_deleted_holds_no_job() -> None:
    for freeing in (budget_set(amount=20.0), happened.BudgetDeleted("b")):
        play = Deciding("fifo")
        play.scene.tell(budget_set(), held())
        play.submit("1", "", 2)
        play.decide()
        assert play.gpus("1") == 0
        play.scene.tell(freeing)
        play.decide()
        assert play.gpus("1") == 2


@pytest.mark.parametrize("policy", ["afs", "sia", "pollux", "stretto"])
def test_jobs_that_run_go_on_and_do_not_grow_while_their_budget_is_used_up(policy: str) -> None:
    play = Deciding(policy)
    play.submit("1", "", 1, most=8)
    play.scene.give(_1={"n0": 0b1})
    play.scene.reconcile()
    play.scene.tell(budget_set(), held())
    for _ in range(4):
        play.decide()
        play.scene.reconcile()
    assert play.gpus("1") == 1
    play.scene.tell(happened.BudgetDeleted("b"))
    sizes = []
    for _ in range(8):
        play.scene.now_s += 600.0
        play.decide()
        play.scene.reconcile()
        sizes.append(play.gpus("1"))
    assert max(sizes) > 1, "without the budget it grows"


def test_jobs_that_run_are_stopped_where_the_budget_says_so() -> None:
    play = Deciding("fifo")
    play.submit("1", "", 2, preemptible=False)
    play.submit("2", "", 2, user="bob")
    play.decide()
    play.scene.reconcile()
    play.scene.tell(budget_set(stops=True), held())
    play.scene.reconcile()
    assert play.scene.asked_to_stop == set(play.scene.names("1"))
    for name in play.scene.names("1"):
        play.scene.end(name, 143)
    play.scene.reconcile()
    play.decide()
    assert (play.gpus("1"), play.gpus("2"), why(play, "1")[0]) == (0, 2, "BUDGET")
    play.scene.now_s = TOMORROW_S
    play.decide()
    assert play.gpus("1") == 2


def test_a_queue_counts_what_is_in_its_parts() -> None:
    play = Deciding("fifo")
    for name, parent in (("default", ""), ("lab", ""), ("vision", "lab")):
        play.scene.tell(happened.QueueSet(name, is_default=name == "default", parent=parent))
    play.scene.tell(budget_set(user="", queue="lab"), held())
    play.submit("1", "vision", 2)
    play.submit("2", "default", 2)
    play.decide()
    assert (play.gpus("1"), play.gpus("2")) == (0, 2)


def test_a_start_that_was_decided_before_the_budget_was_used_up_is_dropped() -> None:
    play = Deciding("fifo")
    play.scene.tell(budget_set())
    play.submit("1", "", 2)
    scene = play.scene
    snapshot = snapshot_for(play.scheduler, play.observer, scene.state, scene.now_s, frozenset(), None)
    plan = decide(snapshot, play.scheduler)
    scene.tell(held())
    scene.tell(decided(snapshot, plan, scene.state.seq - 1, 1.0))
    assert (play.gpus("1"), scene.state.dropped) == (0, 1)
    assert plan.why.of(0) is Why.RUNS


def test_a_level_of_a_budget_that_is_gone_changes_nothing() -> None:
    play = Deciding("fifo")
    play.scene.tell(held(), happened.BudgetDeleted("b"))
    reached: Mapping[str, Any] = play.scene.state.budgets.reached
    assert dict(reached) == {}
