"""The series of switched assumptions of a table begins with its figures, and switches something."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stretto.estimate.placement_runtime import iteration_s
from stretto.experiments.causes import NOTHING, Series
from stretto.experiments.cornucopia import comparison as cornucopia
from stretto.experiments.ones import causes as ones_causes
from stretto.experiments.ones import comparison as ones
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Request
from stretto.experiments.sia import workloads as sia
from stretto.experiments.unisched import causes as unisched_causes
from stretto.experiments.unisched import comparison as unisched
from stretto.experiments.unisched import measured, runs

FEW: dict[ModuleType, dict[str, object]] = {
    cornucopia: {"LEAST_JOBS": 25},
    ones: {"LEAST_JOBS": 8, "SEEDS": range(1), "GPUS": (16,)},
    ones_causes: {"SEEDS": range(1), "GPUS": (16,)},
    sia: {"LEAST_JOBS": 8},
    runs: {"LEAST_JOBS": 25, "HELIOS": ("H_MIX2",)},
    unisched: {"SEEDS": range(1), "TESTBED_FIGURES": {40: (4.97, 266.39)}, "FEWER_JOBS": ()},
    unisched_causes: {"SEEDS": range(1), "TESTBED_FIGURES": {40: (4.97, 266.39)}, "HELIOS": ("H_MIX2",)},
}
OF_SIMULATIONS = [name for name, one in EXPERIMENTS.items() if one.causes and one.simulations]


@pytest.fixture(autouse=True)
def a_few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in FEW.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


@pytest.mark.heavy
@pytest.mark.parametrize("name", OF_SIMULATIONS)
def test_a_series_begins_with_the_figures_of_its_table(name: str) -> None:
    experiment = EXPERIMENTS[name]
    request = Request(data=None, scale=0.01, workers=1)
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
    # Something comes out otherwise for some switch, or the series says nothing. So few jobs never wait on
    # the clusters of Cornucopia, whatever is switched.
    first = [value.ours for value in series.switched[0].values]
    changed = [[value.ours for value in row.values] != first for row in series.switched[1:]]
    assert any(changed) or name.startswith("cornucopia")


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
