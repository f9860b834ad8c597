"""Which job holds what since when, what every job has had so far, and what its account is charged for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.model import (
    Account,
    Allocation,
    BoolArray,
    Cluster,
    FairShare,
    FloatArray,
    IntArray,
    Job,
    UsageLedger,
    account_of,
    rate_of,
)
from stretto.sim.history import Held, History


@dataclass(frozen=True, slots=True)
class Had:
    """What a job has had before a world goes on with it."""

    executed_s: float  # with at least one GPU, up to `held_since_s`
    attained_gpu_s: float
    first_start_s: float  # NaN: never started
    last_stop_s: float  # NaN: never stopped
    starts: int  # of its workers
    largest_held: int  # most GPUs ever held
    held_since_s: float = 0.0  # of what it holds, if anything


@dataclass(eq=False)
class Accounting:
    """Kept by the world; every stretch of time with the same GPUs also goes into the history."""

    history: History
    held_gpus: IntArray = field(init=False)  # now; 0 while a job waits
    held_nodes: IntArray = field(init=False)
    held_kind: IntArray = field(init=False)  # -1 while a job waits
    held_since_s: FloatArray = field(init=False)
    executed_s: FloatArray = field(init=False)  # with at least one GPU, up to `held_since_s`
    attained_gpu_s: FloatArray = field(init=False)  # GPU-seconds held, up to then
    profiled_gpu_s: FloatArray = field(init=False)  # on GPUs set aside for profiling
    first_start_s: FloatArray = field(init=False)  # NaN: never started
    last_stop_s: FloatArray = field(init=False)  # NaN: never stopped
    starts: IntArray = field(init=False)  # of its workers
    largest_held: IntArray = field(init=False)  # most GPUs ever held
    completed_s: FloatArray = field(init=False)  # NaN: unfinished
    profiled_s: FloatArray = field(init=False)  # in profiling runs, up to `held_since_s`
    profiling: BoolArray = field(init=False)  # whether what is held now is held for such a run
    parts: dict[int, dict[int, int]] = field(init=False, default_factory=dict)  # by type, if it mixes them

    def __post_init__(self) -> None:
        """No job has had anything."""
        jobs = self.history.jobs
        self.held_gpus, self.held_nodes, self.starts, self.largest_held = np.zeros((4, jobs), dtype=np.int64)
        self.held_kind = np.full(jobs, -1, dtype=np.int64)
        self.held_since_s, self.executed_s, self.attained_gpu_s, self.profiled_gpu_s = np.zeros((4, jobs))
        self.profiled_s, self.profiling = np.zeros(jobs), np.zeros(jobs, dtype=np.bool_)
        self.first_start_s, self.last_stop_s, self.completed_s = np.full((3, jobs), np.nan)

    def resume(self, row: int, had: Had, held: Allocation | None) -> None:
        """A job goes on with what it had and holds."""
        self.executed_s[row], self.attained_gpu_s[row] = had.executed_s, had.attained_gpu_s
        self.first_start_s[row], self.last_stop_s[row] = had.first_start_s, had.last_stop_s
        self.starts[row], self.largest_held[row] = had.starts, had.largest_held
        if held is not None:
            self.held_gpus[row], self.held_nodes[row] = held.gpus, len(held.nodes)
            self.held_kind[row], self.held_since_s[row] = held.kind, had.held_since_s

    def give(
        self, row: int, after: Allocation, now_s: float, restarts: bool, parts: dict[int, int] | None = None
    ) -> None:
        """A job comes to hold these GPUs and no others; `parts`: by type, where there are several."""
        if self.held_gpus[row]:
            self.release(row, now_s, now_s)
        gpus = after.gpus
        self.starts[row] += restarts
        self.profiling[row] = after.profiling
        if np.isnan(self.first_start_s[row]):
            self.first_start_s[row] = now_s
        self.held_gpus[row], self.held_nodes[row], self.held_kind[row] = gpus, len(after.nodes), after.kind
        if parts is not None:
            self.parts[row] = parts
        self.held_since_s[row] = now_s
        self.largest_held[row] = max(self.largest_held[row], gpus)

    def stop(self, row: int, now_s: float) -> None:
        """A job loses all its GPUs before its end."""
        self.release(row, now_s, now_s)
        self.last_stop_s[row] = now_s

    def finish(self, row: int, completed_s: float, until_s: float) -> None:
        """A job has ended; its GPUs count as held until `until_s`."""
        self.completed_s[row] = completed_s
        self.release(row, until_s, ran_until_s=completed_s)

    def release(self, row: int, until_s: float, ran_until_s: float) -> None:
        """Book the stretch that ends; the job holds nothing then."""
        gpus = int(self.held_gpus[row])
        if gpus:
            since_s = float(self.held_since_s[row])
            self.executed_s[row] += ran_until_s - since_s
            self.attained_gpu_s[row] += gpus * (until_s - since_s)
            if self.profiling[row]:
                self.profiled_s[row] += ran_until_s - since_s
            for kind, count in self.parts.pop(row, {int(self.held_kind[row]): gpus}).items():
                self.history.held.append(Held(row, since_s, until_s, kind, count))
        self.held_gpus[row], self.held_nodes[row], self.held_kind[row] = 0, 0, -1


# ── what every account is charged, as a live service charges it ───────────────────────────────────


@dataclass
class Charging:
    """Follows what each job holds. shares: those that were set; the usage in them is passed over."""

    jobs: Sequence[Job]
    cluster: Cluster
    shares: FairShare
    ledger: UsageLedger = field(default_factory=UsageLedger)  # in which no job holds anything yet
    _rates: dict[int, int] = field(default_factory=dict)  # by row, of jobs that hold something
    _accounts: list[Account] = field(init=False)

    def __post_init__(self) -> None:
        """Look up once which account is charged."""
        self._accounts = [account_of(job) for job in self.jobs]

    def hold(self, row: int, gpus_of: Mapping[int, int], now_s: float) -> None:
        """From now on a job holds these GPUs, by type; nothing: it holds none."""
        rate = sum(rate_of(gpus, self.cluster.types[kind].speed) for kind, gpus in gpus_of.items())
        self.ledger.change(self._accounts[row], rate - self._rates.pop(row, 0), now_s)
        if rate:
            self._rates[row] = rate

    def at(self, now_s: float) -> FairShare:
        """Shares, with usage as it stands now."""
        return replace(self.shares, usage_gpu_s=self.ledger.at(now_s), held_gpus=self.ledger.held_gpus())
