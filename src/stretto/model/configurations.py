"""Bundles of GPUs that a job may be given, the columns of matrices of worth; speeds and batches on them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stretto.model.arrays import BoolArray, FloatArray, IntArray, frozen, ints
from stretto.model.cluster import Cluster


@dataclass(frozen=True, eq=False)
class Configurations:
    """(nodes, gpus, GPU type) triples as columns (Sia, section 3.3)."""

    nodes: IntArray  # (configs,)
    gpus: IntArray  # (configs,)
    kind: IntArray  # (configs,) index of the GPU type

    def __len__(self) -> int:
        """The number of configurations."""
        return len(self.gpus)

    def index(self, nodes: int, gpus: int, kind: int) -> int:
        """The column of a configuration, or -1."""
        found = np.flatnonzero((self.nodes == nodes) & (self.gpus == gpus) & (self.kind == kind))
        return int(found[0]) if len(found) else -1

    def columns_of(self, nodes: IntArray, gpus: IntArray, kind: IntArray) -> IntArray:
        """(rows,) the column that equals each (nodes, gpus, kind), or -1."""
        equal = (self.gpus == gpus[:, None]) & (self.kind == kind[:, None]) & (self.nodes == nodes[:, None])
        return np.where(equal.any(axis=1), equal.argmax(axis=1), -1)


def configurations_from(triples: Iterable[tuple[int, int, int]]) -> Configurations:
    """Configurations from (nodes, gpus, kind) triples, in the order given."""
    rows = list(triples)
    columns = ints(rows).reshape(len(rows), 3)
    return Configurations(*(frozen(columns[:, index].copy()) for index in range(3)))


@lru_cache(maxsize=64)
def powers_and_whole_nodes(cluster: Cluster) -> Configurations:
    """Powers of two within a node, then whole nodes, by type: Sia, section 3.3.

    A node whose size is no power of two counts as virtual nodes of its binary powers (12 = 8 + 4). Whole
    nodes are counted in its largest power. A type's `max_nodes_per_job` caps the nodes of one job.
    """
    triples = []
    for kind, gpu_type in enumerate(cluster.types):
        sizes = cluster.node_gpus[cluster.kind == kind]
        largest = 1 << (int(sizes.max()).bit_length() - 1)
        triples += [(1, 1 << power, kind) for power in range(largest.bit_length())]
        whole = int((sizes >= largest).sum())
        limit = min(whole, gpu_type.max_nodes_per_job or whole)
        triples += [(nodes, nodes * largest, kind) for nodes in range(2, limit + 1)]
    return configurations_from(triples)


def virtual_nodes(gpus: int) -> tuple[int, ...]:
    """The binary powers that make up a node's GPUs, largest first (Sia, section 3.3)."""
    return tuple(1 << power for power in reversed(range(gpus.bit_length())) if gpus >> power & 1)


@lru_cache(maxsize=64)
def counts_within(cluster: Cluster, most_gpus: int) -> Configurations:
    """Every GPU count from 1 to `most_gpus` by type, once within a node where it fits and once spread.

    For policies that place by node (Pollux): a model tells only one node from several.
    """
    triples = []
    for kind, per_node in enumerate(cluster.gpus_per_node):
        most = min(most_gpus, int(cluster.capacity[kind]))
        triples += [(1, gpus, kind) for gpus in range(1, min(most, int(per_node)) + 1)]
        triples += [(max(2, -(-gpus // int(per_node))), gpus, kind) for gpus in range(2, most + 1)]
    return configurations_from(triples)


# ── how fast each job would run on each configuration, as far as we believe ─────────────────────────────────


@dataclass(frozen=True, eq=False)
class Speeds:
    """One matrix, jobs × configurations; rows as in the snapshot.

    `per_s` is goodput (steps of the initial batch per second) where a policy asked for goodput models. It is
    measured steps per second where a policy asked for throughput tables. It is comparable within a row only.
    NaN where the job cannot run so. `requested_per_s` is the same for exactly the GPUs that a job asked for,
    by type.

    A policy that looks at few cells asks for those alone: an estimator may work out no others.
    """

    configurations: Configurations
    per_s: FloatArray  # (jobs, configs)
    requested_per_s: FloatArray  # (jobs, types)
    modelled: BoolArray  # (jobs,) something about its speed has been learned
    observed_gpus: IntArray  # (jobs, types) most GPUs on which its speed was observed
    reach_gpus: IntArray  # (jobs,) most GPUs that its batch limits can keep busy
    # Limits of jobs as columns, where an estimator has them at hand; else each job's evidence says them.
    replica_gpus: IntArray | None = None  # (jobs, types) GPUs of one replica
    restart_s: FloatArray | None = None  # (jobs,) that a restart is assumed to take; NaN: not said

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(cells,) `per_s` of some rows on some configurations."""
        return self.per_s[rows, columns]

    def on_request(self, rows: IntArray, kinds: IntArray) -> FloatArray:
        """(cells,) `requested_per_s` of some rows on some types."""
        return self.requested_per_s[rows, kinds]


ANY_NUMBER = np.iinfo(np.int64).max  # of GPUs: nothing bounds how many can be kept busy


def no_speeds(jobs: int, types: int, configurations: Configurations) -> Speeds:
    """Nothing is believed about any job."""
    return Speeds(
        configurations=configurations,
        per_s=np.full((jobs, len(configurations)), np.nan),
        requested_per_s=np.full((jobs, types), np.nan),
        modelled=np.zeros(jobs, dtype=np.bool_),
        observed_gpus=np.zeros((jobs, types), dtype=np.int64),
        reach_gpus=np.full(jobs, ANY_NUMBER),
    )


class BatchChoice(NamedTuple):
    """The best batch on one placement; all 0 where none is possible."""

    goodput: float  # samples of the initial batch per second
    total_batch: int  # M, samples
    local_batch: int  # m, samples on each GPU in one pass
    accumulation: int  # s, passes before the one that synchronises
