"""How ONES breeds schedules: genomes that name the job on every GPU, a whole population at once.

ONES (Bian et al., SC 2021), section 3.2.2. A genome is a row over the GPUs; an entry is the row of a job, or
IDLE. Batch sizes are no genes: they follow from a job's limit and its count, as do the costs of counts.

A generation costs O(K G log G) to pack, O(K (J + G)) for every step of filling and O(K² J) to score, for K
members, G GPUs and J jobs. With K = G, as the paper suggests, it grows with the square of the cluster.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray

IDLE = -1


@dataclass(frozen=True, eq=False)
class ProblemInstance:
    """What schedules are made of: GPUs by type and node, and jobs that each keep to one type."""

    segment: IntArray  # (gpus,) the GPU type, not falling: the GPUs of a type stand together
    node: IntArray  # (gpus,) those of a node stand together
    per_node: IntArray  # (types,) GPUs of the largest node
    home: IntArray  # (jobs,) the type to which a job keeps; -1: it may hold nothing
    cost: FloatArray  # (jobs, 2, gpus + 1) φ = c/X: GPU-seconds a sample on one node and on several; 0 at 0
    fit: IntArray  # (jobs, gpus + 1) the most GPUs, of so many, that a job may hold
    kept: IntArray  # (jobs, gpus + 1) what its limit leaves of so many
    grown: IntArray  # (jobs, gpus + 1) on how many it would use up its limit; of 0: as it would start
    least: IntArray  # (jobs,) fewest GPUs that it may hold
    executed_s: FloatArray  # (jobs,)

    @cached_property
    def ends(self) -> IntArray:
        """(types,) the first GPU behind those of each type."""
        return np.searchsorted(self.segment, np.arange(len(self.per_node)), side="right")

    @cached_property
    def packed_cost(self) -> FloatArray:
        """(jobs, gpus + 1) of a count on as few nodes as can be."""
        fits = np.arange(self.cost.shape[2]) <= self.per_node[self.home][:, None]
        return np.where(fits, self.cost[:, 0], self.cost[:, 1])

    @property
    def jobs(self) -> int:
        """How many take part."""
        return len(self.home)


@dataclass(frozen=True, eq=False)
class ProgressPosterior:
    """The posterior ρ ~ Be(α, β) of each job's progress: what is left is drawn, or its expectation taken."""

    processed: FloatArray  # (jobs,) samples, at least one epoch
    alpha: FloatArray  # (jobs,) of the progress ρ ~ Be(α, β)
    beta: FloatArray  # (jobs,)

    def drawn(self, times: int, rng: np.random.Generator) -> FloatArray:
        """(times, jobs) samples left, Y = Y_processed (1/ρ - 1), equation 7."""
        progress = rng.beta(self.alpha, self.beta, (times, len(self.alpha)))
        return self.processed * (1.0 / np.maximum(progress, 1e-9) - 1.0)

    @property
    def expected(self) -> FloatArray:
        """(jobs,) samples left at the mean of ρ, α / (α + β)."""
        return self.processed * self.beta / self.alpha


def counts_of(genomes: IntArray, jobs: int) -> IntArray:
    """(members, jobs) GPUs of every job."""
    members = len(genomes)
    flat = genomes + 1 + np.arange(members)[:, None] * (jobs + 1)
    return np.bincount(flat.ravel(), minlength=members * (jobs + 1)).reshape(members, jobs + 1)[:, 1:]


def reorder(problem: ProblemInstance, genomes: IntArray) -> IntArray:
    """Every type packed: the workers of a job side by side, jobs in the order in which they first occur.

    Idle GPUs come last. Figure 10.
    """
    first = _first_places(genomes, problem.jobs)
    rows = np.arange(len(genomes))[:, None]
    key = np.where(genomes == IDLE, 2 * problem.ends[problem.segment] - 1, 2 * first[rows, genomes])
    order = np.argsort(key.astype(np.int32), axis=1, kind="stable")
    return np.take_along_axis(genomes, order, axis=1)


