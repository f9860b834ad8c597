from dataclasses import replace
from pathlib import Path

import pytest

from stretto.clusters import read_cluster_file
from stretto.clusters.demand import made_demand
from stretto.experiments.lyra import lending, policies, runs, tables
from stretto.experiments.lyra.policies import BASELINE, TABLE_5_SCHEMES
from stretto.experiments.lyra.runs import Scheme, figures, run_schemes
from stretto.experiments.lyra.tables import METRICS, TABLE_5, table5
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Made, Request
from stretto.experiments.spec import set_up
from stretto.traces.lyra import CALIBRATED

pytestmark = pytest.mark.slow

MADE = Request(data=None, scale=0.001, workers=1)
FEW = {name: TABLE_5_SCHEMES[name] for name in (BASELINE, "9 loaning: lyra")}


@pytest.fixture(autouse=True)
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "JOBS", 1_500)  # on all of the 55 servers that are left of the cluster


def ours(made: Made) -> dict[tuple[str, str], float | None]:
    return {(row.row, row.metric): row.ours for row in made[1]}


def test_the_tables_can_be_made_by_name() -> None:
    assert {name for name in EXPERIMENTS if name.startswith("lyra-")} == {
        f"lyra-{name}" for name in ("table5", "table6", "table9", "fig10", "fig13", "fig14", "forecast")
    }


def test_reductions_are_the_papers_own() -> None:
    baseline = TABLE_5[BASELINE]
    at = METRICS.index("avg_jct_s")
    assert (baseline[at] or 0.0) / (TABLE_5["2 lyra, basic"][at] or 1.0) == pytest.approx(1.48, abs=0.005)
    assert (baseline[0] or 0.0) / (TABLE_5["2 lyra, basic"][0] or 1.0) == pytest.approx(1.53, abs=0.005)


def test_table_5_has_all_figures_of_every_scheme_and_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TABLE_5_SCHEMES", FEW)
    monkeypatch.setattr(tables, "TABLE_5", {name: TABLE_5[name] for name in FEW})
    monkeypatch.setattr(tables, "POLLUX", Scheme("fifo"))
    made = table5(MADE)
    values = ours(made)
    for name in FEW:
        assert all(values[name, metric] is not None for metric in METRICS)
        assert 0 < (values[name, "usage_training"] or 0.0) <= 1
    factor = values["baseline / 9 loaning: lyra", "avg_jct_s"]
    assert factor == pytest.approx(
        (values[BASELINE, "avg_jct_s"] or 0.0) / (values["9 loaning: lyra", "avg_jct_s"] or 1.0)
    )
    assert any("scale of 0.124" in note for note in made[2])  # what is run, not what was asked for
    assert not any(one.real for one in made[0])


def test_pollux_may_give_the_largest_job_what_it_asks_for() -> None:
    largest = max(size for sizes in (CALIBRATED.sizes, CALIBRATED.long_sizes) for size, _ in sizes)
    assert int(policies.POLLUX.settings["policy.most_gpus"]) == largest <= 8 * runs.LEAST_SERVERS


def test_opportunistic_jobs_are_all_jobs_in_two_queues() -> None:
    (results,) = run_schemes(MADE, {"opportunity": policies.OPPORTUNITY}).values()
    others, fungible = results
    jobs = len(others.requests.jobs) + len(fungible.requests.jobs)
    assert jobs == round(runs.JOBS * runs.LEAST_SERVERS / 443)
    assert {job.gpu_types for job in fungible.requests.jobs} == {("t4",)}
    assert {job.gpu_types for job in others.requests.jobs} == {("v100",)}
    figure = figures(MADE, results)
    assert figure["avg_jct_s"] * jobs == pytest.approx(sum(float(one.jct_s.sum()) for one in results))


def test_a_smaller_cluster_keeps_the_proportions() -> None:
    (results,) = run_schemes(MADE, {"fifo": (Scheme("fifo"),)}).values()
    nodes = results[0].cluster.nodes
    full = read_cluster_file("lyra").cluster.nodes
    share = sum(bool(node.lender) for node in nodes) / len(nodes)
    assert share == pytest.approx(sum(bool(node.lender) for node in full) / len(full), abs=0.01)
    assert sum(not node.lender for node in nodes) == runs.LEAST_SERVERS


@pytest.mark.parametrize("scale", [1.0, 0.25, 0.125])
def test_runs_of_usual_sizes_name_clusters_that_come_with_the_package(scale: float, tmp_path: Path) -> None:
    scheme = TABLE_5_SCHEMES["9 loaning: lyra"][0]
    spec = runs.spec_of(Request(data=None, scale=scale), scheme, tmp_path, 0)
    _, setup = set_up(replace(spec, trace="synthetic-philly:jobs=2"))
    servers = sum(not node.lender for node in setup.cluster.nodes)
    assert servers == round(443 * scale)
    assert len(setup.lenders[0].demand) == runs.REPEATS * len(made_demand())
    assert not list(tmp_path.iterdir())  # nothing that would be gone afterwards


@pytest.mark.torch
def test_all_forecasts_but_the_oracle_are_held_against_the_same_series() -> None:
    _, rows, remarks = lending.forecasts(Request(data=None, scale=0.05))
    errors = {row.row: (row.paper, row.ours) for row in rows}
    assert list(errors) == ["learned", "last", "lstm"]
    assert errors["lstm"][0] == 0.00048
    assert all(0 < (ours or 0.0) < 0.01 for _, ours in errors.values())
    assert remarks[0].startswith("the last 72 values")
