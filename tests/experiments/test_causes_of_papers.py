"""The series of switched assumptions of a table begins with its figures, and switches something."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stretto.estimate.placement_runtime import iteration_s
from stretto.experiments.causes import NOTHING, Series
from stretto.experiments.cornucopia import comparison as cornucopia
from stretto.experiments.one_for_all import specialists
from stretto.experiments.ones import causes as ones_causes
from stretto.experiments.ones import comparison as ones
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Request
from stretto.experiments.sia import causes as sia_causes
from stretto.experiments.sia import figures as sia_figures
from stretto.experiments.sia import workloads as sia
from stretto.experiments.spec import RunSpec, run_spec
from stretto.experiments.unisched import causes as unisched_causes
from stretto.experiments.unisched import comparison as unisched
from stretto.experiments.unisched import measured, runs
from stretto.sim.result import Result

FEW: dict[ModuleType, dict[str, object]] = {
    cornucopia: {"LEAST_JOBS": 60, "CLUSTERS": (320,), "VENUS_CLUSTERS": (256,)},
    ones: {"LEAST_JOBS": 8, "SEEDS": range(1), "GPUS": (16,)},
    ones_causes: {"SEEDS": range(1), "GPUS": (16,)},
    sia: {"LEAST_JOBS": 20},
    specialists: {"LYRA_WINDOW": 0.01, "LYRA_SEEDS": (1, 2), "VENUS_SEEDS": (0, 1), "TESTBED_SEEDS": (0, 1)},
    sia_figures: {"RATES_PER_H": (10,), "ARRIVALS_H": 1},
    sia_causes: {"RATES_PER_H": (10,)},
    runs: {"LEAST_JOBS": 60, "HELIOS": ("H_MIX2",)},
    unisched: {
        "SEEDS": range(1),
        "TESTBED_FIGURES": {40: (4.97, 266.39)},
        "FEWER_JOBS": (),
        "DENSITIES": (1.0,),
    },
    unisched_causes: {
        "SEEDS": range(1),
        "TESTBED_FIGURES": {40: (4.97, 266.39)},
        "HELIOS": ("H_MIX2",),
        "OF_FIGURE12": ("H_MIX2",),
        "DENSITIES": (1.0,),
    },
}
# That of one-for-all is no paper's, and is held against its table in test_mixed_workload_experiment.py.
OF_SIMULATIONS = [
    name for name, one in EXPERIMENTS.items() if one.causes and one.simulations and name != "one-for-all"
]
SCALE, DRAWS = 0.01, 4
# So few jobs hardly wait on these clusters, so that no switch changes what is simulated of them.
WHOLE_ONLY = ("cornucopia-fig1", "cornucopia-fig4", "cornucopia-fig9", "sia-fig10")


@pytest.fixture(autouse=True)
def a_few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in FEW.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


@dataclass(frozen=True)
class Drawn(Request):
    """Draws what came of each run from its words: the same words have the same figures, others have not.

    Nothing is simulated: no policy decides. What is left is which runs a series asks for, and what it makes
    of them.
    """

    salt: int = 0  # another one, another draw

    def run(self, specs: Sequence[RunSpec], workers: int | None = None) -> list[Result]:
        return [drawn(spec, self.salt) for spec in specs]


def drawn(spec: RunSpec, salt: int) -> Result:
    """Each job waits, runs and is stopped as chance has it; the chance comes from the words of the run."""
    result = arrivals(spec.cluster, spec.trace, spec.window)
    jobs = len(result.completed_s)
    chance = np.random.default_rng([salt, *sha256(repr(spec).encode()).digest()])
    waited_s, ran_s = chance.exponential(3_600.0, jobs), chance.exponential(36_000.0, jobs)
    submitted_s = result.requests.submitted_s
    return replace(
        result,
        completed_s=submitted_s + waited_s + ran_s,
        first_start_s=submitted_s + waited_s / 2,
        executed_s=ran_s,
        restarts=chance.integers(0, 9, jobs),
    )


@cache
def arrivals(cluster: str, trace: str, window: float) -> Result:
    """The jobs of a trace under the policy that is quickest to simulate."""
    return run_spec(RunSpec(cluster, trace, "fifo", window=window))


def held_against_its_table(name: str, request: Request) -> Series:
    """The series of a table, once its first row is known to have the figures of the table."""
    experiment = EXPERIMENTS[name]
    assert experiment.causes is not None
    series: Series = experiment.causes(request)
    assert series.switched[0].what == NOTHING
    names = [row.what for row in series.switched]
    assert len(set(names)) == len(names)
    assert {len(row.values) for row in series.switched} == {len(series.figures)}
    table = {(row.row, row.metric): row for row in experiment.make(request)[1]}
    compared = 0
    for figure, value in zip(series.figures, series.switched[0].values, strict=True):
        row = table.get((figure.row, figure.metric))
        if row is not None and row.ours is not None and value.ours is not None:
            assert value.ours == pytest.approx(row.ours)
            assert row.paper in (None, figure.paper)
            compared += 1
    assert compared
    return series


def changed(series: Series) -> dict[str, bool]:
    """By what is switched: whether any figure comes out otherwise."""
    first = [value.ours for value in series.switched[0].values]
    return {row.what: [value.ours for value in row.values] != first for row in series.switched[1:]}


@pytest.mark.long
@pytest.mark.parametrize("name", OF_SIMULATIONS)
def test_a_series_begins_with_the_figures_of_its_table_and_every_switch_is_another_run(name: str) -> None:
    # Of few jobs as many may be late in another run, too. In each of so many draws they hardly are.
    draws = [Drawn(data=None, scale=SCALE, workers=1, salt=salt) for salt in range(DRAWS)]
    by_draw = [changed(held_against_its_table(name, draw)) for draw in draws]
    switches = list(by_draw[0])
    assert switches
    assert [what for what in switches if not any(of[what] for of in by_draw)] == []


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in OF_SIMULATIONS if name not in WHOLE_ONLY])
def test_something_comes_of_switching_an_assumption(name: str) -> None:
    series = held_against_its_table(name, Request(data=None, scale=SCALE, workers=1))
    assert any(changed(series).values()), "else the series says nothing"


def test_a_ring_and_a_constant_exchange_agree_with_equation_2_on_two_gpus() -> None:
    for equation in (measured.ring_s, measured.constant_s):
        took_s = equation(1.0, 0.2, 0.5, np.array([1, 2, 2]), np.array([True, True, False]))
        assert took_s == pytest.approx([1.0, 1.2, 1.5])
    assert measured.ring_s(1.0, 0.2, 0.5, 8, True) == pytest.approx(1.35)
    assert measured.constant_s(1.0, 0.2, 0.5, 8, True) == pytest.approx(1.2)


def test_measured_iterations_are_read_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_DATA", str(tmp_path))
    assert measured.measured_steps_s() is None
    (tmp_path / "chronus").mkdir()
    (tmp_path / "chronus" / "iteration_time_summary.csv").write_text(
        "set,family,model,gpus,median_s\n"
        "stats,gan,gan,1,1.0\nstats,gan,gan,2,1.1\nstats,gan,gan,4,1.3\n"
        "stats,gan,gan,8,1.7\nstats,gan,gan,16,2.0\nstats-2,gan,gan,1,9.0\nstats,vgg,vgg16,1,9.0\n"
    )
    steps_s = measured.measured_steps_s()
    assert steps_s == {"gan": {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.7, 16: 2.0}}
    errors = measured.measured_errors(steps_s, iteration_s)
    assert errors == pytest.approx([0.0, 0.0, 0.25])
