"""Bundles of GPUs that a job may be given, the columns of matrices of worth; speeds and batches on them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from stretto.model.arrays import BoolArray, FloatArray, IntArray, frozen, ints
from stretto.model.cluster import Cluster

ALL_SIZES = 62  # significant binary digits of a number of nodes: each number has fewer


@dataclass(frozen=True, slots=True)
class SizeLadder:
    """Which sizes of a job are offered: powers of two within a node, then whole nodes in steps.

    A number of nodes has at most `digits` significant binary digits. So all numbers up to 2^digits are there,
    and beyond it the steps double with every doubling. The largest number that a job may have is there, too.
    """

    digits: int
    types: tuple[str, ...]  # names of the GPU types
    block: tuple[int, ...]  # by type, the GPUs of a node in which whole nodes are counted
    most_nodes: tuple[int, ...]  # by type, of one job

    @property
    def most_lost(self) -> float:
        """The next smaller step has more than 1 less this part of the GPUs of any size that is left out.

        So a job loses no more of its speed, unless it is faster on each GPU the more it has.
        """
        return 0.0 if self.digits >= ALL_SIZES else 1 / (2 ** (self.digits - 1) + 1)

    def step_below(self, nodes: int) -> int:
        """The largest step that is not above a number of nodes."""
        dropped = max(nodes.bit_length() - self.digits, 0)
        return nodes >> dropped << dropped

    def numbers_of_nodes(self, kind: int) -> list[int]:
        """All steps of a type from two nodes on, ascending."""
        most = self.most_nodes[kind]
        steps = [nodes for nodes in range(2, most + 1) if nodes == self.step_below(nodes)]
        return [*steps, most] if most > 1 and steps[-1] != most else steps

    def why_not(self, gpus: int, kind: int) -> str:
        """Why so many GPUs of a type are no size, in a few words; "" where they are one."""
        block, most, name = self.block[kind], self.most_nodes[kind], self.types[kind]
        if gpus < 1:
            return f"expected at least 1 GPU, got {gpus}"
        if gpus <= block:
            power = gpus & (gpus - 1) == 0
            return "" if power else f"{gpus} GPUs are no power of two within a node of {block} {name}"
        nodes, rest = divmod(gpus, block)
        if rest:
            return f"{gpus} GPUs are no whole nodes of {block} {name}"
        if nodes > most:
            return f"{nodes} nodes are more than the {most} of {block} {name} that a job may have"
        below = self.step_below(nodes)
        if nodes in (below, most):
            return ""
        above = min(below + (1 << (nodes.bit_length() - self.digits)), most)
        return f"{nodes} nodes lie between the steps of {below} and {above}"


@dataclass(frozen=True, eq=False)
class Configurations:
    """(nodes, gpus, GPU type) triples as columns (Sia, section 3.3)."""

    nodes: IntArray  # (configs,)
    gpus: IntArray  # (configs,)
    kind: IntArray  # (configs,) index of the GPU type
    ladder: SizeLadder | None = None  # which sizes these are, and why others are not there; None: not said

    def __len__(self) -> int:
        """The number of configurations."""
        return len(self.gpus)

    def index(self, nodes: int, gpus: int, kind: int) -> int:
        """The column of a configuration, or -1."""
        found = np.flatnonzero((self.nodes == nodes) & (self.gpus == gpus) & (self.kind == kind))
        return int(found[0]) if len(found) else -1

    def columns_of(self, nodes: IntArray, gpus: IntArray, kind: IntArray) -> IntArray:
        """(rows,) the column that equals each (nodes, gpus, kind), the first of equals, or -1."""
        if not len(self):
            return np.full(len(gpus), -1)
        codes, order = self._by_code
        code = self._code(nodes, gpus, kind)
        place = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
        return np.where(codes[place] == code, order[place], -1)

    @cached_property
    def _by_code(self) -> tuple[IntArray, IntArray]:
        """(configs,) ascending codes of the configurations, and which they are."""
        code = self._code(self.nodes, self.gpus, self.kind)
        order = np.argsort(code, kind="stable")
        return code[order], order

    def _code(self, nodes: IntArray, gpus: IntArray, kind: IntArray) -> IntArray:
        """One number for each (nodes, gpus, kind), -1 for what no configuration can be."""
        most_nodes, most_gpus = int(self.nodes.max()) + 1, int(self.gpus.max()) + 1
        code = (kind * most_nodes + nodes) * most_gpus + gpus
        return np.where((kind < 0) | (nodes >= most_nodes) | (gpus >= most_gpus), -1, code)


def configurations_from(
    triples: Iterable[tuple[int, int, int]], ladder: SizeLadder | None = None
) -> Configurations:
    """Configurations from (nodes, gpus, kind) triples, in the order given."""
    rows = list(triples)
    columns = ints(rows).reshape(len(rows), 3)
    nodes, gpus, kind = (frozen(columns[:, index].copy()) for index in range(3))
    return Configurations(nodes, gpus, kind, ladder)


@lru_cache(maxsize=64)
def powers_and_whole_nodes(cluster: Cluster, digits: int = ALL_SIZES) -> Configurations:
    """Powers of two within a node, then whole nodes, by type: Sia, section 3.3.

    A node whose size is no power of two counts as virtual nodes of its binary powers (12 = 8 + 4). Whole
    nodes are counted in its largest power. A type's `max_nodes_per_job` caps the nodes of one job. digits: of
    numbers of nodes, see `SizeLadder`; with all of them each number is there, as in the paper.
    """
    ladder = _ladder(cluster, digits)
    triples = []
    for kind, block in enumerate(ladder.block):
        triples += [(1, 1 << power, kind) for power in range(block.bit_length())]
        triples += [(nodes, nodes * block, kind) for nodes in ladder.numbers_of_nodes(kind)]
    return configurations_from(triples, ladder)


def _ladder(cluster: Cluster, digits: int) -> SizeLadder:
    blocks, most_nodes = [], []
    for kind, gpu_type in enumerate(cluster.types):
        sizes = cluster.node_gpus[cluster.kind == kind]
        block = 1 << (int(sizes.max()).bit_length() - 1)
        whole = int((sizes >= block).sum())
        blocks.append(block)
        most_nodes.append(min(whole, gpu_type.max_nodes_per_job or whole))
    return SizeLadder(digits, cluster.type_names, tuple(blocks), tuple(most_nodes))


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

    @property
    def origin(self) -> tuple[object, IntArray] | None:
        """Where speeds are remembered, and (jobs,) the number of each row there; None: nowhere.

        Rows of one number in the same place have the same speeds, also in other decisions.
        """
        return None


ANY_NUMBER = np.iinfo(np.int64).max  # of GPUs: nothing bounds how many can be kept busy


class NoSpeeds(Speeds):
    """Nothing is believed about any job. Columns are made when they are read: most policies read none."""

    _jobs: int
    _types: int

    def __init__(self, **columns: Any) -> None:
        """columns: `configurations` and the numbers of rows, or every field, where some are replaced."""
        vars(self).update(columns)

    @cached_property
    def per_s(self) -> FloatArray:
        """(jobs, configs) NaN."""
        return np.full((self._jobs, len(self.configurations)), np.nan)

    @cached_property
    def requested_per_s(self) -> FloatArray:
        """(jobs, types) NaN."""
        return np.full((self._jobs, self._types), np.nan)

    @cached_property
    def modelled(self) -> BoolArray:
        """(jobs,) false."""
        return np.zeros(self._jobs, dtype=np.bool_)

    @cached_property
    def observed_gpus(self) -> IntArray:
        """(jobs, types) 0."""
        return np.zeros((self._jobs, self._types), dtype=np.int64)

    @cached_property
    def reach_gpus(self) -> IntArray:
        """(jobs,) nothing bounds it."""
        return np.full(self._jobs, ANY_NUMBER)


def no_speeds(jobs: int, types: int, configurations: Configurations) -> Speeds:
    """Nothing is believed about any job."""
    return NoSpeeds(_jobs=jobs, _types=types, configurations=configurations)


class BatchChoice(NamedTuple):
    """The best batch on one placement; all 0 where none is possible."""

    goodput: float  # samples of the initial batch per second
    total_batch: int  # M, samples
    local_batch: int  # m, samples on each GPU in one pass
    accumulation: int  # s, passes before the one that synchronises
