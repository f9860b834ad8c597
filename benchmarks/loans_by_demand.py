"""Why does a service lend and take back more often than the simulator, with the same demand?

    python benchmarks/loans_by_demand.py

The scene is that of `live_against_sim.py --lyra-testbed`. Where all that a lender leaves is lent
(`lend.on_demand=false`), how many nodes are on loan follows from its demand and the forecast. No job has a
say in it. So both worlds can be repeated without any: when each settles, and what series it shows the
forecast. Prints (nodes lent, nodes returned), a difference switched on at a time.
"""

import argparse
from collections.abc import Iterable, Sequence
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.clusters.demand import read_demand
from stretto.experiments.lyra.testbed import SCHEMES, SERVERS, run_of
from stretto.experiments.spec import set_up
from stretto.lend.forecast import FORECASTS
from stretto.lend.lending import CapacityLoaning, lendable
from stretto.model import FloatArray, LenderState, floats, ints
from stretto.service.state.lender_records import LenderRecord
from stretto.sim.run import simulate

PUT_OFF_PERIODS = 8  # by which `live_against_sim.py --pace 150` puts everything off, so that a service is up
LATE_S = 1.5  # within which a report comes: the least between two looks at a feed, at that pace
DRAWS = 6  # of when reports come; chosen


def main() -> None:
    """Simulate the scene for the times of its jobs, then count changes of hands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    with TemporaryDirectory() as folder:
        run = run_of(SCHEMES["lyra"], Path(folder), seed)
        period_s, shares = read_demand(Path(run.settings["lend.demand"]))
        workload, setup = set_up(run)
    scene = Scene(period_s, setup.lenders[0].headroom)
    result = simulate(workload, setup)
    until_s = float(np.nanmax(result.completed_s))
    put_off_s = PUT_OFF_PERIODS * period_s
    later = np.concatenate((np.full(PUT_OFF_PERIODS, shares[0]), shares))
    of_jobs = [*(job.submitted_s + put_off_s for job in workload.jobs), *(result.completed_s + put_off_s)]
    print("as simulated:", scene.of_series(shares, until_s))
    print("everything later:", scene.of_series(later, until_s + put_off_s))
    print("and when jobs come and end:", scene.of_series(later, until_s + put_off_s, of_jobs))
    for name, times in (("reports late:", ()), ("reports late, when jobs come and end:", of_jobs)):
        draws = (scene.of_reports(later, until_s + put_off_s, times, draw) for draw in range(DRAWS))
        print(f"and {name}", *draws)


class Scene:
    """A lender, and when its loans are settled."""

    def __init__(self, period_s: float, headroom: float) -> None:
        self.period_s, self.headroom = period_s, headroom
        self.forecast = FORECASTS[CapacityLoaning().forecast]()

    def of_series(self, shares: FloatArray, until_s: float, more_s: Iterable[float] = ()) -> tuple[int, int]:
        """Settled every period on a grid, and at more times, by all periods so far."""
        times = sorted({*np.arange(0.0, until_s, self.period_s).tolist(), *more_s})
        shown = (shares[: int(at_s / self.period_s + 1e-9) + 1] for at_s in times if at_s <= until_s)
        return changes([self._on_loan(series) for series in shown])

    def of_reports(
        self, shares: FloatArray, until_s: float, more_s: Iterable[float], seed: int
    ) -> tuple[int, int]:
        """Settled at reports, every period and at more times; each looks back from its own moment."""
        rng, record = np.random.default_rng(seed), LenderRecord("inference", ("",) * SERVERS, self.headroom)
        changed = np.flatnonzero(np.diff(shares, prepend=nan) != 0)
        late_s = np.where(changed > 0, rng.uniform(0.0, LATE_S, len(changed)), 0.0)
        events = [
            (float(index * self.period_s + late), float(shares[index]))
            for index, late in zip(changed.tolist(), late_s.tolist(), strict=True)
        ]
        events += [(at_s, nan) for at_s in (*np.arange(self.period_s, until_s, self.period_s), *more_s)]
        levels = []
        for at_s, share in sorted(events, key=lambda event: event[0]):
            if at_s > until_s:
                break
            if not isnan(share):
                record.report(share * SERVERS, at_s)
            levels.append(self._on_loan(record.demand(at_s, self.period_s, SERVERS)))
        return changes(levels)

    def _on_loan(self, demand: FloatArray) -> int:
        nodes = ints(range(SERVERS))
        return lendable(
            LenderState("inference", nodes, self.headroom, self.period_s, floats(demand), nan), self.forecast
        )


def changes(on_loan: Sequence[int]) -> tuple[int, int]:
    """(nodes lent, nodes returned) while so many are on loan, one settlement after the other."""
    steps = np.diff([0, *on_loan])
    return int(np.maximum(steps, 0).sum()), int(np.maximum(-steps, 0).sum())


if __name__ == "__main__":
    main()
