"""From settings and a cluster file to the lenders, how much they need themselves, and the rule of lending."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from stretto.clusters.demand import PERIOD_S, made_demand, read_demand
from stretto.clusters.parse import ClusterFile, Lender
from stretto.lend import CapacityLoaning
from stretto.model import FloatArray, InputError
from stretto.settings import settings_of
from stretto.sim.lenders import SimulatedLender
from stretto.suggestions import did_you_mean
from stretto.traces.datasets import data_folder

MADE = "synthetic"  # instead of a file: demand made with the seed of the run
MOST_TIMES = 1_000  # chosen: a slip should not fill the memory


def lending_of(
    settings: Mapping[str, str], file: ClusterFile, seed: int, beside: Path, former: bool = False
) -> tuple[CapacityLoaning | None, tuple[SimulatedLender, ...]]:
    """The rule and the lenders; none of both where no setting of `lend` is given.

    `lend.demand` is a file, the name of one among the public data sets of inference demand, or `synthetic`.
    It holds for every lender, before what the cluster file says. What that says is a path from `beside`, the
    folder of the cluster file, or a name likewise. `lend.repeat` is how many times the series comes, one
    after the other. After the last, demand stays what it is. former: settings that are not given mean what
    they did when the usual values were others. InputError for what is wrong.
    """
    if not settings:
        return None, ()
    if not file.lenders:
        raise InputError(f"lend.{next(iter(settings))}: cluster {file.cluster.name} has no lenders")
    names = (*(entry.name for entry in fields(CapacityLoaning) if entry.init), "demand", "repeat")
    for name in settings:
        if name not in names:
            raise InputError(f"unknown setting lend.{name}, {did_you_mean(name, names)}")
    chosen = {**(CapacityLoaning.former if former else {}), **settings}
    demand = chosen.pop("demand", "")
    repeat = _times(chosen.pop("repeat", "1"))
    lending = CapacityLoaning(**settings_of(CapacityLoaning, chosen, space="lend"))
    return lending, tuple(
        _simulated(lender, file, demand or _own_demand(lender, beside), seed, repeat)
        for lender in file.lenders
    )


def _times(given: str) -> int:
    if given.isdecimal() and 1 <= int(given) <= MOST_TIMES:
        return int(given)
    raise InputError(f"lend.repeat must be a whole number from 1 to {MOST_TIMES}, got {given!r}")


def _own_demand(lender: Lender, beside: Path) -> str:
    path = beside / lender.demand
    return str(path) if lender.demand and path.is_file() else lender.demand


def _simulated(lender: Lender, file: ClusterFile, demand: str, seed: int, repeat: int) -> SimulatedLender:
    nodes = [row for row, node in enumerate(file.cluster.nodes) if node.lender == lender.name]
    if not demand:
        raise InputError(
            f"lender {lender.name}: expected its demand over time, a file or {MADE!r}, "
            "as lend.demand or in the cluster file"
        )
    period_s, share = (PERIOD_S, made_demand(seed=seed)) if demand == MADE else _read(demand)
    servers = np.array(nodes, dtype=np.int64)
    source = demand if repeat == 1 else f"{demand}, {repeat} times"
    return SimulatedLender(
        lender.name, servers, lender.headroom, period_s, np.tile(share, repeat), source=source
    )


def _read(demand: str) -> tuple[float, FloatArray]:
    if Path(demand).exists():
        return read_demand(Path(demand))
    folder = data_folder(None)
    for ending in (".csv", ".csv.gz"):
        if folder is not None and (folder / "inference" / f"{demand}{ending}").exists():
            return read_demand(folder / "inference" / f"{demand}{ending}")
    raise InputError(
        f"demand {demand!r}: expected a file, {MADE!r}, "
        "or a series in the folder inference of the public data sets"
    )
