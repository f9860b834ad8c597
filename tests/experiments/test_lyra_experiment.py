from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.clusters import read_cluster_file
from stretto.clusters.demand import made_demand
from stretto.experiments.lyra import lending, policies, runs, scaling, tables, testbed
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
        *(f"lyra-table{number}" for number in (5, 6, 7, 8, 9, 10)),
        *(f"lyra-fig{number}" for number in (7, 8, 9, 10, 11, 12, 13, 14, 16)),
        "lyra-forecast",
        "lyra-table5-percentiles",
        "lyra-reclaims",
    }


def test_reductions_are_the_papers_own() -> None:
    baseline = TABLE_5[BASELINE]
    at = METRICS.index("avg_jct_s")
    assert (baseline[at] or 0.0) / (TABLE_5["2 lyra, basic"][at] or 1.0) == pytest.approx(1.48, abs=0.005)
    assert (baseline[0] or 0.0) / (TABLE_5["2 lyra, basic"][0] or 1.0) == pytest.approx(1.53, abs=0.005)


@pytest.mark.long
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


@pytest.mark.slow
def test_opportunistic_jobs_are_all_jobs_in_two_queues() -> None:
    (drawn,) = run_schemes(MADE, {"opportunity": policies.OPPORTUNITY}, seeds=(1,))
    others, fungible = results = drawn["opportunity"]
    jobs = len(others.requests.jobs) + len(fungible.requests.jobs)
    assert jobs == round(runs.JOBS * runs.LEAST_SERVERS / 443)
    assert {job.gpu_types for job in fungible.requests.jobs} == {("t4",)}
    assert {job.gpu_types for job in others.requests.jobs} == {("v100",)}
    figure = figures(MADE, results)
    assert figure["avg_jct_s"] * jobs == pytest.approx(sum(float(one.jct_s.sum()) for one in results))


def test_a_smaller_cluster_keeps_the_proportions() -> None:
    (drawn,) = run_schemes(MADE, {"fifo": (Scheme("fifo"),)}, seeds=(0,))
    nodes = drawn["fifo"][0].cluster.nodes
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


def test_every_seed_has_a_trace_and_a_series_of_its_own(tmp_path: Path) -> None:
    scheme = TABLE_5_SCHEMES["9 loaning: lyra"][0]
    made = [set_up(runs.spec_of(MADE, scheme, tmp_path, seed)) for seed in (0, 1)]
    first, second = ([(job.submitted_s, job.gpus) for job in workload.jobs] for workload, _ in made)
    assert first != second
    of_first, of_second = (setup.lenders[0].demand for _, setup in made)
    assert not np.array_equal(of_first, of_second)


def test_a_table_is_made_of_several_traces_with_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "JOBS", 200)
    sources, rows, remarks = tables.table9(Request(data=None, scale=0.5, workers=1))
    assert sources[0].what.startswith("2 traces of ")
    assert remarks[0].startswith("2 made traces, of seeds 0, 1;")
    values = {(row.row, row.metric): row for row in rows}
    assert values["baseline / 20% wrong", "avg_jct_s"].paper == 1.52
    assert values["baseline / 20% wrong", "avg_jct_s_plus_minus"].ours is not None


@pytest.mark.torch
def test_all_forecasts_but_the_oracle_are_held_against_the_same_series() -> None:
    _, rows, remarks = lending.forecasts(Request(data=None, scale=0.05))
    errors = {row.row: (row.paper, row.ours) for row in rows}
    assert list(errors) == ["learned", "last", "lstm"]
    assert errors["lstm"][0] == 0.00048
    assert all(0 < (ours or 0.0) < 0.01 for _, ours in errors.values())
    assert remarks[0].startswith("the last 72 values")


@pytest.mark.long
def test_table_7_is_about_the_jobs_that_ran_on_loan_and_the_same_jobs_without_loans() -> None:
    values = ours(lending.table7(MADE))
    own, lent = (
        values[f"lyra, {first}", "share_of_jobs_on_loan"] or 0.0 for first in ("own first", "lent first")
    )
    assert own < lent <= 0.21 + 0.01  # fungible jobs alone
    assert values["baseline / lyra, lent first", "avg_jct_s"] == pytest.approx(
        (values["baseline, lent first", "avg_jct_s"] or 0.0)
        / (values["lyra, lent first", "avg_jct_s"] or 1.0)
    )


