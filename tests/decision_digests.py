"""Digests of what every policy decides, to hold a change against that should keep all decisions.

    python -m tests.decision_digests            write tests/golden/decision_digests.txt anew
    python -m tests.decision_digests --check    compare with it; status 1 where a line differs
    python -m tests.decision_digests --check --only sia,ones

A line is one policy, with one set of parameters, in one scenario. Shares count in every column: GPUs, types,
reasons, memory, prices, named GPUs and batch sizes; of whole simulations every action and placement too. The
policy is asked alone: no queues, no fair share, no priorities around it. Digests hold bits of floating-point
numbers, so they are compared where they were written: the first lines of the file name the versions. It is a
tool for moves of code, and no test: another processor may round differently.
"""

import argparse
import hashlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from stretto.clusters import read_cluster
from stretto.lend import CapacityLoaning
from stretto.model import (
    Adaptivity,
    Allocation,
    Cluster,
    Configurations,
    GpuType,
    InputError,
    Job,
    JobId,
    Node,
    NodeId,
    Plan,
    Policy,
    Reward,
    Shares,
    Snapshot,
    Speeds,
    StrettoError,
    Trigger,
    cluster_of,
    digest,
)
from stretto.policies import load_policy, policy_names
from stretto.policies.registry import policy_class
from stretto.scheduler.components import propose
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler
from stretto.sim.lenders import SimulatedLender
from stretto.sim.run import Setup, scheduler_of, world_of
from stretto.sim.settings import SimSettings
from stretto.sim.world import CapacityEvent
from stretto.testing.builders import a_snapshot
from stretto.testing.situations import Situation, known_columns, take_first_free
from stretto.traces import Workload, make_workload
from stretto.traces.recipes import prepared

FILE = Path(__file__).parent / "golden" / "decision_digests.txt"
SNAPSHOTS = 30  # random ones for each set of parameters; chosen
ROUNDS = 3  # that each is asked for, with what the policy remembers
MOST_DECISIONS = 250  # of a simulation; chosen: a policy by small rounds would take minutes
USUAL = ""  # the set of parameters that nobody changed


# ── random snapshots ──────────────────────────────────────────────────────────────────────────────


def some_situation(seed: int) -> Situation:
    """A cluster of one to three types, jobs of every kind, some of which run; some nodes are not usable."""
    rng = np.random.default_rng([seed, 1])
    groups = [
        (int(rng.integers(1, 5)), int(rng.choice([1, 2, 4, 8])), int(rng.choice([0, 0, 1])))
        for _ in range(int(rng.integers(1, 4)))
    ]
    cluster = cluster_of(
        "random",
        *((GpuType(f"type-{row}", max_nodes_per_job=most), nodes, gpus)
          for row, (nodes, gpus, most) in enumerate(groups)),
    )  # fmt: skip
    usable = rng.random(len(cluster.nodes)) < 0.85
    usable |= not usable.any()
    jobs = tuple(_some_job(f"j{row}", cluster, rng) for row in range(int(rng.integers(1, 25))))
    held = _some_placement(jobs, cluster, usable, rng)
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=held,
        now_s=float(rng.integers(10, 1_000)),
        due=frozenset({Trigger.ARRIVAL}),
        **known_columns(len(jobs), len(cluster.types), rng),
    )
    rate_per_s = rng.uniform(0.1, 10.0, (len(jobs), len(cluster.types)))
    rate_per_s[~snapshot.jobs.allowed_kinds | (rng.random(rate_per_s.shape) < 0.1)] = np.nan
    return Situation(
        snapshot=replace(snapshot, usable=usable, seed=int(rng.integers(0, 99))),
        jobs=jobs,
        held=held,
        rate_per_s=rate_per_s,
        exponent=rng.uniform(0.5, 1.0, len(jobs)),
    )


def _some_job(name: str, cluster: Cluster, rng: np.random.Generator) -> Job:
    gpus = int(rng.choice([1, 1, 2, 3, 4, 8, 16, 64], p=[0.25, 0.2, 0.2, 0.05, 0.15, 0.1, 0.03, 0.02]))
    at_s = float(rng.integers(0, 5))
    picky = rng.random() < 0.2
    types = tuple(kind for kind in cluster.type_names if picky and rng.random() < 0.5)
    value = float(rng.integers(10, 100))
    rewards = (
        (),
        (Reward(at_s + float(rng.integers(1, 2_000)), value),),
        (Reward(at_s + 500.0, value), Reward(at_s + 1_500.0, value / 2)),
    )[int(rng.choice([0, 0, 1, 1, 2]))]
    return Job(
        id=JobId(name),
        submitted_s=at_s,
        gpus=gpus,
        batch_size=64,
        min_gpus=int(rng.integers(1, gpus + 1)),
        max_gpus=int(rng.integers(gpus, 2 * gpus + 1)),
        adaptivity=list(Adaptivity)[int(rng.integers(len(Adaptivity)))],
        preemptible=bool(rng.random() < 0.8),
        gpu_types=types,
        rewards=rewards,
        priority=int(rng.integers(0, 3)),
        weight=float(rng.choice([1.0, 1.0, 2.0])),
    )


