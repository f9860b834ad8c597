"""Rounds about many jobs take cells over from the last one, and decide as if they had made all anew."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from stretto.estimate.estimators import OnlineGoodput
from stretto.experiments.steady.world import Churn, Steady, SteadyWorld
from stretto.model import (
    Adaptivity,
    Allocation,
    Cluster,
    Evidence,
    GpuType,
    Job,
    Plan,
    Snapshot,
    cluster_of,
    digest,
)
from stretto.place import load_placer
from stretto.policies.sia.configurations import ConfigurationSet
from stretto.policies.sia.last_round import Facts
from stretto.policies.sia.policy import Discount, FirstType, Sia
from stretto.scheduler.components import Scheduler, propose
from stretto.testing.builders import a_job, a_snapshot, some_progress
from stretto.testing.situations import known_columns

MANY = 32  # jobs at first
ROUNDS = 14


def scheduler_of(**settings: Any) -> Scheduler:
    """One that goes on from its last round whenever it has decided one."""
    return Scheduler(OnlineGoodput(), Sia(goes_on_from=1, **settings), load_placer("whole-nodes"))


def told(plan: Plan) -> tuple[Any, ...]:
    """All that comes of a decision, bit by bit."""
    prices = None if plan.prices is None else plan.prices.tobytes()
    return plan.actions, plan.why.code.tolist(), prices, plan.gap, digest(plan.memory)


@dataclass
class Changing:
    """Jobs and nodes of which anything may be different in the next round."""

    rng: np.random.Generator
    nodes: int = 6
    jobs: dict[str, Job] = field(default_factory=dict)
    shown: dict[str, Evidence] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    held: dict[str, Allocation] = field(default_factory=dict)
    shut: int = -1
    now_s: float = 1_000.0
    memory: Any = None
    cluster: Cluster | None = None

    def add(self, name: str) -> None:
        """A job that comes; its name may be that of one that has ended."""
        gpus = int(self.rng.choice([1, 1, 2, 3, 4, 8]))
        self.jobs[name] = a_job(
            name,
            gpus=gpus,
            at_s=float(self.rng.integers(0, 900)),
            min_gpus=int(self.rng.integers(1, gpus + 1)),
            max_gpus=2 * gpus,
            adaptivity=Adaptivity.RIGID if self.rng.random() < 0.2 else Adaptivity.ADAPTIVE,
            preemptible=bool(self.rng.random() < 0.9),
            batch_size=64,
        )
        self.report(name)
        self.restarts[name], self.largest[name] = int(self.rng.integers(0, 4)), 0

    def report(self, name: str) -> None:
        """A job shows other speeds."""
        self.shown[name] = known_columns(1, 2, self.rng)["known_evidence"][0]

    def end(self, name: str) -> None:
        """A job that goes."""
        for column in (self.jobs, self.shown, self.restarts, self.largest, self.held):
            column.pop(name, None)

    def passes(self) -> None:
        """A round passes: one or two of all these things happen."""
        self.now_s += 60.0
        for event in self.rng.integers(0, 8, size=2).tolist():
            some = str(self.rng.choice(sorted(self.jobs)))
            if event == 0:
                self.end(some)
            elif event == 1:
                self.end(some)
                self.add(some)
            elif event == 2:
                self.add(f"new-{self.now_s:g}-{event}")
            elif event == 3:
                self.report(some)
            elif event == 4:  # its owner changes what it may have, and so where it stands
                job = self.jobs[some]
                self.jobs[some] = replace(
                    job, max_gpus=job.max_gpus + 1, submitted_s=float(self.rng.integers(0, 900))
                )
            elif event == 6:  # it is said to have held more
                self.largest[some] += 2
            elif event == 5:
                self.shut = int(self.rng.integers(-1, self.nodes))
            elif self.rng.random() < 0.3:  # nodes are added, so all GPUs have other places
                self.nodes, self.cluster, self.held = self.nodes + 1, None, {}

    def snapshot(self) -> Snapshot:
        """As things stand."""
        if self.cluster is None:
            self.cluster = cluster_of("changing", (GpuType("A"), self.nodes, 8), (GpuType("B"), 4, 4))
        ordered = sorted(self.jobs.values(), key=lambda job: (job.submitted_s, job.id))
        names = [str(job.id) for job in ordered]
        snapshot = a_snapshot(
            *ordered,
            cluster=self.cluster,
            allocations=self.held,
            now_s=self.now_s,
            memory=self.memory,
            known_progress=some_progress(
                len(names),
                restarts=[self.restarts[name] for name in names],
                largest_held_gpus=[self.largest[name] for name in names],
            ),
            known_evidence=[self.shown[name] for name in names],
        )
        usable = snapshot.usable.copy()
        usable[self.shut : self.shut + 1] = self.shut < 0
        return replace(snapshot, usable=usable)

    def act(self, plan: Plan) -> None:
        """Everything is done at once."""
        for action in plan.actions:
            name = str(action.job)
            if action.after is None:
                del self.held[name]
                continue
            self.restarts[name] += name in self.held
            self.held[name] = action.after
            self.largest[name] = max(self.largest[name], action.after.gpus)
        self.memory = plan.memory


@contextmanager
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The jobs whose cells are made, decision by decision."""
    counts: list[int] = []
    of_rows = ConfigurationSet.of_rows.__func__  # type: ignore[attr-defined]

    def counted(cls: type[ConfigurationSet], *arguments: Any) -> ConfigurationSet:
        counts.append(len(arguments[2]))
        result: ConfigurationSet = of_rows(cls, *arguments)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(ConfigurationSet, "of_rows", classmethod(counted))
        yield counts