def trim(problem: ProblemInstance, genomes: IntArray, allowed: IntArray) -> IntArray:
    """Without the last occurrences of jobs that have more than `allowed` (jobs, gpus + 1) of their count."""
    counts = counts_of(genomes, problem.jobs)
    allowance = allowed[np.arange(problem.jobs), counts]
    over = (allowance < counts).any(axis=1)
    if not over.any():
        return genomes
    trimmed = genomes.copy()
    rows = genomes[over]
    # Number the workers of each job by sorting the GPUs by job: within a job the sort keeps their order, so
    # the number is the distance from the first GPU of its run. Workers beyond the allowance are taken out.
    by_job = np.argsort(rows, axis=1, kind="stable")
    inside = np.take_along_axis(rows, by_job, axis=1)
    place = np.arange(rows.shape[1])
    starts = np.where(np.diff(inside, axis=1, prepend=-2) != 0, place, 0)
    number = place - np.maximum.accumulate(starts, axis=1)  # among the workers of its job
    # Column 0 stands for IDLE, which is -1 and is never allowed anything.
    most = np.concatenate([np.zeros((len(rows), 1), dtype=np.int64), allowance[over]], axis=1)
    fine = number < np.take_along_axis(most, inside + 1, axis=1)
    np.put_along_axis(rows, by_job, np.where(fine, inside, IDLE), axis=1)
    trimmed[over] = rows
    return trimmed


def fill_idle(
    problem: ProblemInstance, genomes: IntArray, left: FloatArray, shunned: BoolArray | None = None
) -> IntArray:
    """Idle GPUs to waiting jobs and to jobs below their limit, until none can use any.

    left: (members, jobs) samples left, as drawn. One job after the other: the one whose Δφ_j Y_j is smallest,
    where φ = c/X is 0 for a waiting job. Figure 7. shunned: (members, jobs) taken only where no other can.
    """
    genomes = genomes.copy()
    jobs = np.arange(problem.jobs)
    # Each pass gives one job of every member that still has idle GPUs its next size.
    active = np.flatnonzero((genomes == IDLE).any(axis=1)) if problem.jobs else np.zeros(0, dtype=np.int64)
    while active.size:
        rows = genomes[active]
        idle = rows == IDLE
        counts = counts_of(rows, problem.jobs)
        room = _idle_by_type(problem, idle)[:, problem.home]
        wanted = np.minimum(problem.grown[jobs, counts], counts + room)
        filled = problem.fit[jobs, wanted]
        # Δφ_j: what the job's cost of a sample rises by from B_j to R_j.
        more = problem.packed_cost[jobs, filled] - problem.packed_cost[jobs, counts]
        value = np.where(filled > counts, more * left[active], np.inf)
        if shunned is not None:
            others = np.where(shunned[active], np.inf, value)
            value = np.where(np.isfinite(others).any(axis=1, keepdims=True), others, value)
        chosen = value.argmin(axis=1)
        members = np.arange(len(active))
        possible = np.isfinite(value[members, chosen])
        need = np.where(possible, filled[members, chosen] - counts[members, chosen], 0)
        # The first `need` idle GPUs of the job's type.
        there: BoolArray = idle & (problem.segment == problem.home[chosen][:, None])
        here = there & (np.cumsum(there, axis=1) <= need.reshape(-1, 1))
        genomes[active] = np.where(here, chosen[:, None], rows)
        active = active[possible]
        active = active[(genomes[active] == IDLE).any(axis=1)]
    return genomes


def refresh(
    problem: ProblemInstance,
    genomes: IntArray,
    new: IntArray,
    posterior: ProgressPosterior,
    rng: np.random.Generator,
) -> IntArray:
    """Schedules brought up to date, no job moved: limits kept, `new` jobs placed, idle GPUs filled.

    Where too few are idle, new jobs take GPUs one by one from the job that has run longest (ties: that with
    most GPUs). Entries of completed jobs must be IDLE already.
    """
    # (1) Completed jobs are gone already. (2) Jobs beyond their limits R scale down.
    genomes = trim(problem, trim(problem, genomes, problem.kept), problem.fit)
    # (3) New jobs get GPUs.
    for job in new.tolist():
        genomes = _with_a_place_for(problem, genomes, job, new)
    # Idle GPUs resume waiting jobs or scale running ones up.
    return fill_idle(problem, genomes, posterior.drawn(len(genomes), rng))