def _some_placement(
    jobs: Sequence[Job], cluster: Cluster, usable: np.ndarray[Any, Any], rng: np.random.Generator
) -> dict[str, Allocation]:
    """GPUs for some of the jobs, on the first nodes of a type that have any."""
    free = [(1 << gpus) - 1 if ok else 0 for gpus, ok in zip(cluster.node_gpus.tolist(), usable, strict=True)]
    held = {}
    for job in jobs:
        kind = int(rng.integers(-1, len(cluster.types)))
        wanted = int(rng.integers(job.min_gpus, job.max_gpus + 1))
        if kind < 0 or (job.gpu_types and cluster.type_names[kind] not in job.gpu_types):
            continue
        allocation = take_first_free(cluster, free, kind, wanted)
        if allocation is not None:
            held[str(job.id)] = allocation
    return held


def of_snapshots(policy: Policy) -> tuple[int, str]:
    """(decisions, digest) over random snapshots, each asked again with what the policy remembers."""
    hasher = _Hasher()
    for seed in range(SNAPSHOTS):
        situation = some_situation(seed)
        for _ in range(ROUNDS):
            try:
                shares = policy.allocate(
                    situation.snapshot.limited_to(policy.views), situation.speeds_for(policy)
                )
            except StrettoError as refused:
                hasher.add(str(refused))
                break
            hasher.add(shares)
            situation = situation.later(90.0, shares.memory)
    return hasher.count, hasher.text


# ── whole simulations ─────────────────────────────────────────────────────────────────────────────


def mixed_trainings() -> Setup:
    """Mixed types; nodes fail and return."""
    lost = [CapacityEvent(2_000.0 + 900 * node, node, usable=False) for node in (0, 7, 8)]
    back = [CapacityEvent(7_000.0, event.node, usable=True) for event in lost]
    return _setup(read_cluster("sia-hetero-64"), capacity_events=(*lost, *back))


def one_type() -> Setup:
    """Equal nodes of 8 GPUs."""
    return _setup(replace(read_cluster("gpu8-256"), nodes=read_cluster("gpu8-256").nodes[:3]))


def nodes_of_four() -> Setup:
    """The testbed of ONES, smaller."""
    return _setup(read_cluster("ones-16"))


def with_lenders() -> Setup:
    """Two types, of which one is lent."""
    types = (GpuType("v100", 32.0), GpuType("t4", 16.0, speed=1 / 3, stand_ins=3))
    nodes = [Node(NodeId(f"v100-{row}"), "v100", 8) for row in range(4)]
    nodes += [Node(NodeId(f"t4-{row}"), "t4", 8, lender="inference") for row in range(4)]
    need = 0.5 + 0.4 * np.sin(np.arange(400) / 7.0)
    lender = SimulatedLender("inference", np.arange(4, 8), 0.0, 300.0, need)
    cluster, lending = Cluster("lending", types, tuple(nodes)), CapacityLoaning(forecast="oracle")
    return _setup(cluster, lending=lending, lenders=(lender,))


def _setup(cluster: Cluster, **more: Any) -> Setup:
    return Setup(cluster, load_policy("fifo"), SimSettings(), seed=1, **more)


def _weighted(workload: Workload) -> Workload:
    """With priorities and weights, where a trace has none."""
    rng = np.random.default_rng(5)
    jobs = [
        replace(job, priority=int(rng.integers(0, 3)), weight=float(rng.choice([1.0, 1.0, 3.0])))
        for job in workload.jobs
    ]
    return replace(workload, jobs=jobs)


SCENARIOS: Mapping[str, Callable[[], tuple[Workload, Setup]]] = {
    "demo on mixed types": lambda: (make_workload("demo", jobs=30, seed=1), mixed_trainings()),
    "trainings, some rigid, weighted": lambda: (
        _weighted(make_workload("synthetic-sia", jobs=30, hours=2.0, seed=2, rigid=0.3, strong_scaling=0.3)),
        mixed_trainings(),
    ),
    "philly on one type": lambda: (make_workload("synthetic-philly", jobs=60, hours=6.0, seed=3), one_type()),
    "tasks of ONES": lambda: (make_workload("ones", jobs=25, hours=0.5, seed=4), nodes_of_four()),
    "interactive and batch": lambda: (
        prepared(make_workload("helios-mix2", jobs=60, hours=6.0, seed=5), "cornucopia:mislabelled=0.05"),
        one_type(),
    ),
    "deadlines": lambda: (
        prepared(make_workload("helios-mix2", jobs=60, hours=6.0, seed=6), "unisched"),
        one_type(),
    ),
    "lent nodes": lambda: (
        prepared(
            make_workload("synthetic-philly", jobs=80, hours=6.0, seed=7),
            "lyra:fungible=0.5,elastic=0.4,heterogeneous=0.2",
        ),
        with_lenders(),
    ),
}


class _Enough(Exception):
    """So many decisions were made."""


