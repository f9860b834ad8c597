"""Which servers on loan go back, when some must? Lyra's heuristic, and the rules it is compared with.

A rule takes which jobs are where and how many servers must go, and names the servers in the order of its
choice. All of them are in `RULES`, by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.lend.hosting import Hosting
from stretto.model import FloatArray, IntArray, ints
from stretto.solve.linear import NoSolution

EQUAL = 1e-9  # costs that differ by less are ties: they are sums of the same fractions in another order


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to choose servers."""

    choose: Callable[[Hosting, int, np.random.Generator], IntArray]
    spares_flexible: bool  # flexible workers on a server that goes are taken from their job, which goes on
    about: str  # one line for people


def least_preemption_cost(hosting: Hosting, count: int, rng: np.random.Generator) -> IntArray:
    """Lyra's heuristic (EuroSys 2023, section 4, and section 5.3 for flexible workers).

    Servers without base workers go first, those with fewest flexible GPUs before others: idle ones, then the
    flexible group. Then, again and again, the server of least preemption cost is vacated: its jobs are
    stopped on all their servers. Costs are brought up to date. What has been emptied by the way goes before
    anything else. Where a single server is asked for, the cost is the number of jobs. Ties: least collateral
    damage, then the lower number.
    """
    state = _Reclaiming(hosting)
    chosen: list[int] = []
    while len(chosen) < count:
        left = count - len(chosen)
        empty = np.flatnonzero(state.open & (state.base_jobs == 0))
        if empty.size:
            cheapest = empty[np.argsort(state.flexible_gpus[empty], kind="stable")][:left]
            state.open[cheapest] = False
            chosen += cheapest.tolist()
            continue
        cost = state.base_jobs if count == 1 else state.cost
        among = np.flatnonzero(state.open)
        costs = cost[among]
        tied = among[costs <= costs.min() + EQUAL].tolist()
        server = tied[0] if len(tied) == 1 else _least_damage(state, tied, left)
        state.vacate(server)
        chosen.append(server)
    return ints(chosen)


def preemption_cost(hosting: Hosting) -> FloatArray:
    """(servers,) what vacating each costs (Lyra, section 4, table 1).

    cost(s) = Σ over jobs j with base workers on s of 1 / (servers with base workers of j)

    A job on many servers counts little on each: once it is stopped, the others get empty for nothing.
    """
    base = hosting.base_gpus > 0
    share = 1.0 / np.maximum(hosting.base_servers, 1)
    cost = np.bincount(hosting.server[base], share[hosting.job[base]], hosting.servers)
    return cost.astype(np.float64)  # of nothing, bincount makes integers


def at_random(hosting: Hosting, count: int, rng: np.random.Generator) -> IntArray:
    """Any servers, all equally likely (Lyra, section 7.1)."""
    return rng.choice(hosting.servers, size=count, replace=False).astype(np.int64)


def smallest_job_count(hosting: Hosting, count: int, rng: np.random.Generator) -> IntArray:
    """Servers with the fewest jobs, counted once (Lyra, section 7.1: SCF); ties: the lower number."""
    return np.argsort(hosting.server_jobs, kind="stable")[:count]


def least_busy(hosting: Hosting, count: int, rng: np.random.Generator) -> IntArray:
    """Servers with the fewest GPUs in use for training; ties: the lower number.

    How inference grows where training is only tolerated (opportunistic scheduling). Chosen: the paper does
    not say which servers inference takes.
    """
    return np.argsort(hosting.server_gpus, kind="stable")[:count]


