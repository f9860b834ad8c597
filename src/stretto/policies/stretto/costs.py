"""What it takes to change what jobs have, and what a lender that takes GPUs back makes of the time left."""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, Snapshot
from stretto.policies.common.reclaim_costs import returns_per_s, with_returns_s
from stretto.policies.sia.configurations import ConfigurationSet

MOST_PART = 20.0  # lives that a change of size may take, at most, so that e^(c / L) is a number; chosen


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Seconds that changes take; (jobs,) unless said otherwise."""

    starts_s: FloatArray  # from GPUs to the first step
    done_s: FloatArray  # that are lost with a stop; NaN of a job that saves its progress
    stop_s: FloatArray  # of being stopped and started again; 0 for a job that waits
    change_s: FloatArray  # (cells,) of the change from what a job has
    resizes: BoolArray  # (cells,) of a running job that stays on its GPU type
    goes_on: BoolArray  # (cells,) of a job that saves nothing: what it has done is not lost

    @classmethod
    def of(cls, snapshot: Snapshot, configs: ConfigurationSet, restart_s: float) -> "Costs":
        """As measured; restart_s: of a job whose stop and start were not measured."""
        jobs, progress = snapshot.jobs, snapshot.jobs.progress
        starts_s = np.where(np.isfinite(progress.suspension_s), progress.suspension_s, restart_s)
        # A job that saves nothing has done what it did since its last start; nothing while it waits.
        runs, since_stop_s = jobs.held_gpus > 0, snapshot.now_s - progress.last_stop_s
        done_s = np.where(runs, np.fmin(progress.executed_s, since_stop_s), 0.0)
        done_s = np.where(jobs.saves, np.nan, done_s)
        # A job that stays on its GPU type changes its size; every other change is a stop and a start.
        moves_s = starts_s + np.nan_to_num(done_s)
        resizes_s = np.where(np.isfinite(progress.resize_s), progress.resize_s, moves_s)
        current, row = configs.current, configs.cells.row
        resizes = runs[row] & (configs.kind == jobs.held_kind[row])
        change_s = np.where(current, 0.0, np.where(resizes, resizes_s[row], moves_s[row]))
        goes_on = ~jobs.saves[row] & (current | (resizes & np.isfinite(progress.resize_s)[row]))
        return cls(starts_s, done_s, np.where(runs, moves_s, 0.0), change_s, resizes, goes_on)

    def amortised_s(self, alone_s: FloatArray, lasts_s: FloatArray, sizes_end: bool) -> FloatArray:
        """(cells,) T, longer by what the change to a configuration takes.

        lasts_s: (cells,) seconds for which each configuration lasts. A start or a move takes its share of
        that life: T (1 + c / L). It outlasts the sizes that come after it. A size is gone with the next one:
        after a change of c seconds e^(-c / L) of an exponential life is left, so that T becomes T e^(c / L).
        sizes_end: False: a change of size takes its share, too.
        """
        with np.errstate(invalid="ignore"):
            charged_s = alone_s * (lasts_s + self.change_s) / lasts_s
        if sizes_end:
            part = np.minimum(self.change_s / lasts_s, MOST_PART)
            charged_s = np.where(self.resizes, alone_s * np.exp(part), charged_s)
        return np.where(np.isfinite(alone_s), charged_s, np.inf)

    def with_returns_s(
        self, alone_s: FloatArray, snapshot: Snapshot, configs: ConfigurationSet, reclaims: float
    ) -> FloatArray:
        """(cells,) T where nodes on loan may be taken back, each for itself.

        reclaims: how often that is believed to happen, over what is foreseen.
        """
        busy = snapshot.placement.busy != 0
        per_s = reclaims * returns_per_s(snapshot.lenders, snapshot.cluster, busy)[configs.kind]
        if not per_s.any():
            return alone_s
        nodes = np.maximum(configs.gpus / snapshot.cluster.gpus_per_node[configs.kind], 1.0)
        can_run, row = np.isfinite(alone_s), configs.cells.row
        expected_s = with_returns_s(
            np.where(can_run, alone_s, 1.0), self.done_s[row], per_s * nodes, self.starts_s[row]
        )
        return np.where(can_run, expected_s, np.inf)