SETTINGS: list[dict[str, Any]] = [
    {},
    {"first_type": FirstType.BLIND},
    {"discount": Discount.PAPER, "decimals": 2},
    {"fairness_power": 0.5},
]


@pytest.mark.parametrize("seed", range(12))
def test_rounds_that_take_cells_over_decide_as_those_that_make_all_anew(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Changing(np.random.default_rng([seed, 77]))
    for number in range(MANY):
        world.add(f"job-{number}")
    settings = SETTINGS[seed % len(SETTINGS)]
    kept = scheduler_of(**settings)
    taken_over = 0
    for _ in range(ROUNDS):
        snapshot = world.snapshot()
        with made(monkeypatch) as counts:
            plan = propose(snapshot, kept)
        assert told(plan) == told(propose(snapshot, scheduler_of(**settings)))
        taken_over += len(world.jobs) - sum(counts)
        world.act(plan)
        world.passes()
    assert taken_over > ROUNDS * MANY / 4


@pytest.mark.parametrize("churn", list(Churn))
def test_a_steady_state_is_decided_as_if_nothing_were_taken_over(
    churn: Churn, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SteadyWorld(Steady(jobs=150, gpus=128, churn=churn, rounds=8), Sia.views)
    kept = scheduler_of()
    shares_estimates = replace(kept, policy=Sia(goes_on_from=1))
    with made(monkeypatch) as counts:
        while world.wait():
            snapshot = world.observe()
            plan = propose(snapshot, kept)
            anew = replace(shares_estimates, policy=Sia(goes_on_from=1))
            assert told(plan) == told(propose(snapshot, anew))
            world.act(plan)
    assert min(counts[2::2]) < 60


def test_nothing_is_taken_over_from_another_cluster_other_sizes_or_other_speeds() -> None:
    world = SteadyWorld(Steady(jobs=20, gpus=64), Sia.views)
    world.wait()
    snapshot = world.observe()
    speeds = OnlineGoodput().estimate(snapshot, Sia().configurations(snapshot.cluster))
    facts = Facts.of(snapshot, speeds)
    assert facts.rows_in(facts).tolist() == list(range(20))
    other = cluster_of("other", (GpuType("A"), 2, 8))
    for changed in ({"cluster": other}, {"configurations": object()}, {"origin": object()}, {"origin": None}):
        assert facts.rows_in(replace(facts, **changed)).tolist() == [-1] * 20
        assert replace(facts, **changed).rows_in(facts).tolist() == [-1] * 20


def test_a_job_that_held_more_since_has_its_cells_made_anew() -> None:
    world = SteadyWorld(Steady(jobs=20, gpus=64), Sia.views)
    world.wait()
    before = world.observe()
    progress = before.jobs.progress
    largest = progress.largest_held_gpus.copy()
    largest[3] += 1
    jobs = replace(before.jobs, known_progress=replace(progress, largest_held_gpus=largest))
    estimator, sizes = OnlineGoodput(), Sia().configurations(before.cluster)
    facts, now = (
        Facts.of(snapshot, estimator.estimate(snapshot, sizes))
        for snapshot in (before, replace(before, jobs=jobs))
    )
    assert np.flatnonzero(now.rows_in(facts) < 0).tolist() == [3]


def test_a_copy_of_a_policy_begins_without_a_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Changing(np.random.default_rng(1))
    for number in range(MANY):
        world.add(f"job-{number}")
    first = scheduler_of()
    propose(world.snapshot(), first)
    copies = [pickle.loads(pickle.dumps(first.policy)), replace(first.policy, round_s=30.0)]  # type: ignore[type-var]
    for policy, expected in [(first.policy, 0), *((copy, MANY) for copy in copies)]:
        with made(monkeypatch) as counts:
            propose(world.snapshot(), replace(first, policy=policy))
        assert sum(counts) == expected