def crossover(first: IntArray, second: IntArray, swapped: BoolArray) -> tuple[IntArray, IntArray]:
    """Two children of each pair: on every GPU one inherits from the first parent, the other from the second.

    Figure 8. swapped: (pairs, gpus) where the first child inherits from the second parent.
    """
    return np.where(swapped, second, first), np.where(swapped, first, second)


def mutate(
    problem: ProblemInstance, genomes: IntArray, mutation_mask: BoolArray, left: FloatArray
) -> IntArray:
    """The GPUs of the jobs in the mask (members, jobs) go to others. Uniform mutation, figure 9."""
    padded = np.concatenate([np.zeros((len(mutation_mask), 1), dtype=np.bool_), mutation_mask], axis=1)
    gone = np.take_along_axis(padded, genomes + 1, axis=1)
    return fill_idle(problem, np.where(gone, IDLE, genomes), left, shunned=mutation_mask)


def costs_of(problem: ProblemInstance, genomes: IntArray) -> FloatArray:
    """(members, jobs) φ of every job in packed schedules: GPU-seconds a sample; 0 where it waits."""
    jobs = np.arange(problem.jobs)
    counts = counts_of(genomes, problem.jobs)
    first = np.where(counts > 0, _first_places(genomes, problem.jobs)[:, : problem.jobs], 0)
    last = np.maximum(first + counts - 1, 0)
    spans = (problem.node[first] != problem.node[last]).astype(np.int64)
    return np.asarray(problem.cost[jobs, spans, counts])


def scores(costs: FloatArray, left: FloatArray) -> FloatArray:
    """(draws, members) Σ_j Y_j c_j / X_j over the running jobs, equation 8; the smallest is the best.

    costs: (members, jobs), left: (draws, jobs).
    """
    return np.asarray(left @ costs.T)


def select(
    problem: ProblemInstance,
    pool: IntArray,
    most: int,
    posterior: ProgressPosterior,
    rng: np.random.Generator,
) -> IntArray:
    """The next population: algorithm 1, probability sampling, `most` times without replacement.

    Equal schedules count once. Best under the expected progress first.
    """
    pool = _distinct(pool)
    costs = costs_of(problem, pool)
    # Each sampling draws what is left of every job, and takes the schedule that is best under that draw.
    if len(pool) > most:
        samples_left = posterior.drawn(most, rng)  # lines 1 to 3, for all samplings at once
        value = scores(costs, samples_left)  # lines 4 to 6
        selected = np.zeros(most, dtype=np.int64)
        for sampling in range(most):
            selected[sampling] = value[sampling].argmin()  # line 7
            value[:, selected[sampling]] = np.inf  # each schedule is selected once
        pool, costs = pool[selected], costs[selected]
    best_first = np.argsort(scores(costs, posterior.expected[None])[0], kind="stable")
    return pool[best_first]


def random_schedules(problem: ProblemInstance, members: int, rng: np.random.Generator) -> IntArray:
    """A random job of its type on each GPU."""
    genomes = np.full((members, len(problem.segment)), IDLE, dtype=np.int64)
    for kind in np.unique(problem.home).tolist():
        there = np.flatnonzero(problem.segment == kind)
        those = np.flatnonzero(problem.home == kind)
        genomes[:, there] = rng.choice(those, (members, len(there)))
    return genomes


def on_own_type(problem: ProblemInstance, genomes: IntArray) -> IntArray:
    """Without the GPUs of types to which their jobs do not keep."""
    own = np.append(problem.home, IDLE)  # the last one is looked up for IDLE
    return np.where(own[genomes] == problem.segment, genomes, IDLE)


