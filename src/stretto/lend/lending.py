"""How many servers of a lender are lent, by a forecast of what it needs, and which loans go back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import ClassVar, Literal

import numpy as np

from stretto.lend.forecast import FORECASTS, Forecast
from stretto.lend.hosting import Hosting, hosting_on
from stretto.lend.reclaim import RULES
from stretto.model import (
    Allocation,
    BoolArray,
    InputError,
    IntArray,
    JobId,
    LenderState,
    Loans,
    Placement,
    Snapshot,
)
from stretto.settings import CheckedSettings, setting

WHOLE = 1e-9  # chosen: a demand this close to a whole number of servers is that number


@dataclass(frozen=True)
class CapacityLoaning(CheckedSettings, space="lend"):
    """Lend what the lenders will not need within the next period, and give back what they will.

    Lyra (EuroSys 2023), sections 4, 5.3 and 7.1. A pure function of the snapshot: draws of the rule `random`
    come from its seed and time.
    """

    rule: Literal["lyra", "random", "smallest-count", "optimal", "least-busy"] = "lyra"
    forecast: Literal["learned", "last", "lstm", "oracle"] = "learned"  # chosen; Lyra trains a network
    period_s: float = setting(300.0, above=0)  # Lyra, section 7.1: every five minutes
    on_demand: bool = False  # True: only what training can use; Lyra lends all that inference leaves

    former: ClassVar[Mapping[str, str]] = {"forecast": "oracle"}  # in logs older than these usual values

    _looks_ahead: Forecast = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for name, chosen, known in (("rule", self.rule, RULES), ("forecast", self.forecast, FORECASTS)):
            if chosen not in known:
                raise InputError(f"unknown lend.{name} {chosen!r}, expected one of {', '.join(known)}")
        object.__setattr__(self, "_looks_ahead", FORECASTS[self.forecast]())

    @property
    def foresight(self) -> bool:
        """Whether it must be shown what lenders will use next."""
        return self.forecast == "oracle"

    def settle(self, snapshot: Snapshot) -> Loans:
        """Which nodes are usable from now on, and what is left of the placement."""
        usable = snapshot.usable.copy()
        loans = Loans(usable, snapshot.placement)
        for number, lender in enumerate(snapshot.lenders):
            nodes = np.sort(lender.nodes)
            on_loan = nodes[usable[nodes]]
            may_lend = lendable(lender, self._looks_ahead)
            if may_lend < len(on_loan):
                present = replace(snapshot, placement=loans.placement)
                rng = np.random.default_rng([snapshot.seed, round(snapshot.now_s), number])
                loans = _returned(present, loans, on_loan, len(on_loan) - may_lend, self.rule, rng)
                usable = loans.usable
            else:
                at_home = nodes[~usable[nodes]]
                usable[at_home[: may_lend - len(on_loan)]] = True
            if self.on_demand:
                idle = nodes[usable[nodes] & (loans.placement.busy[nodes] == 0)]
                usable[idle[_servers_of_use(snapshot, nodes) :]] = False
            if lender.closed:
                rng = np.random.default_rng([snapshot.seed, round(snapshot.now_s), number])
                loans = _closed_returned(snapshot, replace(loans, usable=usable), lender, self.rule, rng)
        usable[list(loans.closed)] = False  # some had been open to jobs that tolerate why they are closed
        return replace(loans, usable=usable)


def lendable(lender: LenderState, forecast: Forecast) -> int:
    """Servers that may be on loan: ⌊(1 - headroom) S - demand⌋, all in servers (Lyra, section 7.1).

    Demand is what is foreseen, and never less than what is in use now.
    """
    servers = len(lender.nodes)
    share = max(forecast.next_share(lender.demand, lender.next_demand), float(lender.demand[-1]))
    needed = ceil(share * servers - WHOLE)
    return max(floor((1.0 - lender.headroom) * servers - needed + WHOLE), 0)


def _servers_of_use(snapshot: Snapshot, nodes: IntArray) -> int:
    """Servers of a lender, beside those where jobs run, that training could use at most.

    Jobs that wait count with the fewest GPUs that they run on. Elastic jobs that run there count with what
    they lack of their most. Both count in GPUs of a type that they accept. Own servers may have room for some
    of them.
    """
    jobs, cluster = snapshot.jobs, snapshot.cluster
    lacking = np.zeros(len(jobs), dtype=np.int64)
    for kind in np.unique(cluster.kind[nodes]).tolist():
        stand_ins = int(cluster.stand_ins[kind])
        waits = jobs.allowed_kinds[:, kind] & (jobs.held_gpus == 0)
        grows = jobs.allowed_kinds[:, kind] & ((jobs.held_kind == kind) | jobs.heterogeneous)
        grows &= (jobs.held_gpus > 0) & (jobs.max_gpus > jobs.min_gpus)
        more = np.where(grows, np.maximum(jobs.max_gpus * stand_ins - jobs.held_gpus, 0), 0)
        lacking = np.maximum(lacking, np.where(waits, jobs.min_gpus * stand_ins, more))
    return ceil(int(lacking.sum()) / max(float(cluster.node_gpus[nodes].mean()), 1.0)) if len(nodes) else 0


def _returned(
    snapshot: Snapshot, loans: Loans, on_loan: IntArray, count: int, rule_name: str, rng: np.random.Generator
) -> Loans:
    """The loans after `count` of the nodes on loan have gone back."""
    rule = RULES[rule_name]
    hosting, names = hosting_on(snapshot, on_loan)
    chosen = rule.choose(hosting, count, rng)
    stopped = hosting.stopped_by(chosen, rule.spares_flexible)
    gone = np.zeros(len(snapshot.cluster.nodes), dtype=np.bool_)
    gone[on_loan[chosen]] = True
    smaller = _smaller(hosting, chosen, stopped)
    changes: dict[JobId, Allocation | None] = {names[job]: None for job in np.flatnonzero(stopped).tolist()}
    for job in smaller.tolist():
        changes[names[job]] = _without(snapshot.placement, names[job], gone)
    usable = loans.usable.copy()
    usable[gone] = False
    demanded = int(snapshot.cluster.node_gpus[gone].sum())
    base_jobs = np.bincount(hosting.server[hosting.base_gpus > 0], minlength=hosting.servers)
    spared = chosen[base_jobs[chosen] == 0]
    return Loans(
        usable=usable,
        closed=loans.closed,
        placement=snapshot.placement.changed(changes) if changes else snapshot.placement,
        preempted=(*loans.preempted, *(names[job] for job in np.flatnonzero(stopped).tolist())),
        scaled_in=(*loans.scaled_in, *(names[job] for job in smaller.tolist())),
        vacated_gpus=loans.vacated_gpus + demanded + hosting.excess_gpus(chosen, stopped),
        demanded_gpus=loans.demanded_gpus + demanded,
        spared_gpus=loans.spared_gpus + int(snapshot.cluster.node_gpus[on_loan[spared]].sum()),
    )


def _closed_returned(
    snapshot: Snapshot, loans: Loans, lender: LenderState, rule: str, rng: np.random.Generator
) -> Loans:
    """The loans after closed nodes have gone back: idle ones all, no job may use them; others on need."""
    closed = np.array(lender.closed, dtype=np.int64)
    is_idle = loans.placement.busy[closed] == 0
    idle, busy = closed[is_idle], closed[~is_idle]
    loans = replace(loans, closed=(*loans.closed, *idle.tolist()))
    count = min(lender.needs_closed - len(idle), len(busy))
    if count <= 0:
        return loans
    opened = loans.usable.copy()
    opened[busy] = True
    present = replace(snapshot, placement=loans.placement)
    after = _returned(present, replace(loans, usable=opened), np.sort(busy), count, rule, rng)
    gone = busy[~after.usable[busy]]
    return replace(after, usable=loans.usable, closed=(*loans.closed, *gone.tolist()))


def _smaller(hosting: Hosting, chosen: IntArray, stopped: BoolArray) -> IntArray:
    """Jobs that lose GPUs of chosen servers, and go on."""
    gone = np.zeros(hosting.servers, dtype=np.bool_)
    gone[chosen] = True
    return np.unique(hosting.job[gone[hosting.server] & ~stopped[hosting.job]])


def _without(placement: Placement, job: JobId, gone: BoolArray) -> Allocation:
    """What a job holds once some nodes are gone. Batches of single GPUs, if any were said, are open again."""
    allocation = placement[job]
    flexible = allocation.flexible or (0,) * len(allocation.nodes)
    remaining = [
        (node, mask, spare)
        for node, mask, spare in zip(allocation.nodes, allocation.masks, flexible, strict=True)
        if not gone[node]
    ]
    nodes, masks, spares = (tuple(column) for column in zip(*remaining, strict=True))
    return replace(
        allocation,
        kind=int(placement.cluster.kind[nodes[0]]),
        nodes=nodes,
        masks=masks,
        flexible=spares if any(spares) else (),
        local_batch=(),
    )
