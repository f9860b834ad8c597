"""Whatever scripts report, decisions can be made of it."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.service.scene import Scene

from stretto.model import InputError, Point, Trigger, View
from stretto.scheduler.round import decide
from stretto.service.eventlog.archive import record_of, row_of
from stretto.service.scheduling.estimates import observations_of
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.events import Configured, Ended, Reported
from stretto.service.state.messages import progress_in_words
from stretto.service.state.reported_metrics import LARGEST_REPORT, checked_report
from stretto.service.state.status import status_of
from stretto.testing.builders import a_cluster

GOOD: dict[str, Any] = {
    "step": 40,
    "epoch": 2,
    "samples": 2560,
    "dataset_samples": 1437,
    "progress_steps": 40.0,
    "points": [[1, 1, 64, 1, 0.02, 0.021]],
    "grad_sqr": 0.5,
    "grad_var": 1.5,
    "init_batch": 64,
    "max_batch": 64,
    "max_local": None,
    "loss": 0.3,
    "metric": 0.9,
    "metrics": {"accuracy": 0.9, "val_loss": 0.4},
    "epoch_metrics": [0.8, 0.9],
    "batch": 64,
    "left_s": 12.5,
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
EVERY_VIEW = frozenset(View)
SIA = scheduler_of(Configured("sia"))


def observed(report: dict[str, Any]) -> None:
    """Every view is shown, and Sia decides, after a report."""
    scene = Scene(1)
    scene.submit("1", elastic=(1, 4), model="m")
    scene.tell(Reported("1", checked_report(report)))
    scene.submit("2", elastic=(1, 4), model="m")
    due = frozenset({Trigger.ROUND})
    SnapshotBuilder(EVERY_VIEW).observe(scene.state, 1.0, due)
    decide(SnapshotBuilder(SIA.policy.views).observe(scene.state, 1.0, due), SIA)


def test_what_the_kit_reports_is_kept_whole_and_can_be_looked_at() -> None:
    assert checked_report({"worker": "1.1.0", **GOOD}) == GOOD
    observed(GOOD)


@pytest.mark.parametrize("key", sorted(GOOD))
@pytest.mark.parametrize("value", ["x", {"total": 3}, [[1]], -1.5, True, 2**70])
def test_what_is_not_of_its_kind_is_left_out_and_breaks_nothing(key: str, value: object) -> None:
    report = checked_report({**GOOD, key: value})
    is_another_metric = key == "metrics" and value == {"total": 3}
    assert report.get(key) != value or key in ("loss", "metric") or is_another_metric
    observed({**GOOD, key: value})


def test_numbers_that_are_none_are_left_out() -> None:
    assert checked_report({"loss": nan, "metric": inf, "step": 3}) == {"step": 3}


@pytest.mark.parametrize(
    "metrics", [{"accuracy": "high"}, {"accuracy": True}, {"": 1.0}, {"a" * 1025: 1.0}, {"a": [1.0]}, [0.9]]
)
def test_metrics_that_are_no_numbers_with_names_are_left_out(metrics: object) -> None:
    assert checked_report({"step": 3, "metrics": metrics}) == {"step": 3}


def test_metrics_are_shown_by_their_names_also_once_the_job_has_ended() -> None:
    scene = Scene(1)
    record = scene.submit("1", elastic=(1, 4))
    scene.tell(Reported("1", checked_report({**GOOD, "metrics": {"accuracy": 0.93}})))
    assert status_of(scene.state, record, 1.0).progress["metrics"] == {"accuracy": 0.93}
    scene.tell(Ended("1", "COMPLETED", 0))
    again = record_of(row_of(record))
    assert status_of(scene.state, again, 2.0).progress["metrics"] == {"accuracy": 0.93}


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ({"step": 40, "metric": 0.93, "metrics": {"accuracy": 0.93}}, "step 40, accuracy 0.93"),
        ({"metric": 0.93}, "metric 0.93"),
        ({"loss": 0.5, "metrics": {"loss": 0.25}}, "loss 0.5, reported loss 0.25"),
        ({"loss": 0.51239, "metrics": {"val_loss": 0.25, "f1": 1.0}}, "loss 0.5124, val_loss 0.25, f1 1"),
        ({"metrics": {"accuracy": 0.999962}}, "accuracy 0.99996"),
        ({"metrics": {"accuracy": 1.0000001}}, "accuracy 1.0000001"),
        (
            {"metrics": {"reward": 123456.7, "tokens": 2e6, "tiny": 1.23456e-7}},
            "reward 123456.7, tokens 2000000, tiny 1.235e-07",
        ),
        ({"metrics": {"huge": 1.5e300, "below": -0.99999}}, "huge 1.5e+300, below -0.99999"),
    ],
)
def test_progress_is_said_by_name_and_no_rounding_makes_a_whole_number(
    progress: dict[str, Any], words: str
) -> None:
    assert ", ".join(f"{name} {value}" for name, value in progress_in_words(progress).items()) == words


@settings(max_examples=scaled(60), deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "finished", "epoch_end", "other"]), ANYTHING))
def test_no_report_breaks_a_decision(report: dict[str, Any]) -> None:
    observed(report)


def test_a_report_of_too_many_entries_is_refused() -> None:
    with pytest.raises(InputError, match="at most 64 entries, got 65"):
        checked_report({str(number): 1 for number in range(LARGEST_REPORT + 1)})


@pytest.mark.parametrize(
    ("passes", "grad_s", "step_s", "expected"),
    [
        pytest.param(1, 0.020, 0.025, (0.020, 0.025), id="one pass is the step"),
        pytest.param(3, 0.020, 0.065, (0.020, 0.025), id="only the last of three synchronises"),
        pytest.param(1, 0.021, 0.020, (0.020, 0.020), id="a pass measured longer than a step"),
    ],
)
def test_what_a_step_took_becomes_what_its_last_pass_took(
    passes: int, grad_s: float, step_s: float, expected: tuple[float, float]
) -> None:
    scene = Scene(1)
    record = scene.submit("1", elastic=(1, 4))
    scene.tell(Reported("1", checked_report({**GOOD, "points": [[1, 1, 64, passes, grad_s, step_s]]})))
    (observed,) = observations_of(record, a_cluster(4))
    assert [(point.grad_s, point.step_s) for point in observed.points] == [pytest.approx(expected)]


@pytest.mark.parametrize(("rule", "workers"), [("whole", [1, 2]), ("split", [2, 4])])
def test_points_of_workers_of_several_gpus_count_workers_but_in_decisions_of_older_logs(
    rule: str, workers: list[int]
) -> None:
    scene = Scene(1)
    scene.tell(Configured("sia", speeds="measured", workers=rule))
    scene.submit("1", gpus=2, elastic=(2, 4), resources={"gpus_per_worker": 2})
    points = [[1, 2, 64, 1, 0.020, 0.021], [1, 4, 32, 1, 0.012, 0.015]]
    scene.tell(Reported("1", checked_report({**GOOD, "points": points})))
    builder = SnapshotBuilder(frozenset({View.GOODPUT_MODEL, View.PROGRESS}))
    (evidence,) = builder.observe(scene.state, 1.0, frozenset({Trigger.ROUND})).jobs.evidence
    assert evidence is not None
    assert [point.gpus for point in evidence.observed[0].points] == workers
    assert evidence.limits.replica_gpus.tolist() == [2]
    assert evidence.limits.single_per_s.tolist() == pytest.approx([64 / 0.020])


@pytest.mark.parametrize("pass_s", [5e-324, 1e-300, 1e-12, 1e12])
def test_a_time_that_nobody_can_have_measured_is_not_believed(pass_s: float) -> None:
    said = {
        **GOOD,
        "points": [
            [1, 1, 64, 1, pass_s, pass_s],
            [1, 2, 32, 1, pass_s, 2 * pass_s],
            [1, 1, 32, 1, 0.01, 0.01],
        ],
    }
    scene = Scene(1)
    record = scene.submit("1", elastic=(1, 4))
    scene.tell(Reported("1", checked_report(said)))
    (seen,) = observations_of(record, a_cluster(4))
    assert seen.points == (Point(1, 1, 32, 0.01, 0.01),)
    observed(said)
