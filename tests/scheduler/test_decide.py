"""One round: what is shown to whom, in which order, and what comes out."""

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from stretto.model import (
    ON_CHANGE,
    BadPlan,
    Cluster,
    Configurations,
    Durations,
    NotDeclared,
    Placement,
    Plan,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    Verb,
    View,
    configurations_from,
    no_speeds,
)
from stretto.model.timing import lapping
from stretto.policies.fifo import FirstInFirstOut
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler, decide, plan_within_constraints
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant

TWO = a_cluster(4)


@dataclass(frozen=True)
class Spy:
    """An estimator and a placer that note what they are shown."""

    shown: list[Any] = field(default_factory=list)

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Nothing, and a note of it."""
        self.shown.append((snapshot, configurations))
        return no_speeds(len(snapshot.jobs), 1, configurations)

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Each job from the first GPU of the only node on."""
        self.shown.append((snapshot, shares))
        taken, given = 0, {}
        for row, count in enumerate(shares.gpus.tolist()):
            held = grant(0, n0=count)
            given[snapshot.jobs.ids[row]] = replace(held, masks=(held.masks[0] << taken,)) if count else None
            taken += count
        return snapshot.placement.changed(given)


@dataclass(frozen=True)
class Half:
    """Gives everybody one GPU; reads what it may not if it is told to."""

    peeks: bool = False
    gpus: int = 1

    name: ClassVar[str] = "half"
    views: ClassVar[frozenset[View]] = frozenset({View.ORACLE_DURATION})
    placer: ClassVar[str] = "relaxed"

    @property
    def triggers(self) -> Triggers:
        """Events."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """One."""
        return configurations_from([(1, 1, 0)])

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """One GPU each."""
        assert snapshot.jobs.durations is not None
        if self.peeks:
            assert snapshot.jobs.progress is not None
        jobs = len(snapshot.jobs)
        zeros = np.zeros(jobs, dtype=np.int64)
        return Shares(
            zeros + self.gpus, zeros, zeros, Reasons(zeros), memory=7, wake_s=5.0, prices=np.ones(1), gap=0.1
        )


def snapshot(**rest: Any) -> Snapshot:
    known = Durations(np.ones(2), np.ones(2))
    made = a_snapshot(
        a_job("a"), a_job("b"), cluster=TWO, known_durations=known, known_estimates=known, **rest
    )
    return replace(made, version=41)


def test_estimator_and_policy_see_the_declared_views_and_the_placer_all() -> None:
    spy = Spy()
    decide(snapshot(), Scheduler(spy, Half(), spy))
    (estimated, columns), (placed, _) = spy.shown
    assert len(columns) == 1
    with pytest.raises(NotDeclared):
        assert estimated.jobs.estimates
    assert placed.jobs.estimates is not None


def test_a_policy_that_reads_what_it_did_not_declare_is_caught() -> None:
    spy = Spy()
    with pytest.raises(NotDeclared, match="'progress'"):
        decide(snapshot(), Scheduler(spy, Half(peeks=True), spy))


def test_a_plan_names_its_version_and_carries_what_the_policy_said() -> None:
    spy = Spy()
    plan = decide(snapshot(allocations={"a": grant(0, n0=1)}), Scheduler(spy, Half(), spy))
    assert plan.based_on == 41
    assert [(action.verb, action.job) for action in plan.actions] == [(Verb.START, "b")]
    assert (plan.memory, plan.wake_s, plan.gap) == (7, 5.0, 0.1)
    assert plan.prices is not None
    assert plan.placement.keys() == {"a", "b"}


def test_shares_are_checked_before_anything_is_placed() -> None:
    spy = Spy()
    with pytest.raises(BadPlan):
        decide(snapshot(), Scheduler(spy, Half(gpus=3), spy))
    assert len(spy.shown) == 1  # the estimator's


def test_the_same_snapshot_gives_the_same_plan() -> None:
    spy = Spy()
    one, other = (decide(snapshot(), Scheduler(spy, Half(), spy)) for _ in range(2))
    assert one.actions == other.actions


def test_a_decision_can_be_measured_step_by_step() -> None:
    spy = Spy()
    seconds = itertools.count()  # a clock that goes on by a second whenever it is read
    with lapping(lambda: float(next(seconds))) as laps:
        decide(snapshot(), Scheduler(spy, Half(), spy))
    assert laps == {"estimate": 1.0, "allocate": 1.0, "place": 1.0}


@dataclass
class Days:
    """A world of a few identical days."""

    left: int
    log: list[str] = field(default_factory=list)

    def wait(self) -> bool:
        """Until the days are over."""
        self.left -= 1
        self.log.append("wait")
        return self.left >= 0

    def observe(self) -> Snapshot:
        """The same every day."""
        self.log.append("observe")
        return snapshot()

    def act(self, plan: Plan) -> None:
        """Note it."""
        self.log.append("act")


def test_the_loop_records_each_decision_before_it_is_carried_out_until_the_world_ends() -> None:
    world, spy = Days(2), Spy()
    run(world, Scheduler(spy, Half(), spy), lambda seen, plan: world.log.append("record"))
    assert world.log == ["wait", "observe", "record", "act"] * 2 + ["wait"]


def test_a_real_policy_fits_the_round() -> None:
    spy = Spy()
    plan = decide(snapshot(), Scheduler(spy, FirstInFirstOut(), spy))
    assert [action.verb for action in plan.actions] == [Verb.START, Verb.START]


@pytest.mark.parametrize("step", [decide, plan_within_constraints])
def test_the_overview_shows_the_round_as_it_is(step: Callable[..., Plan]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "overview.md").read_text(encoding="utf-8")
    shown = page.split(f"```python\ndef {step.__name__}")[1].split("```")[0].split(") -> Plan:\n")[1]
    assert inspect.getsource(step).endswith(shown)
