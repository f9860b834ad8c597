"""Pollux: GPUs and batch sizes chosen together, by evolving matrices of GPUs on nodes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobId,
    Pinned,
    PolicyTraits,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    Why,
    counts_within,
    every,
)
from stretto.policies.common.admission import most_gpus_of_one_job
from stretto.policies.common.pins import pin_as_held
from stretto.policies.pollux.homogeneous import (
    VirtualNodes,
    idle_of_one_type,
    largest_possible,
    of_one_type,
    pin_of,
    rows_held,
    shrunk_to,
    smallest_node_gpus,
    type_blind,
    virtual_nodes_of,
)
from stretto.settings import CheckedSettings, setting
from stretto.solve.genetic import AllocationProblem, Population, best_alone, evolve, filled

MOST_POWER = 16  # chosen: a thousandth to its power is still a number


class Normalisation(StrEnum):
    """What a speed-up is relative to."""

    FAIR = "fair"  # an exclusive 1/|J| of the cluster: the paper
    ONE_GPU = "one-gpu"  # one GPU: the public code


@dataclass(frozen=True, eq=False)
class PolluxMemory:
    """What Pollux remembers from one round to the next."""

    rounds: int  # decisions made so far; names the generator of the next
    places: IntArray  # (virtual,) `VirtualNodes.place` of the columns below
    jobs: tuple[JobId, ...]
    given: IntArray  # (jobs, virtual) GPUs handed out
    bred: tuple[JobId, ...]  # jobs that took part
    population: Population  # (population, bred, virtual) best first


@dataclass(frozen=True)
class Pollux(CheckedSettings, space="policy"):
    """Maximise a power mean of the jobs' speed-ups over all matrices of GPUs, jobs × nodes.

    Pollux (Qiao et al., OSDI 2021), section 4.2: FITNESS_p(A) = ((1/|J|) Σ_j SPEEDUP_j(A_j)^p)^(1/p), where
    SPEEDUP_j is goodput on A_j over goodput on an exclusive 1/|J| of the cluster. A job whose row changes has
    its speed-up multiplied by REALLOC_j(δ) = (age_j - restarts_j δ) / (age_j + δ). At most one job that spans
    nodes on any node. A job gets at most twice the GPUs that it ever held. Types are not told apart (see
    `homogeneous`).

    Deviations. REALLOC applies to jobs that hold GPUs: a start costs δ whenever it comes, and young jobs
    would never start. A discounted speed-up is not below that of waiting, which p < 0 could not bear. A
    mutation changes up to two entries of a matrix, not one of each row as in the paper. For the same number
    of matrices the harmonic mean comes within 4 % of a bound instead of 27 % (20 jobs on 16 nodes,
    benchmarks/pollux.py). A job of several GPUs at least may have a row of several types, of which none is
    enough. It gets its least GPUs of one type where these are idle. Else the same row would win in every
    round, and the job would wait for ever. New jobs enter the population with their least GPUs where some are
    idle. Jobs with a minimum above 1 are redrawn whole. A job
    that has a cluster of one type to itself needs no search.
    """

    name: ClassVar[str] = "pollux"
    views: ClassVar[frozenset[View]] = frozenset({View.GOODPUT_MODEL, View.PROGRESS})
    placer: ClassVar[str] = "pinned"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Pollux (OSDI 2021)",
        order="its search over all jobs at once, which no order of jobs decides",
        starvation="bounded in practice: a job without GPUs costs the mean more than any other",
    )

    round_s: float = setting(60.0, above=0)  # the paper
    population: int = setting(100, at_least=1)  # matrices; the paper
    generations: int = setting(100, at_least=0)  # in each round; the paper (Lyra's experiments: 250)
    # p; the paper
    fairness_power: float = setting(-1.0, at_least=-MOST_POWER, at_most=MOST_POWER, nonzero=True)
    normalisation: Normalisation = Normalisation.FAIR
    restart_s: float = setting(30.0, at_least=0)  # δ; the paper
    # of a job without GPUs; chosen: keeps p < 0 finite
    waiting_speedup: float = setting(1e-3, above=0, at_most=0.1)
    # most GPUs of a job, as a multiple of the most that it ever held; section 4.1
    growth: float = setting(2.0, at_least=1)
    most_gpus: int = setting(64, at_least=1)  # of one job; Sia's published simulator
    within_smallest_type: bool = True  # a job gets no more than the smallest type has; the same
    avoid_interference: bool = True  # the paper
    mutation_rate: float = setting(0.5, above=0, at_most=1)  # chosen: see `mutated` in solve/genetic.py

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """Every count, on one node and on several."""
        return counts_within(cluster, self._units(cluster))

    def _units(self, cluster: Cluster) -> int:
        most = int(cluster.capacity.min() if self.within_smallest_type else cluster.capacity.max())
        return min(self.most_gpus, most)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """The best matrix that the budget finds, made real."""
        memory = snapshot.memory if isinstance(snapshot.memory, PolluxMemory) else None
        nodes = virtual_nodes_of(snapshot.cluster, snapshot.usable)
        rows_before = rows_held(snapshot, nodes, _rows_given(memory, nodes))
        # Jobs that restart or may not be stopped keep their GPUs and take no part.
        stays = (rows_before.sum(axis=1) > 0) & (
            snapshot.jobs.progress.recovering | ~snapshot.jobs.preemptible
        )
        believed = self._believe(snapshot, speeds, rows_before)
        plays = np.flatnonzero(~stays & (believed.most > 0))
        problem = self._problem(snapshot, nodes, rows_before, stays, believed, plays)

        # The search goes on from the population of the last round, as published.
        rounds = memory.rounds if memory else 0
        rng = np.random.default_rng([snapshot.seed, rounds])
        bred = tuple(snapshot.jobs.ids[row] for row in plays.tolist())
        if len(bred) == len(rows_before) == 1 and len(snapshot.cluster.types) == 1:
            evolved = best_alone(problem)
        else:
            before = _bred_before(memory, nodes, bred, rows_before[plays])
            start = self._start(problem, rows_before[plays], before, rng)
            evolved = evolve(problem, start, self.generations, rng, self.mutation_rate)

        # What the search chose may mix types: each job keeps one of them, or gets other GPUs that are idle.
        rows = np.where(stays[:, None], rows_before, 0)
        rows[plays] = evolved.population[0]
        split = np.zeros(len(rows), dtype=np.bool_)
        for row in plays.tolist():
            rows[row], split[row] = _made_real(nodes, rows[row], believed.possible[row])
        for row in np.flatnonzero(split).tolist():
            rows[row] = self._instead(nodes, rows, row, believed)
        return _shares(
            snapshot,
            nodes,
            rows,
            stays,
            _why(snapshot, rows, split, believed),
            PolluxMemory(rounds + 1, nodes.place, snapshot.jobs.ids, rows, bred, evolved.population),
        )

    def _instead(self, nodes: VirtualNodes, rows: IntArray, row: int, believed: "_Believed") -> IntArray:
        """(virtual,) a job's least GPUs of one type that are idle, where its own were of too many types."""
        free, kinds, least = nodes.gpus - rows.sum(axis=0), believed.runs[row], int(believed.least[row])
        idle = idle_of_one_type(nodes, free, kinds, least)
        if np.count_nonzero(idle) > 1 and self.avoid_interference:
            spread = rows[np.count_nonzero(rows, axis=1) > 1]
            idle = idle_of_one_type(nodes, np.where(spread.any(axis=0), 0, free), kinds, least)
        usable = believed.possible[row, int(np.count_nonzero(idle) > 1), least]
        return shrunk_to(idle, int(usable))

    def _believe(self, snapshot: Snapshot, speeds: Speeds, rows_before: IntArray) -> "_Believed":
        """Speed-ups by count, and how many GPUs each job may get."""
        jobs, cluster = snapshot.jobs, snapshot.cluster
        units, node_gpus = self._units(cluster), smallest_node_gpus(cluster)
        counts = np.arange(units + 1)
        speed, runs = type_blind(speeds, cluster, jobs.allowed_kinds, node_gpus, units)
        # Speeds outside the range of a job count as unknown.
        in_range = (counts >= jobs.min_gpus[:, None]) & (counts <= jobs.max_gpus[:, None])
        speed = np.where(in_range[:, None, :], speed, np.nan)
        # A job of which nothing is known is shown its least count at a speed of that many GPUs, so that it
        # starts.
        unknown = np.flatnonzero(
            ~speeds.modelled & ~np.isfinite(speed).any(axis=(1, 2)) & (jobs.min_gpus <= units)
        )
        speed[unknown, (jobs.min_gpus > node_gpus).astype(np.int64)[unknown], jobs.min_gpus[unknown]] = (
            jobs.min_gpus[unknown]
        )
        runs = np.where(runs.any(axis=1, keepdims=True), runs, jobs.allowed_kinds & ~speeds.modelled[:, None])

        # A count that is not possible is as good as the largest smaller one that is.
        possible = largest_possible(np.isfinite(speed))
        rows, either = np.arange(len(jobs))[:, None, None], np.arange(2)[:, None]
        reached = np.where(possible > 0, speed[rows, either, possible], np.nan)
        base = self._base(snapshot, reached, speeds.modelled, node_gpus)
        speedup = np.where(possible > 0, reached / base[:, None, None], self.waiting_speedup)
        smallest = np.where(np.isfinite(speed), counts, units + 1).min(axis=(1, 2))
        # At most `growth` times what the job has held, within reach and range; 0 where not even its least
        # fits.
        explored = self.growth * np.maximum(jobs.progress.largest_held_gpus, jobs.held_gpus)
        most = np.maximum(explored.astype(np.int64), smallest)
        most = np.minimum(np.minimum(most, speeds.reach_gpus), np.minimum(jobs.max_gpus, units))
        return _Believed(speedup, possible, runs, smallest, np.where(most >= smallest, most, 0))

    def _base(
        self, snapshot: Snapshot, reached: FloatArray, modelled: BoolArray, node_gpus: int
    ) -> FloatArray:
        """(jobs,) the speed that counts as a speed-up of 1.

        Of a job that was never seen, perfect scaling is assumed, as in section 4.1.
        """
        count = 1
        if self.normalisation is Normalisation.FAIR and len(snapshot.jobs):
            count = max(1, int(snapshot.capacity.sum()) // len(snapshot.jobs))
        jobs, _, counts = reached.shape
        at_count = reached[:, int(count > node_gpus), min(count, counts - 1)]
        flat = reached.reshape(jobs, 2 * counts)
        first = np.isfinite(flat).argmax(axis=1)
        least = flat[np.arange(jobs), first]
        linear = least / np.maximum(first % counts, 1) * min(count, counts - 1)
        base = np.where(modelled, np.where(np.isfinite(at_count), at_count, least), linear)
        return np.where(np.isfinite(base), base, 1.0)

    def _problem(
        self,
        snapshot: Snapshot,
        nodes: VirtualNodes,
        rows_before: IntArray,
        stays: BoolArray,
        believed: "_Believed",
        plays: IntArray,
    ) -> AllocationProblem:
        """What is left for the jobs that may change, in the terms of the search."""
        jobs = snapshot.jobs
        # What the jobs that stay hold is gone, also the one place of a node for a job on several nodes.
        capacity = nodes.gpus - rows_before[stays].sum(axis=0)
        spans = (rows_before > 0).sum(axis=1) > 1
        room = len(jobs) if not self.avoid_interference else 1 - (rows_before[stays & spans] > 0).any(axis=0)
        runs_here = believed.runs[plays][:, nodes.kind]

        speedup, now = believed.speedup[plays], rows_before[plays]
        total = np.minimum(now.sum(axis=1), speedup.shape[2] - 1)
        kept_speedup = speedup[np.arange(len(plays)), spans[plays].astype(np.int64), total]
        # A change costs a restart, so the worth of any other allocation is lowered by the age of the job.
        factor = realloc_factor(
            snapshot.now_s - jobs.submitted_s[plays], jobs.progress.restarts[plays], self.restart_s
        )
        factor = np.where(jobs.held_gpus[plays] > 0, factor, 1.0)[:, None, None]
        return AllocationProblem(
            worth=_power(np.maximum(speedup * factor, self.waiting_speedup), self.fairness_power),
            kept_worth=_power(kept_speedup, self.fairness_power),
            current=now,
            limit=np.where(runs_here, capacity, 0),
            capacity=capacity,
            least=believed.least[plays],
            most=believed.most[plays],
            spread_room=np.broadcast_to(room, capacity.shape).astype(np.int64),
        )

    def _start(
        self, problem: AllocationProblem, held: IntArray, before: Population, rng: np.random.Generator
    ) -> Population:
        """What is held now, then the last population; at first, variations of what is held now."""
        now = held.astype(np.int8)[None]
        before = before[: self.population - 1]
        others = np.concatenate([before, np.repeat(now, self.population - 1 - len(before), axis=0)])
        return np.concatenate([now, filled(problem, others, rng)])


@dataclass(frozen=True, eq=False)
class _Believed:
    """What is believed of each job."""

    speedup: FloatArray  # (jobs, on several nodes, gpus), that of waiting where it cannot run
    possible: IntArray  # the same shape: the GPUs, of so many, that it can use; 0: none
    runs: BoolArray  # (jobs, types) where it can run
    least: IntArray  # (jobs,) fewest GPUs on which it can run
    most: IntArray  # (jobs,) GPUs that it may get now; 0: it cannot run


def fitness(speedup: FloatArray, fairness_power: float) -> float:
    """FITNESS_p: the power mean of the jobs' speed-ups; section 4.2."""
    if fairness_power == 0:
        return float(np.exp(np.log(speedup).mean()))
    return float((speedup**fairness_power).mean() ** (1 / fairness_power))


def realloc_factor(age_s: FloatArray, restarts: IntArray, restart_s: float) -> FloatArray:
    """REALLOC_j(δ): the share of its life that a job will have spent running if it is moved once more."""
    return np.maximum(age_s - restarts * restart_s, 0.0) / (age_s + restart_s)


def _power(speedup: FloatArray, fairness_power: float) -> FloatArray:
    """Terms whose sum grows with the power mean."""
    if fairness_power == 0:
        return np.log(speedup)
    return np.asarray(np.sign(fairness_power) * speedup**fairness_power)


def _rows_given(memory: PolluxMemory | None, shown: VirtualNodes) -> dict[JobId, IntArray]:
    if memory is None:
        return {}
    _, now, then = np.intersect1d(shown.place, memory.places, return_indices=True)
    rows = np.zeros((len(memory.jobs), len(shown.place)), dtype=np.int64)
    rows[:, now] = memory.given[:, then]
    return dict(zip(memory.jobs, rows, strict=True))


def _bred_before(
    memory: PolluxMemory | None, nodes: VirtualNodes, jobs: tuple[JobId, ...], rows_now: IntArray
) -> Population:
    """The last population for these jobs and nodes; a job that did not take part has what it holds now."""
    if memory is None:
        return np.zeros((0, *rows_now.shape), dtype=np.int8)
    _, now, then = np.intersect1d(nodes.place, memory.places, return_indices=True)
    row_then = {job: row for row, job in enumerate(memory.bred)}
    rows_known = [row for row, job in enumerate(jobs) if job in row_then]
    bred = np.repeat(rows_now.astype(np.int8)[None], len(memory.population), axis=0)
    bred[:, rows_known] = 0
    remembered = memory.population[:, [row_then[jobs[row]] for row in rows_known]]
    bred[:, np.array(rows_known, dtype=np.int64)[:, None], now] = remembered[:, :, then]
    return bred


def _made_real(shown: VirtualNodes, row: IntArray, possible: IntArray) -> tuple[IntArray, bool]:
    """What a job can use of its row, of one type; and whether it had GPUs but of too many types.

    possible: (on several nodes, gpus) as in `_Believed`.
    """
    kept = of_one_type(shown, row)
    usable = int(possible[int(np.count_nonzero(kept) > 1), kept.sum()])
    return shrunk_to(kept, usable), usable == 0 and bool(row.any())


def _why(snapshot: Snapshot, rows: IntArray, split: BoolArray, believed: _Believed) -> Reasons:
    """Why each job waits."""
    jobs, for_one_job = snapshot.jobs, most_gpus_of_one_job(snapshot.cluster)
    free = int(snapshot.capacity.sum() - rows.sum())
    code = np.full(len(jobs), int(Why.RUNS), dtype=np.int64)
    evidence: dict[int, str] = {}
    # The first cause that applies, from what can never be to what may be soon.
    more_than_least = bool((rows.sum(axis=1) > jobs.min_gpus).any())
    for row in np.flatnonzero(rows.sum(axis=1) == 0).tolist():
        least = int(jobs.min_gpus[row])
        there_are = int(np.where(jobs.allowed_kinds[row], for_one_job, 0).max())
        if least > there_are:
            code[row], evidence[row] = Why.TOO_LARGE, f"needs {least} GPUs of one type, there are {there_are}"
        elif believed.speedup.shape[2] <= least:
            most = believed.speedup.shape[2] - 1
            code[row], evidence[row] = Why.DECLINED, f"needs {least} GPUs, a job gets at most {most}"
        elif not believed.possible[row].any():
            code[row], evidence[row] = Why.NOT_PROFILED, f"no speed is known on {least} GPUs or more"
        elif split[row]:
            code[row], evidence[row] = Why.FRAGMENTED, "its GPUs were of several types"
        elif free >= least:
            code[row], evidence[row] = Why.FRAGMENTED, f"needs {least} GPUs, {free} free"
        elif more_than_least:
            code[row], evidence[row] = Why.WORTH_LESS, f"needs {least} GPUs, {free} free"
        else:
            code[row], evidence[row] = Why.NO_FREE_GPUS, f"needs {least} GPUs, {free} free"
    return Reasons(code, evidence)


def _shares(
    snapshot: Snapshot,
    virtual: VirtualNodes,
    rows: IntArray,
    stays: BoolArray,
    why: Reasons,
    memory: PolluxMemory,
) -> Shares:
    gpus = rows.sum(axis=1)
    served = gpus > 0
    pinned: dict[int, Pinned] = {}
    for row in np.flatnonzero(served).tolist():
        allocation = snapshot.placement.get(snapshot.jobs[row].id)
        pinned[row] = pin_as_held(allocation) if stays[row] and allocation else pin_of(virtual, rows[row])
    nodes = np.array(
        [len(pinned[row].nodes) if row in pinned else 0 for row in range(len(gpus))], dtype=np.int64
    )
    kind = np.where(served, virtual.kind[(rows > 0).argmax(axis=1)] if virtual.kind.size else -1, -1)
    return Shares(gpus=gpus, kind=kind, nodes=nodes, why=why, memory=memory, pinned=pinned)
