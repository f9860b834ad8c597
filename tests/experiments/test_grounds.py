"""`reproduce ground-PAPER`: the policy `stretto` beside each paper's own policy, on its own ground."""

from pathlib import Path

import pytest

from stretto.experiments.one_for_all.grounds import Case, Ground, less_than
from stretto.experiments.one_for_all.parts import OURS, PARTS
from stretto.experiments.one_for_all.specialists import CORNUCOPIA, LYRA, ONES, SIA, UNISCHED
from stretto.experiments.reproduction import Request, Row
from stretto.experiments.spec import RunSpec

GROUNDS = {"sia": SIA, "unisched": UNISCHED, "lyra": LYRA, "ones": ONES, "cornucopia": CORNUCOPIA}


def nothing(_: str) -> list[RunSpec]:
    return []


CASE = Case("64 GPUs", ("sia", "chronus"), nothing)


def ground(**smallest: float) -> Ground:
    return Ground(lambda *_: [CASE], lambda _: {}, smallest, lambda _: [], [])


def by_name(rows: list[Row]) -> dict[tuple[str, str], float | None]:
    return {(row.row, row.metric): row.ours for row in rows}


def test_behind_is_measured_from_the_best_of_the_others() -> None:
    rows = by_name(
        ground(jct_s=0.0, queue_s=1.0).rows_of(
            CASE,
            {
                "sia": [{"jct_s": 100.0, "queue_s": 0.0}, {"jct_s": 300.0, "queue_s": 0.2}],
                "chronus": [{"jct_s": 500.0, "queue_s": 40.0}, {"jct_s": 500.0, "queue_s": 60.0}],
                OURS: [{"jct_s": 200.0, "queue_s": 0.5}, {"jct_s": 240.0, "queue_s": 0.9}],
            },
        )
    )
    assert rows["64 GPUs, stretto: jct_s", "behind_percent"] == pytest.approx(10.0)
    assert rows["64 GPUs, stretto: queue_s", "behind_percent"] == 0, "less than a second is no wait"
    assert rows["64 GPUs, stretto beside chronus", "jct_s_less_percent"] == pytest.approx(56.0)
    assert ("64 GPUs, stretto beside sia", "queue_s_less_percent") not in rows, "of nothing there is no share"


def test_what_does_not_apply_to_a_workload_has_no_row() -> None:
    none = [{"best_effort_jct_h": float("nan")}]
    rows = ground(best_effort_jct_h=0.0).rows_of(CASE, {"sia": none, "chronus": none, OURS: none})
    assert rows == []


def test_a_reduction_is_of_means_and_its_interval_of_samples() -> None:
    ours, other = [{"s": 1.0}, {"s": 6.0}], [{"s": 2.0}, {"s": 10.0}]
    less, half = less_than("a", "s", ours, other)
    assert (less.row, less.metric) == ("a", "s_less_percent")
    assert less.ours == pytest.approx(100 * (1 - 7 / 12))
    # Reductions of 50 and 40 %: their standard deviation is 7.07, that of the mean 5, times t of one degree.
    assert half.metric == "s_less_percent_plus_minus"
    assert half.ours == pytest.approx(12.706 * 5, rel=1e-3)


@pytest.mark.parametrize("name", GROUNDS)
def test_both_are_simulated_alike(name: str, tmp_path: Path) -> None:
    """What is told of work and costs may differ by what a policy can know; clusters and jobs may not."""
    cases = GROUNDS[name].cases(Request(None), tmp_path)
    assert len({case.name for case in cases}) == len(cases)
    assert set(GROUNDS[name].without) <= {case.name for case in cases}, "a case is named wrong"
    for case in cases:
        ours = case.samples(OURS)
        assert len({repr(spec) for spec in ours}) == len(ours) > 1
        for other in case.beside:
            for own, theirs in zip(ours, case.samples(other), strict=True):
                assert (own.cluster, own.trace, own.window, own.seed) == (
                    theirs.cluster,
                    theirs.trace,
                    theirs.window,
                    theirs.seed,
                )
                of_ours = {key for key in own.settings if own.settings[key] != theirs.settings.get(key)}
                assert of_ours <= {"sim.work_error"}
                of_theirs = {key for key in theirs.settings if key not in own.settings}
                assert all(key.startswith("policy.") for key in of_theirs)


def test_each_part_is_a_setting_of_our_policy_alone() -> None:
    spec = RunSpec("sia-hetero-64", "synthetic-sia:jobs=2", OURS)
    for switch in PARTS:
        assert switch.of(spec).settings != spec.settings
        assert switch.of(RunSpec("sia-hetero-64", "synthetic-sia:jobs=2", "sia")).settings == {}
