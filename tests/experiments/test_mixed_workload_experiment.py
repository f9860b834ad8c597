"""`reproduce one-for-all`: every policy by the metric of every class of jobs."""

from pathlib import Path

import numpy as np
import pytest

from stretto.experiments.causes import NOTHING
from stretto.experiments.one_for_all import mixed, mixed_causes
from stretto.experiments.one_for_all.parts import PARTS
from stretto.experiments.reproduction import Request
from stretto.experiments.spec import run_spec


def of_seed(**values: float) -> dict[tuple[str, str], float]:
    """Figures of one run: equal but for those given."""
    return {(kind, metric): values.get(kind, 50.0) for kind, metric in mixed.OF_CLASSES.items()}


def test_behind_is_measured_from_the_best_mean_of_each_class() -> None:
    behind = mixed.behind_of(
        {
            "one": [of_seed(elastic=100.0, rigid=400.0), of_seed(elastic=100.0, rigid=600.0)],
            "two": [of_seed(elastic=110.0, rigid=400.0), of_seed(elastic=130.0, rigid=400.0)],
        }
    )
    assert behind["one"]["elastic"] == 0
    assert behind["two"]["elastic"] == pytest.approx(20.0)
    assert behind["one"]["rigid"] == pytest.approx(25.0)
    assert behind["one"]["soft"] == behind["two"]["soft"] == 0


def test_policies_are_compared_on_workloads_that_both_have() -> None:
    behind = mixed.behind_of(
        {
            "one": [of_seed(elastic=100.0), of_seed(elastic=300.0)],
            "two": [of_seed(elastic=80.0)],
            "three": [of_seed(elastic=120.0), of_seed(elastic=120.0)],
        }
    )
    assert behind["one"]["elastic"] == pytest.approx(100.0 * (200.0 / 120.0 - 1.0))
    assert behind["two"]["elastic"] == 0
    assert behind["three"]["elastic"] == pytest.approx(50.0)


def test_waits_of_less_than_a_second_and_one_miss_in_a_hundred_are_none() -> None:
    behind = mixed.behind_of(
        {
            "one": [of_seed(session=0.0, strict=0.0)],
            "two": [of_seed(session=0.9, strict=1.0)],
            "three": [of_seed(session=3.0, strict=1.5)],
        }
    )
    assert behind["two"]["session"] == behind["two"]["strict"] == 0
    assert behind["three"]["session"] == pytest.approx(200.0)
    assert behind["three"]["strict"] == pytest.approx(50.0)


def test_figures_of_a_run_are_those_of_its_jobs(tmp_path: Path) -> None:
    queues = tmp_path / "queues.yaml"
    queues.write_text(mixed.QUEUES, encoding="utf-8")
    result = run_spec(mixed.spec_of("fifo", 40, 0, queues))
    figures = mixed.figures_of(result)
    kinds = np.array([job.id.partition("-")[0] for job in result.requests.jobs])
    assert result.done.all()
    assert figures["all jobs", "avg_jct_s"] == pytest.approx(result.jct_s.mean())
    assert figures["elastic", "avg_jct_s"] == pytest.approx(result.jct_s[kinds == "elastic"].mean())
    late = (result.completed_s > result.requests.deadline_s)[kinds == "strict"]
    assert figures["strict", "missed_percent"] == pytest.approx(100 * late.mean())
    assert ("lender", "lender_shortfall_server_s") in figures


@pytest.mark.long
def test_the_table_names_the_worst_class_of_each_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The search of pollux takes twenty times as long as all others together.
    policies = tuple(policy for policy in mixed.POLICIES if policy != "pollux")
    monkeypatch.setattr(mixed, "POLICIES", policies)
    monkeypatch.setattr(mixed, "JOBS", {"little": 20})
    _, rows, notes = mixed.one_for_all(Request(None, scale=0.1, workers=1))
    worst = {row.row: row.ours for row in rows if row.row.endswith("worst class")}
    assert set(worst) == {f"little, {policy}: worst class" for policy in policies}
    assert min(value for value in worst.values() if value is not None) >= 0
    assert "1 made workloads" in notes[0]


@pytest.mark.slow
@pytest.mark.long
def test_a_part_that_is_left_out_changes_no_other_policy_at_any_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mixed, mixed_causes):
        monkeypatch.setattr(module, "JOBS", dict(zip(mixed_causes.LOADS, (12, 14), strict=True)))
    monkeypatch.setattr(mixed, "POLICIES", ("stretto", "sia"))
    monkeypatch.setattr(mixed_causes, "PARTS", PARTS[:2])
    monkeypatch.setattr(mixed_causes, "WORLDS", mixed_causes.WORLDS[-1:])
    request = Request(None, scale=0.1, workers=1)
    series = mixed_causes.one_for_all(request)
    names = [figure.row for figure in series.figures]
    by_name = {
        row.what: dict(zip(names, [value.ours for value in row.values], strict=True))
        for row in series.switched
    }
    table = {(row.row, row.metric): row.ours for row in mixed.one_for_all(request)[1]}
    for figure, value in zip(series.figures, series.switched[0].values, strict=True):
        assert (figure.row, figure.metric) not in table or table[figure.row, figure.metric] == value.ours
    part, world = by_name[PARTS[0].what], by_name[mixed_causes.WORLDS[0].what]
    for load in mixed_causes.LOADS:
        itself, beside = f"{load}, stretto over itself unswitched: all jobs", f"{load}, sia: all jobs"
        assert by_name[NOTHING][itself] == 1.0
        assert part[itself] != 1.0
        assert part[beside] == by_name[NOTHING][beside]
        assert world[beside] != by_name[NOTHING][beside]