def repair(problem: ProblemInstance, genomes: IntArray, left: FloatArray) -> IntArray:
    """Possible and packed: no job beyond what it may hold, idle GPUs filled."""
    return reorder(problem, fill_idle(problem, trim(problem, genomes, problem.fit), left))


def next_generation(
    problem: ProblemInstance,
    population: IntArray,
    most: int,
    posterior: ProgressPosterior,
    mutation_rate: float,
    rng: np.random.Generator,
) -> IntArray:
    """One turn of the loop of figure 5: `most` schedules, best first.

    They are selected from the population G_i, two children of `most` pairs, and `most` mutants.
    """
    # Uniform crossover: every GPU of a child comes from either parent with the same chance.
    first, second, third = rng.integers(len(population), size=(3, most))
    swapped = rng.random((most, population.shape[1])) < 0.5
    children = np.concatenate(crossover(population[first], population[second], swapped))
    # Uniform mutation: each job loses its GPUs with the chance θ.
    mutation_mask = rng.random((most, problem.jobs)) < mutation_rate
    mutants = mutate(problem, population[third], mutation_mask, posterior.drawn(most, rng))
    # Reorder, and what makes any offspring possible: no job beyond its range, idle GPUs filled.
    offspring = repair(problem, np.concatenate([children, mutants]), posterior.drawn(3 * most, rng))
    return select(problem, np.concatenate([population, offspring]), most, posterior, rng)


def _first_places(genomes: IntArray, jobs: int) -> IntArray:
    """(members, jobs + 1) where each job first occurs, 0 where it does not; the last column is of IDLE."""
    first = np.zeros((len(genomes), jobs + 1), dtype=np.int64)
    starts = np.diff(genomes, axis=1, prepend=IDLE - 1) != 0
    member, place = np.nonzero(starts)
    member, place = member[::-1], place[::-1]  # of several assignments the last one stands: the first place
    first[member, genomes[member, place]] = place
    return first


def _idle_by_type(problem: ProblemInstance, idle: BoolArray) -> IntArray:
    """(members, types) idle GPUs."""
    so_far = np.concatenate([np.zeros((len(idle), 1), dtype=np.int64), np.cumsum(idle, axis=1)], axis=1)
    return np.diff(so_far[:, problem.ends], axis=1, prepend=0)


def _with_a_place_for(problem: ProblemInstance, genomes: IntArray, job: int, new: IntArray) -> IntArray:
    """The least GPUs for one job, idle ones first, else those of the job that has run longest."""
    need, home = int(problem.least[job]), int(problem.home[job])
    there = problem.segment == home
    may_lose = problem.home == home
    may_lose[new] = False
    genomes = genomes.copy()
    # Take from one victim of each member at a time, until its idle GPUs are enough for the new job.
    while True:
        counts = counts_of(genomes, problem.jobs)
        idle = ((genomes == IDLE) & there).sum(axis=1)
        short = (counts[:, job] == 0) & (idle < need)
        victims = np.where(may_lose & (counts > 0), problem.executed_s, -1.0)
        ties = np.where(victims == victims.max(axis=1, keepdims=True), counts, -1)
        victim = ties.argmax(axis=1)
        short &= victims.max(axis=1) >= 0
        if not short.any():
            break
        victim_gpus = counts[np.arange(len(genomes)), victim]
        # The victim falls to the next size that it may have, by its last workers.
        left = problem.fit[victim, np.maximum(victim_gpus - 1, 0)]
        number = np.cumsum(genomes == victim[:, None], axis=1)
        lost = short[:, None] & (genomes == victim[:, None]) & (number > left[:, None])
        genomes[lost] = IDLE
    gives = (counts[:, job] == 0) & (idle >= need)
    here = (genomes == IDLE) & there & gives[:, None]
    genomes[here & (np.cumsum(here, axis=1) <= need)] = job
    return genomes


def _distinct(pool: IntArray) -> IntArray:
    """Without repetitions, in the order of first occurrence."""
    rows = np.ascontiguousarray(pool.astype(np.int16))
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first = np.unique(whole, return_index=True)
    return pool[np.sort(first)]