class _Reclaiming:
    """How things stand while servers are chosen one after the other; nothing of it outlives the choice."""

    def __init__(self, hosting: Hosting) -> None:
        base = hosting.base_gpus > 0
        server, job = hosting.server[base], hosting.job[base]
        self.share = 1.0 / np.maximum(hosting.base_servers, 1)  # (jobs,)
        self.open = np.ones(hosting.servers, dtype=np.bool_)  # not chosen yet
        self.base_jobs = np.bincount(server, minlength=hosting.servers)
        self.cost = preemption_cost(hosting)
        self.flexible_gpus = np.bincount(hosting.server, hosting.flexible_gpus, hosting.servers)
        self.jobs_on: list[list[int]] = [[] for _ in range(hosting.servers)]  # jobs with base workers there
        for row, place in zip(job.tolist(), server.tolist(), strict=True):
            self.jobs_on[place].append(row)
        self.places: list[list[tuple[int, int, int]]] = [[] for _ in range(hosting.jobs)]
        for row, place, base_gpus, flexible in zip(
            hosting.job.tolist(),
            hosting.server.tolist(),
            hosting.base_gpus.tolist(),
            hosting.flexible_gpus.tolist(),
            strict=True,
        ):
            self.places[row].append((place, base_gpus, flexible))
        self.elsewhere: list[int] = hosting.elsewhere_gpus.tolist()
        self.damage_of: dict[int, tuple[int, list[int]]] = {}  # until something near a server changes

    def vacate(self, server: int) -> None:
        """Stop all jobs with base workers on a server, on all their servers."""
        for job in self.jobs_on[server]:
            share = self.share[job]
            for place, base_gpus, flexible in self.places[job]:
                self.flexible_gpus[place] -= flexible
                if base_gpus:
                    self.base_jobs[place] -= 1
                    self.cost[place] -= share
                    if place != server:
                        self.jobs_on[place].remove(job)
                for near in self.jobs_on[place]:  # who shares a server with it sees another damage now
                    for other, _, _ in self.places[near]:
                        self.damage_of.pop(other, None)
                self.damage_of.pop(place, None)
        self.jobs_on[server] = []
        self.open[server] = False

    def damage(self, server: int) -> tuple[int, list[int]]:
        """GPUs vacated outside a server if it goes, and, of those, on each server that gets empty by it.

        Emptied servers by number. Found again only after something has changed nearby.
        """
        damage = self.damage_of.get(server)
        if damage is not None:
            return damage
        total, gpus, jobs = 0, dict[int, int](), dict[int, int]()
        for job in self.jobs_on[server]:
            total += self.elsewhere[job]
            for place, base_gpus, flexible in self.places[job]:
                if place != server and self.open[place]:
                    gpus[place] = gpus.get(place, 0) + base_gpus + flexible
                    jobs[place] = jobs.get(place, 0) + (base_gpus > 0)
        emptied = [gpus[place] for place in sorted(gpus) if jobs[place] == self.base_jobs[place]]
        damage = total + sum(gpus.values()), emptied
        self.damage_of[server] = damage
        return damage


def _least_damage(state: _Reclaiming, servers: Sequence[int], left: int) -> int:
    """The server with the least collateral damage, ties by number.

    Damage is what is vacated on servers that do not go back. Those that get empty do go back, up to the
    number that is still asked for. Read otherwise, the best choice in the paper's own figure 5 would not be
    chosen.
    """
    best, least = servers[0], -1
    for server in servers:
        vacated, emptied = state.damage(server)
        damage = vacated - sum(emptied[: left - 1])
        if least < 0 or damage < least:
            best, least = server, damage
        if least == 0:
            break
    return best


# ── the fewest preemptions: an integer program, for comparison ────────────────────────────────────


def fewest_preemptions(hosting: Hosting, count: int, rng: np.random.Generator) -> IntArray:
    """Servers whose return stops the fewest jobs; among those, with least collateral damage.

    With y_s = 1 where server s goes and q_j = 1 where job j stops:

        minimise Σ q_j + ε (Σ T_j q_j - Σ u_s y_s)    subject to Σ y_s = count, q_j >= y_s for j on s

    T_j: all GPUs of the job, u_s: GPUs in use on the server. What is in brackets is collateral damage. ε is
    so small that it decides among equal numbers of jobs only. Solved to proven optimality (HiGHS).
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and rarely asked for
    from scipy.sparse import coo_array

    servers, jobs, pairs = hosting.servers, hosting.jobs, len(hosting.job)
    job_gpus = hosting.job_gpus
    small = 1.0 / (1.0 + float(job_gpus.sum()))
    objective = np.concatenate([-small * hosting.server_gpus, 1.0 + small * job_gpus])
    rows = np.arange(pairs)
    follows = coo_array(
        (
            np.concatenate([np.ones(pairs), -np.ones(pairs)]),
            (np.concatenate([rows, rows]), np.concatenate([servers + hosting.job, hosting.server])),
        ),
        shape=(pairs, servers + jobs),
    )
    exactly = np.concatenate([np.ones(servers), np.zeros(jobs)])[None, :]
    constraints = [LinearConstraint(exactly, lb=count, ub=count)]
    if pairs:
        constraints.append(LinearConstraint(follows.tocsc(), lb=0.0))
    integral = np.concatenate([np.ones(servers), np.zeros(jobs)])  # whole y make whole q
    solution = milp(
        objective,
        constraints=constraints,
        integrality=integral,
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    if solution.x is None:
        raise NoSolution(f"no {count} of {servers} servers found to return: {solution.message}")
    return np.flatnonzero(solution.x[:servers] > 0.5)


# ── the rules by name ─────────────────────────────────────────────────────────────────────────────


RULES: Mapping[str, Rule] = {
    "lyra": Rule(least_preemption_cost, True, "Lyra's preemption cost; flexible workers first"),
    "random": Rule(at_random, False, "servers at random"),
    "smallest-count": Rule(smallest_job_count, False, "servers with the fewest jobs (SCF)"),
    "optimal": Rule(fewest_preemptions, False, "fewest preemptions, by an integer program; slow"),
    "least-busy": Rule(least_busy, False, "servers with the fewest GPUs in use: opportunistic scheduling"),
}
