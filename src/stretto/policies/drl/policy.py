"""A learned scheduler: a network decides about one GPU at a time."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    BoolArray,
    Cluster,
    Configurations,
    IntArray,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
)
from stretto.policies.common.speed_curves import (
    NO_CURVE,
    Curve,
    Sizes,
    kinds_by_room,
    one_gpu_of_each_type,
    reasons_by_range,
    unstoppable,
)
from stretto.policies.drl.network import Network, Seen, features, logits, read_network
from stretto.settings import CheckedSettings, setting

TRAINED, GREEDY = "trained", "greedy"
FALLBACK = "greedy: no trained weights found"
BUNDLED = Path(__file__).with_name("weights.npz")


@dataclass(frozen=True)
class LearnedSizes(CheckedSettings, space="policy"):
    """Let a trained network start and resize jobs, one GPU after the other; no job is ever stopped.

    The baseline that ONES (SC 2021) calls DRL. Its description fits Chic (IWQoS 2019), which trains by the
    cross-entropy method. Up to `shown` jobs are looked at together with what is free. The network rates
    giving each of them its next count of GPUs, taking the last one back, and stopping. The best is done,
    until that is to stop. Jobs keep their batch size. `benchmarks/train_drl.py` trained the weights, on small
    made workloads of one GPU type and in minutes. It shows what a little learning gives, not what can be
    learned. Over 50 workloads of that kind that it was not trained on, its mean JCT is 936 s, that of the
    greedy rule 943 s. It is shorter on 32 of them.

    With `weights` = "greedy", GPUs go to new jobs by submission and then to the largest gain in relative
    speed. So they do where the trained weights are missing, which the resolved settings then say.

    Deviations: one network rates every job with the same weights, where a list of jobs with weights for each
    place is usual. A job is described by its speeds and by what it has had, not by the name of its model. The
    share of its epochs that is done is left out too, being unknown for a recorded job.

    Cost: O(`most_steps` x `shown`) evaluations of a small network, a few milliseconds, however many wait.
    Starvation: no bound. A large request may never find its GPUs free, since no job is stopped for it. The
    network may pass over a job for as long as others come. A cluster where no job runs starts the first job
    that fits.
    """

    weights: str = TRAINED  # "trained", "greedy", or a file as the training writes it
    shown: int = setting(32, at_least=2)  # Q, jobs at most; half of them may be waiting ones
    most_steps: int = setting(64, at_least=2)  # at each look; chosen: ends a network's dithering

    name: ClassVar[str] = "drl"
    views: ClassVar[frozenset[View]] = frozenset({View.THROUGHPUT_TABLE, View.PROGRESS})
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Chic (IWQoS 2019), as in ONES (SC 2021)",
        order="how long each waited, by its network; fair share among those that come at once",
        starvation="unbounded: nobody is stopped for a large request, and the network may pass over a job",
        tables_only=True,
    )

    def __post_init__(self) -> None:
        """Check the parameters, and that there are weights."""
        super().__post_init__()
        if self.weights == TRAINED and not BUNDLED.exists():
            object.__setattr__(self, "weights", FALLBACK)
        elif self.weights not in (TRAINED, GREEDY, FALLBACK):
            _network_in(Path(self.weights))

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """One GPU of each type: the rest it reads from the tables."""
        return one_gpu_of_each_type(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """What every job holds, changed step by step."""
        table = _Table.of(snapshot)
        network = None if self.weights in (GREEDY, FALLBACK) else _network_in(self._file)
        shown, steps = self.shown, self.most_steps
        if network is None:  # a rule needs no limits: each step gives away a GPU
            steps = sum(table.left)
            shown = int(np.count_nonzero(table.gpus)) + 2 * steps
        # Look at running jobs and the next waiting ones, until a look starts no job or no GPU is left.
        passed: set[int] = set()  # waiting jobs that have been looked at
        while rows := table.rows_to_show(shown, passed):
            started = table.waiting
            # An action grows a job, shrinks it, or, the last one, ends the look.
            for _ in range(steps):
                seen, grow, shrink = table.seen(rows)
                action = _greedy(seen, grow) if network is None else _rated(network, seen, grow, shrink)
                if action == 2 * len(rows):
                    break
                table.resize(rows[action % len(rows)], action < len(rows))
            passed.update(rows)
            if table.waiting == started or not any(table.left):
                break
        # A network that starts nothing on an empty cluster would wait for ever.
        if not table.gpus.any():
            table.start_first()
        return Shares(
            gpus=table.gpus,
            kind=table.kind,
            nodes=np.zeros(len(table.gpus), dtype=np.int64),
            why=reasons_by_range(snapshot, table.gpus, table.left),
        )

    @property
    def _file(self) -> Path:
        return BUNDLED if self.weights == TRAINED else Path(self.weights)


@lru_cache(maxsize=8)
def _network_in(path: Path) -> Network:
    return read_network(path)


def _rated(network: Network, seen: Seen, grow: BoolArray, shrink: BoolArray) -> int:
    """The action that the network rates best."""
    return int(logits(network, features(seen), grow, shrink).argmax())


def _greedy(seen: Seen, grow: BoolArray) -> int:
    """The first waiting job that fits, else the one that gains most relative speed, else stop."""
    first = grow & (seen.held == 0)
    if first.any():
        return int(first.argmax())
    gain = np.where(grow, seen.gain, 0.0)
    return int(gain.argmax()) if gain.max(initial=0.0) > 0 else 2 * len(grow)


@dataclass(eq=False)
class _Table:
    """A decision while it is made."""

    snapshot: Snapshot
    sizes: Sizes
    gpus: IntArray  # (jobs,)
    kind: IntArray  # (jobs,)
    left: list[int]  # (types,) GPUs free
    fixed: BoolArray  # (jobs,) may not be touched

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_Table":
        """Every job has what it holds."""
        jobs = snapshot.jobs
        gpus, kind = jobs.held_gpus.copy(), jobs.held_kind.copy()
        held = np.bincount(kind[gpus > 0], gpus[gpus > 0], len(snapshot.capacity)).astype(np.int64)
        left = np.maximum(np.minimum(snapshot.capacity - held, snapshot.free), 0)
        return cls(snapshot, Sizes.of(snapshot), gpus, kind, left.tolist(), unstoppable(jobs))

    @property
    def waiting(self) -> int:
        """Jobs that hold nothing."""
        return int(np.count_nonzero(self.gpus == 0))

    def rows_to_show(self, most: int, passed: set[int]) -> list[int]:
        """Waiting jobs that fit now and were not shown before, and running ones, by submission."""
        smallest = self.snapshot.jobs.min_gpus
        waits: list[int] = []
        for row in np.flatnonzero((self.gpus == 0) & (smallest <= max(self.left))).tolist():
            if row not in passed and self._place_for(row) >= 0:
                waits.append(row)
                if len(waits) == most // 2:
                    break
        runs = np.flatnonzero((self.gpus > 0) & ~self.fixed)
        waits.extend(runs[: most - len(waits)].tolist())
        return waits

    def seen(self, rows: list[int]) -> tuple[Seen, BoolArray, BoolArray]:
        """What is shown of some jobs, and which of them may grow and shrink."""
        jobs, progress = self.snapshot.jobs, self.snapshot.jobs.progress
        facts = np.array([self._facts(row) for row in rows], dtype=np.float64)
        executed_s = progress.executed_s[rows]
        seen = Seen(
            held=facts[:, 0],
            more=facts[:, 1],
            waited_s=np.where(executed_s > 0, 0.0, self.snapshot.now_s - jobs.submitted_s[rows]),
            executed_s=executed_s,
            attained_gpu_s=progress.attained_gpu_s[rows],
            efficiency=facts[:, 2],
            gain=facts[:, 3],
            free=np.array([float(sum(self.left))]),
            total=np.array([float(max(self.snapshot.capacity.sum(), 1))]),
            waiting=np.array([float(self.waiting)]),
        )
        return seen, facts[:, 4] > 0, facts[:, 5] > 0

    def resize(self, row: int, grow: bool) -> None:
        """The next count of one job, or the one before."""
        at = int(self.kind[row]) if self.gpus[row] else self._place_for(row)
        below, above = _beside(self.sizes.curve(row, at), int(self.gpus[row]))
        then = above if grow else below
        self.left[at] -= then - int(self.gpus[row])
        self.gpus[row], self.kind[row] = then, at

    def start_first(self) -> None:
        """Start the first job for which there is room."""
        for row in np.flatnonzero(self.snapshot.jobs.min_gpus <= max(self.left)).tolist():
            if self._place_for(row) >= 0:
                self.resize(row, grow=True)
                return

    def _facts(self, row: int) -> tuple[float, float, float, float, bool, bool]:
        """(GPUs, GPUs that the next count adds, efficiency, gain, may grow, may shrink) of one job."""
        gpus = int(self.gpus[row])
        kind = int(self.kind[row]) if gpus else self._place_for(row)
        curve = self.sizes.curve(row, kind) if kind >= 0 else NO_CURVE
        if not curve.gpus:
            return gpus, 0, 1.0, 0.0, False, False
        below, above = _beside(curve, gpus)
        unit = curve.per_s[0] / curve.gpus[0]
        speed = curve.per_s[curve.gpus.index(gpus)] if gpus in curve.gpus else 0.0
        efficiency = speed / gpus / unit if gpus else 1.0
        gain = (curve.per_s[curve.gpus.index(above)] - speed) / (above - gpus) / unit if above else 0.0
        more = above - gpus if above else 0
        return gpus, more, efficiency, gain, 0 < more <= self.left[kind], below > 0

    def _place_for(self, row: int) -> int:
        """The type on which a waiting job would start; -1 where there is no room."""
        for kind in kinds_by_room(self.left):
            curve = self.sizes.curve(row, kind)
            if curve.gpus and curve.gpus[0] <= self.left[kind]:
                return kind
        return -1


def _beside(curve: Curve, held: int) -> tuple[int, int]:
    """The counts before and after one, 0 where there is none."""
    before, after = bisect_left(curve.gpus, held), bisect_right(curve.gpus, held)
    return (curve.gpus[before - 1] if before else 0), (curve.gpus[after] if after < len(curve.gpus) else 0)