@pytest.mark.long
def test_the_other_trace_is_calibrated_to_percentiles_and_has_rows_of_both_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "OF_BOTH_TABLES", (BASELINE, "9 loaning: lyra", "11 scaling: afs"))
    _, rows, remarks = tables.table5_percentiles(MADE)
    values = {(row.row, row.metric): row for row in rows}
    assert values[BASELINE, "p99_queue_s"].paper == 14_323
    assert values["9 loaning: lyra", "usage_on_loan"].bound == "at least"
    assert 0 < (values["9 loaning: lyra", "usage_on_loan"].ours or 0.0) <= 1
    assert ("11 scaling: afs", "usage_on_loan") not in values
    assert values["baseline / 9 loaning: lyra", "avg_queue_s"].paper == pytest.approx(3_072 / 2_212)
    assert any("confirms anything" in remark for remark in remarks)


@pytest.mark.long
def test_loans_are_used_more_where_fungible_jobs_go_there_first_and_most_on_demand() -> None:
    rows = lending.figure9(MADE)[1]
    means = {
        name: np.mean([row.ours or 0.0 for row in rows if row.row.startswith(f"{name}, day")])
        for name in ("own first", "lent first", "lent first, on demand")
    }
    assert means["own first"] < means["lent first"] < means["lent first, on demand"] <= 1


@pytest.mark.long
def test_a_reclaim_is_satisfied_in_part_by_servers_without_base_workers() -> None:
    shares = ours(lending.reclaims(MADE))
    assert all(0 < (shares[name, "spared_share"] or 0.0) <= 1 for name in ("basic", "ideal"))


@pytest.mark.long
def test_usage_by_the_hour_is_a_share_and_rises_with_lyra() -> None:
    values = ours(tables.figure7(MADE))
    hours = [value for (row, metric), value in values.items() if metric.startswith("usage_hour")]
    assert len(hours) == 3 * 48
    assert all(0 < (value or 0.0) <= 1 for value in hours)
    assert values["basic - baseline", "largest_rise"] == pytest.approx(
        max(
            (values["basic", f"usage_hour_{hour:02d}"] or 0.0)
            - (values[BASELINE, f"usage_hour_{hour:02d}"] or 0.0)
            for hour in range(48)
        )
    )


@pytest.mark.long
def test_what_each_worker_loses_makes_jobs_slower() -> None:
    values = ours(tables.figure8(MADE))
    assert (values["ideal: a fifth less / linear", "avg_jct_s"] or 0.0) > 1.0


@pytest.mark.long
def test_the_traces_of_figure_12_are_days_of_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TRACES", 2)
    values = ours(tables.figure12(MADE))
    each = [
        values["baseline / basic, trace 0", "avg_jct_s"],
        values["baseline / basic, trace 1", "avg_jct_s"],
    ]
    assert values["baseline / basic", "avg_jct_s"] == pytest.approx(sum(one or 0.0 for one in each) / 2)
    assert values["baseline / basic", "avg_jct_s_plus_minus"] is not None


def test_table_8_has_four_percentiles_of_every_scheme_and_pollux_beside_its_own_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        scaling, "POLLUX", Scheme("fifo", policies.TUNED, settings=policies.FIFO, share=0.125)
    )
    values = ours(scaling.table8(MADE))
    for name in scaling.TABLE_8:
        percentiles = [values[name, f"p{percent}_jct_s"] or 0.0 for percent in (50, 75, 95, 99)]
        assert percentiles == sorted(percentiles)
        assert percentiles[0] > 0
    assert values[f"baseline / {policies.EIGHTH}", "p99_jct_s"] == 1.0  # the same policy on the same jobs


@pytest.mark.slow
def test_the_testbed_lends_three_of_its_four_servers_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "SCHEMES", {**testbed.SCHEMES, "scaling: pollux": Scheme("fifo")})
    values = ours(testbed.table10(Request(data=None, scale=0.1, workers=1)))
    for name in testbed.TABLE_10:
        assert all(values[name, metric] is not None for metric in testbed.METRICS)
    assert values["lyra", "most_on_loan"] == 3
    assert (values["baseline / lyra", "avg_jct_s"] or 0.0) > 1
