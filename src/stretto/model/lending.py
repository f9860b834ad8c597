"""Nodes that belong to another owner: what their owners need, and what is on loan."""

from dataclasses import dataclass

from stretto.model.arrays import BoolArray, FloatArray, IntArray
from stretto.model.job import JobId
from stretto.model.placement import Placement


@dataclass(frozen=True, eq=False)
class LenderState:
    """One lender, an inference cluster for example, as it stands now (Lyra, section 4)."""

    name: str
    nodes: IntArray  # (servers,) its nodes, as indices into the cluster's
    headroom: float  # share of its servers that it never lends
    period_s: float  # between two entries of `demand`
    demand: FloatArray  # (periods so far,) share of its servers that it used itself; the last is now
    next_demand: float  # the most that it will use until loans are settled again; NaN without foresight
    closed: tuple[int, ...] = ()  # further nodes of its own: on loan, but they take no new jobs
    needs_closed: int = 0  # how many of these it needs, as all others are not enough


@dataclass(frozen=True, eq=False)
class Loans:
    """What was settled with lenders: which nodes may be used from now on, and which jobs had to make room."""

    usable: BoolArray  # (nodes,) own nodes, and lent ones that are on loan
    placement: Placement  # after every job has made room
    preempted: tuple[JobId, ...] = ()  # stopped whole
    scaled_in: tuple[JobId, ...] = ()  # lost flexible workers and go on
    vacated_gpus: int = 0  # of the nodes that went back, and what jobs had to leave elsewhere
    demanded_gpus: int = 0  # of the nodes that went back
    spared_gpus: int = 0  # of these, those of nodes without base workers: no job had to stop for them
    closed: tuple[int, ...] = ()  # nodes that went back, and were not usable before, since they were closed


def nodes_of(lenders: tuple[LenderState, ...]) -> list[int]:
    """The nodes of all lenders."""
    return [node for lender in lenders for node in lender.nodes.tolist()]
