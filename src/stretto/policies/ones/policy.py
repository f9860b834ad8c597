"""ONES: batch sizes and GPUs of all jobs at once, by evolving whole schedules."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

import numpy as np

from stretto.model import (
    Allocation,
    Cluster,
    Configurations,
    IntArray,
    Pinned,
    PolicyTraits,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Trigger,
    Triggers,
    View,
    Why,
)
from stretto.policies.common.pins import pin_as_held
from stretto.policies.common.speed_curves import one_gpu_of_each_type, reasons_by_range
from stretto.policies.ones.batch_limits import (
    BatchLimits,
    Trained,
    after_epochs,
    after_rejection,
    arrival_rate_per_s,
)
from stretto.policies.ones.evolution import (
    IDLE,
    ProblemInstance,
    ProgressPosterior,
    next_generation,
    on_own_type,
    random_schedules,
    refresh,
    reorder,
    select,
)
from stretto.policies.ones.memory import (
    NO_MEMORY,
    Remembered,
    Reports,
    carry_forward,
    population_on,
    reports_of,
    update_training_set,
)
from stretto.policies.ones.problem import (
    Participants,
    genome_of,
    participants_of,
    pin_of,
    problem_of,
    settle_on_nodes,
    within_nodes,
)
from stretto.policies.ones.progress import alpha_of
from stretto.settings import CheckedSettings, setting


class StartsFrom(StrEnum):
    """Of which batch does a job start with as much as fits on one GPU?"""

    SUBMITTED = "submitted"  # the one that it was submitted with
    MODEL = "model"  # the smallest that its model may have, which a submitted one may exceed


@dataclass(frozen=True)
class Ones(CheckedSettings, space="policy"):
    """Evolve schedules that say which job runs on which GPU, with batches within limits that grow slowly.

    ONES (Bian et al., SC 2021), section 3.2. The schedule with the smallest Σ_j Y_j c_j / X_j (equation 8)
    wins. Y is the samples left, believed from jobs that have ended (`progress`). c is GPUs, and X samples per
    second at the batch that goes with c. A schedule is put in place once every running job has finished an
    epoch since the last time. Until then, and whenever a job arrives, only arrivals and idle GPUs are served,
    by the refresh step on what is held now. Limits of batches: `batch_limits`. Placement: packed in the order
    of the genome, on those nodes where most of it is already.

    Deviations, with their reasons in docs/decisions/0005-ones.md. The smallest score is the best, and only
    filled schedules are compared. At least one epoch counts as processed. The schedule in place takes part in
    the evolution. What a job runs slower on several nodes counts. Long jobs are scaled down only while a job
    waits.

    A job keeps to one GPU type. That is the one that it holds, else the one with fewest jobs for its GPUs on
    which it can run. On one type, as in the paper, all of this is void. Unstoppable jobs keep their GPUs,
    which take no part.

    Cost: a generation grows with K G and K² J. For a population of K = G, as in the paper, that is the square
    of the cluster. In a second one processor makes 330 to 480 at 64 GPUs and 30 jobs, about 20 at 256 GPUs,
    fewer than 2 at 1,024. See benchmarks/ones.py.
    Starvation: a preempted job waits until its score, or a halved limit, brings it back; nothing bounds that.
    """

    population: int = setting(0, at_least=0)  # schedules; 0: as many as GPUs, as in the paper
    generations: int = setting(10, at_least=0)  # at each decision; chosen, the paper evolves all the time
    mutation_rate: float = setting(0.1, at_least=0, at_most=1)  # θ; chosen, the paper does not print it
    penalty: float = setting(1.0, at_least=0)  # σ as a multiple of the arrival rate; the paper suggests 1
    # of the submitted batch in samples, before a limit may grow: more where less fits; chosen ("a few")
    warmup_steps: int = setting(5, at_least=0)
    compounding: bool = False  # scale-down applies to its own result
    always_scale_down: bool = False  # also while no job waits
    starts_from: StartsFrom = StartsFrom.SUBMITTED
    counts_while_starting: bool = False  # epochs that end while new workers start move limits, too
    sums_batches: bool = False  # only the sum of local batches counts, and never less than was submitted

    name: ClassVar[str] = "ones"
    placer: ClassVar[str] = "pinned"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="ONES (SC 2021)",
        order="its search over all jobs; fair share where it finds no difference",
        starvation="unbounded: a preempted job waits until its score, or a halved limit, brings it back",
        former={"starts_from": "model", "sums_batches": "true", "counts_while_starting": "true"},
    )
    views: ClassVar[frozenset[View]] = frozenset({View.PROGRESS, View.LEARNING, View.GOODPUT_MODEL})
    triggers: ClassVar[Triggers] = Triggers(
        frozenset({Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.EPOCH_END, Trigger.CAPACITY})
    )

    def configurations(self, cluster: Cluster) -> Configurations:
        """One GPU of each type: speeds are predicted for every batch, in `problem`."""
        return one_gpu_of_each_type(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """A new schedule where it is time for one, else what is held with arrivals and idle GPUs served."""
        # The problem instance: participants, batch limits R (section 3.3.2), and what each count is worth.
        before = snapshot.memory if isinstance(snapshot.memory, Remembered) else NO_MEMORY
        rng = np.random.default_rng([snapshot.seed, before.decisions])
        participants = participants_of(snapshot, self.starts_from is StartsFrom.SUBMITTED)
        reports = reports_of(snapshot.jobs)
        memory = carry_forward(before, snapshot.jobs, participants.least_limit, reports)
        memory = update_training_set(before, memory, rng)
        limits = self._limits(snapshot, participants, memory, reports)
        problem = problem_of(snapshot, participants, memory.limits.limit, limits.limit)
        memory = replace(memory, limits=limits)

        # Progress: the posterior of equations 6 and 7.
        posterior = _posterior(memory, reports)
        was_there = np.isin(np.array(snapshot.jobs.ids), np.array(before.jobs, dtype=str))
        new = np.flatnonzero((participants.home >= 0) & ~participants.runs & ~was_there)
        current = on_own_type(problem, genome_of(participants.gpus, _held_by(snapshot, participants)))
        # Evolution (section 3.2.2), then either its best schedule or a refresh of the one in place.
        genome, population, whole = current[0], population_on(memory, participants.gpus.place), False
        if (participants.home >= 0).any():
            population = self._evolved(problem, population, current, new, posterior, rng)
            whole = not new.size and _everybody_had_an_epoch(snapshot, participants, memory)
            if whole:
                genome = settle_on_nodes(participants.gpus, population[0], current[0], len(snapshot.jobs))
            else:
                genome = refresh(problem, current, new, posterior, rng)[0]
        return self._shares(
            snapshot, participants, replace(memory, population=population), problem, genome, whole
        )

    def _limits(
        self, snapshot: Snapshot, participants: Participants, memory: Remembered, reports: Reports
    ) -> BatchLimits:
        jobs, batches = snapshot.jobs, participants.batches
        rate = arrival_rate_per_s(memory.arrivals, memory.first_s, snapshot.now_s)
        waits = (participants.home >= 0) & ~participants.runs & (jobs.submitted_s < snapshot.now_s)
        warm = participants.runs & ~batches.fixed & (reports.samples >= self.warmup_steps * batches.init)
        # An epoch that ends while other workers are still starting was trained at the limit before.
        known = memory.limits.epochs
        if not self.counts_while_starting:
            known = np.where(jobs.progress.recovering & (known > 0), jobs.progress.epochs, known)
        return after_epochs(
            replace(memory.limits, epochs=known),
            Trained(jobs.progress.epochs, jobs.progress.executed_s, may_change=warm),
            self.penalty * rate,
            (participants.least_limit, participants.most_limit),
            self.always_scale_down or bool(waits.any()),
            self.compounding,
        )

    def _evolved(
        self,
        problem: ProblemInstance,
        population: IntArray,
        current: IntArray,
        new: IntArray,
        posterior: ProgressPosterior,
        rng: np.random.Generator,
    ) -> IntArray:
        """The loop of figure 5; what is held now takes part, brought up to date like all others."""
        most = self.population or current.shape[1]
        if not len(population):  # initialization: G_0 is a random job on each GPU
            population = random_schedules(problem, most, rng)
        population = reorder(problem, on_own_type(problem, np.concatenate([current, population])))
        population = reorder(problem, refresh(problem, population, new, posterior, rng))
        population = select(problem, population, most, posterior, rng)
        for _ in range(self.generations):
            population = next_generation(problem, population, most, posterior, self.mutation_rate, rng)
        return population

    def _shares(
        self,
        snapshot: Snapshot,
        participants: Participants,
        memory: Remembered,
        problem: ProblemInstance,
        genome: IntArray,
        whole: bool,
    ) -> Shares:
        jobs, limits = snapshot.jobs, memory.limits
        genome = genome.copy()
        # Types that limit the nodes of a job: its workers beyond these go, down to a size that it may have.
        for index, gpu_type in enumerate(snapshot.cluster.types):
            for row in (
                np.flatnonzero(participants.home == index).tolist() if gpu_type.max_nodes_per_job else ()
            ):
                within_nodes(participants.gpus, genome, row, gpu_type.max_nodes_per_job)
                gpus_of_row = int((genome == row).sum())
                genome[np.flatnonzero(genome == row)[int(problem.fit[row, gpus_of_row]) :]] = IDLE
        pinned = _pins(snapshot, participants, limits, genome, whole)
        gpus = np.zeros(len(jobs), dtype=np.int64)
        nodes, kind = np.zeros_like(gpus), np.full(len(jobs), -1)
        for row, pin in pinned.items():
            gpus[row], nodes[row] = sum(pin.gpus), len(pin.nodes)
            kind[row] = snapshot.cluster.kind[pin.nodes[0]]
        if whole:
            # A schedule in place that leaves a job out counts as a rejection of it (section 3.3.2).
            waits = (gpus == 0) & (participants.home >= 0)
            limits = after_rejection(limits, waits & ~participants.batches.fixed, participants.least_limit)
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=nodes,
            why=_why(snapshot, participants, gpus, kind),
            pinned=pinned,
            memory=replace(
                memory,
                decisions=memory.decisions + 1,
                limits=limits,
                deployed_epochs=jobs.progress.epochs if whole else memory.deployed_epochs,
                places=participants.gpus.place,
            ),
        )


def _posterior(memory: Remembered, reports: Reports) -> ProgressPosterior:
    """Equations 6 and 7; at least one epoch counts as processed, as it does in α."""
    return ProgressPosterior(
        processed=np.maximum(reports.samples, reports.dataset_samples),
        alpha=alpha_of(reports.samples, reports.dataset_samples),
        beta=memory.regression.beta(reports.features),
    )


def _everybody_had_an_epoch(snapshot: Snapshot, participants: Participants, memory: Remembered) -> bool:
    """Whether every running job that reports epochs has ended one since the last whole schedule."""
    reports = np.array([one is not None for one in snapshot.jobs.evidence])
    ended = snapshot.jobs.progress.epochs > memory.deployed_epochs
    return bool((ended | ~reports)[participants.runs].all())


def _held_by(snapshot: Snapshot, participants: Participants) -> dict[int, Allocation]:
    """The allocations of those that take part, by row."""
    return {
        row: snapshot.placement[snapshot.jobs.ids[row]] for row in np.flatnonzero(participants.runs).tolist()
    }


def _pins(
    snapshot: Snapshot, participants: Participants, limits: BatchLimits, genome: IntArray, whole: bool
) -> dict[int, Pinned]:
    """Where every job runs, with its batch; one on the same GPUs keeps its batch until a whole schedule."""
    counts = np.arange(len(genome) + 1)
    total = np.where(participants.batches.fixed[:, None], 0, participants.batches.total(limits.limit, counts))
    pinned: dict[int, Pinned] = {}
    for row in np.flatnonzero(participants.stays).tolist():
        pinned[row] = pin_as_held(snapshot.placement[snapshot.jobs.ids[row]])
    for row in np.unique(genome[genome != IDLE]).tolist():
        columns = np.flatnonzero(genome == row)
        pin = pin_of(participants.gpus, columns, int(total[row, len(columns)]))
        allocation = snapshot.placement.get(snapshot.jobs.ids[row])
        same = allocation is not None and (allocation.nodes, allocation.masks) == (pin.nodes, pin.masks)
        pinned[row] = pin_as_held(allocation) if allocation is not None and same and not whole else pin
    return pinned


def _why(snapshot: Snapshot, participants: Participants, gpus: IntArray, kind: IntArray) -> Reasons:
    """Why each job waits: of those that could take part, others promise to be done with less."""
    jobs = snapshot.jobs
    served = gpus > 0
    used = np.bincount(kind[served], gpus[served], len(snapshot.capacity)).astype(np.int64)
    left = np.maximum(snapshot.capacity - used, 0).tolist()
    unknown = np.flatnonzero(jobs.allowed_kinds.any(axis=1) & ~participants.possible.any(axis=1))
    code = reasons_by_range(snapshot, gpus, left, unknown).code.copy()
    code[~served & (participants.home >= 0)] = int(Why.WORTH_LESS)
    return Reasons(code)