class _Listened:
    """A policy, whose shares are counted into a digest."""

    def __init__(self, policy: Policy, hasher: "_Hasher") -> None:
        self._policy, self._hasher = policy, hasher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """What the policy says."""
        shares = self._policy.allocate(snapshot, speeds)
        self._hasher.add(shares)
        return shares

    def configurations(self, cluster: Cluster) -> Configurations:
        """Those of the policy."""
        return self._policy.configurations(cluster)


def of_simulation(policy: Policy, make: Callable[[], tuple[Workload, Setup]]) -> tuple[int, str]:
    """(decisions, digest) of a simulation from start to end."""
    workload, setup = make()
    setup = replace(setup, policy=policy)
    hasher = _Hasher()

    def alone(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
        if hasher.count >= MOST_DECISIONS:
            raise _Enough
        loans = None
        if scheduler.lending is not None and Trigger.LENDERS in snapshot.due:
            loans = scheduler.lending.settle(snapshot)
            snapshot = replace(
                snapshot,
                usable=loans.usable,
                placement=loans.placement,
                jobs=snapshot.jobs.with_placement(loans.placement),
            )
        listened: Any = _Listened(scheduler.policy, hasher)
        return replace(propose(snapshot, replace(scheduler, policy=listened)), loans=loans)

    def record(snapshot: Snapshot, plan: Plan) -> None:
        actions = tuple((action.verb, action.job, action.after) for action in plan.actions)
        hasher.hash((snapshot.now_s, plan.based_on, actions, plan.why, plan.wake_s))

    try:
        run(world_of(workload, setup), scheduler_of(setup), record, alone)
    except _Enough:
        pass
    except StrettoError as refused:  # a policy that cannot be asked about such jobs always says so
        hasher.add(str(refused))
    return hasher.count, hasher.text


# ── all of them ───────────────────────────────────────────────────────────────────────────────────


class _Hasher:
    """One digest of many values."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def hash(self, value: Any) -> None:
        """Take one in."""
        self._hash.update(digest(value).encode())

    def add(self, decision: Any) -> None:
        """Take a decision in, and count it."""
        self.count += 1
        self.hash(decision)

    @property
    def text(self) -> str:
        """The digest."""
        return self._hash.hexdigest()


@dataclass(frozen=True)
class Case:
    """One line of the file."""

    policy: str
    parameters: str  # "name=value", or USUAL
    scenario: str  # a key of SCENARIOS, or "random snapshots"

    @property
    def words(self) -> str:
        """The line up to its digest."""
        return f"{self.policy} {self.parameters or '-'} | {self.scenario}"


def cases(only: Sequence[str] = ()) -> Iterator[Case]:
    """Every line. Each choice among a few values is tried in random snapshots, with all else as usual."""
    for name in policy_names():
        if only and name not in only:
            continue
        yield Case(name, USUAL, "random snapshots")
        for parameters in choices_of(policy_class(name)):
            yield Case(name, parameters, "random snapshots")
        for scenario in SCENARIOS:
            yield Case(name, USUAL, scenario)


def choices_of(component: type) -> list[str]:
    """`name=value` for every other value of each parameter that is a switch or one of a few words."""
    hints, found = get_type_hints(component), []
    for entry in fields(component):
        values: list[Any] = []
        if hints[entry.name] is bool:
            values = [not entry.default]
        elif isinstance(hints[entry.name], type) and issubclass(hints[entry.name], Enum):
            values = [choice.value for choice in hints[entry.name] if choice != entry.default]
        elif getattr(hints[entry.name], "__args__", None) and isinstance(entry.default, str):
            values = [choice for choice in hints[entry.name].__args__ if choice != entry.default]
        found += [f"{entry.name}={value}" for value in values]
    return found


def line_of(case: Case) -> str:
    """One line of the file."""
    settings = dict([case.parameters.split("=", 1)]) if case.parameters else {}
    try:
        policy = load_policy(case.policy, **settings)
    except InputError as refused:
        return f"{case.words}: {refused}"
    if case.scenario in SCENARIOS:
        count, text = of_simulation(policy, SCENARIOS[case.scenario])
    else:
        count, text = of_snapshots(policy)
    return f"{case.words}: {count} decisions {text}"


def made_with() -> list[str]:
    """The first lines of the file."""
    return [
        f"# {platform.machine()}, python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "highspy")),
        "# made by: python -m tests.decision_digests",
    ]


def main() -> int:
    """Write or compare; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare with the file")
    parser.add_argument("--only", default="", help="names of policies, with commas between them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name]
    if only and not given.check:
        parser.error("--only goes with --check")
    kept = FILE.read_text(encoding="utf-8").splitlines() if given.check else []
    if given.check and kept[:2] != made_with():
        print(f"made elsewhere, so digests may differ:\n  {kept[0]}\n  {made_with()[0]}")
    lines, different = [], 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for line in pool.map(line_of, cases(only)):
            lines.append(line)
            if given.check and line not in kept:
                different += 1
                print(line, flush=True)
    if not given.check:
        FILE.write_text("\n".join([*made_with(), *lines]) + "\n", encoding="utf-8")
        print(f"{len(lines)} lines written to {FILE.name}")
        return 0
    print(f"{len(lines)} lines compared, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
