"""How many servers of a lender are lent, by a forecast of what it needs, and which loans go back."""

from dataclasses import dataclass, field, replace
from math import ceil, floor, isnan
from typing import ClassVar, Literal, Protocol

import numpy as np

from stretto.lend.hosting import Hosting, hosting_on
from stretto.lend.reclaim import RULES
from stretto.model import (
    Allocation,
    BoolArray,
    FloatArray,
    InputError,
    IntArray,
    JobId,
    LenderState,
    Loans,
    Placement,
    Snapshot,
)
from stretto.settings import CheckedSettings, setting


class Forecast(Protocol):
    """A way to look ahead."""

    name: ClassVar[str]

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The share needed within the next period; `demand` per period up to now, `truth` NaN if hidden."""


@dataclass(frozen=True)
class Oracle:
    """What really comes: the largest share within the next period, shown by a simulated world."""

    name: ClassVar[str] = "oracle"

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The truth; InputError where the world does not show it. Never less than the share of now."""
        if isnan(truth):
            raise InputError(
                "lend.forecast=oracle: expected a world that knows demand ahead, this one does not"
            )
        return max(truth, float(demand[-1]))


@dataclass(frozen=True)
class Last:
    """That nothing changes."""

    name: ClassVar[str] = "last"

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The share of now."""
        return float(demand[-1])


@dataclass(frozen=True)
class Learned:
    """Ridge regression of the next change on the last ones, over the part of the series seen so far.

    Deviation from Lyra's LSTM with two hidden layers: a linear model on the same window of ten values. It is
    fitted anew at every forecast from the past alone, so it needs no training data, draws nothing and cannot
    look ahead. Until there is as much past as `least` asks for, nothing is expected to change.
    """

    window: int = 10  # values; Lyra, section 6
    ridge: float = 1e-4  # penalty on weights, per sample; chosen: small beside the changes' own variance
    least: int = 36  # values before it is fitted; chosen: three hours of five minutes
    most: int = 2_016  # latest values that it is fitted to; chosen: a week of five minutes

    name: ClassVar[str] = "learned"

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.window < 2 or self.least < self.window + 2 or self.most < self.least or self.ridge <= 0:
            raise InputError(
                f"a learned forecast expects 2 <= window, window + 2 <= least <= most and ridge > 0, "
                f"got {self.window}, {self.least}, {self.most} and {self.ridge:g}"
            )

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The fitted next value, within 0 and 1."""
        past = demand[-self.most :]
        if len(past) < self.least:
            return float(past[-1])
        windows = np.lib.stride_tricks.sliding_window_view(past, self.window)
        changes = np.column_stack([np.diff(windows, axis=1), windows[:, -1] - past.mean()])
        before, after = changes[:-1], np.diff(past)[self.window - 1 :]
        gram = before.T @ before + self.ridge * np.eye(self.window) * float(before.var())
        weights = np.linalg.solve(gram + 1e-12 * np.eye(self.window), before.T @ after)
        return float(np.clip(past[-1] + changes[-1] @ weights, 0.0, 1.0))


FORECASTS: dict[str, type[Forecast]] = {"oracle": Oracle, "last": Last, "learned": Learned}


def squared_error(forecast: Forecast, series: FloatArray, first: int) -> float:
    """Mean squared error of one-step forecasts of `series[first:]`, each from what lies before it."""
    wrong = [
        forecast.next_share(series[:at], float(series[at])) - float(series[at])
        for at in range(first, len(series))
    ]
    return float(np.mean(np.square(wrong)))


# ── the step before every policy's decision ───────────────────────────────────────────────────────


WHOLE = 1e-9  # chosen: a demand this close to a whole number of servers is that number


@dataclass(frozen=True)
class CapacityLoaning(CheckedSettings, space="lend"):
    """Lend what the lenders will not need within the next period, and give back what they will.

    Lyra (EuroSys 2023), sections 4, 5.3 and 7.1. A pure function of the snapshot: draws of the rule `random`
    come from its seed and time.
    """

    rule: Literal["lyra", "random", "smallest-count", "optimal", "least-busy"] = "lyra"
    forecast: Literal["oracle", "last", "learned"] = "oracle"  # chosen; Lyra trains a network
    period_s: float = setting(300.0, above=0)  # Lyra, section 7.1: every five minutes

    _looks_ahead: Forecast = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for name, given, known in (("rule", self.rule, RULES), ("forecast", self.forecast, FORECASTS)):
            if given not in known:
                raise InputError(f"unknown lend.{name} {given!r}, expected one of {', '.join(known)}")
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
            if may_lend >= len(on_loan):
                at_home = nodes[~usable[nodes]]
                usable[at_home[: may_lend - len(on_loan)]] = True
                continue
            present = replace(snapshot, placement=loans.placement)
            rng = np.random.default_rng([snapshot.seed, round(snapshot.now_s), number])
            loans = _returned(present, loans, on_loan, len(on_loan) - may_lend, self.rule, rng)
            usable = loans.usable
        return replace(loans, usable=usable)


def lendable(lender: LenderState, forecast: Forecast) -> int:
    """Servers that may be on loan: ⌊(1 - headroom) S - demand⌋, all in servers (Lyra, section 7.1).

    Demand is what is foreseen, and never less than what is in use now.
    """
    servers = len(lender.nodes)
    share = max(forecast.next_share(lender.demand, lender.next_demand), float(lender.demand[-1]))
    needed = ceil(share * servers - WHOLE)
    return max(floor((1.0 - lender.headroom) * servers - needed + WHOLE), 0)


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
    return Loans(
        usable=usable,
        placement=snapshot.placement.changed(changes) if changes else snapshot.placement,
        preempted=(*loans.preempted, *(names[job] for job in np.flatnonzero(stopped).tolist())),
        scaled_in=(*loans.scaled_in, *(names[job] for job in smaller.tolist())),
        vacated_gpus=loans.vacated_gpus + demanded + hosting.excess_gpus(chosen, stopped),
        demanded_gpus=loans.demanded_gpus + demanded,
    )


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
