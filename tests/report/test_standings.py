"""Who stands where, and what is compared with what."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.errors import InputError
from stretto.report.content import RunSeries
from stretto.report.findings import caution, verdict
from stretto.report.standings import basis_of, standings_of
from stretto.sim.summary import BY_KEY

from .made_runs import a_comparison, a_run


def with_figures(run: RunSeries, **figures: float | None) -> RunSeries:
    return replace(run, summary={**run.summary, **figures})


def test_policies_are_ranked_by_mean_jct_and_those_without_one_come_last() -> None:
    runs = [
        with_figures(a_run("none", jobs=5), avg_jct_s=None),
        with_figures(a_run("slow", jobs=5), avg_jct_s=90.0),
        with_figures(a_run("fast", jobs=5), avg_jct_s=30.0),
    ]
    standings = standings_of(a_comparison(runs=tuple(runs)))
    assert [s.policy for s in standings.ranked] == ["fast", "slow", "none"]
    assert [s.policy for s in standings.by_colour] == ["none", "slow", "fast"]


def test_seeds_of_one_trace_count_once_where_there_are_several_traces() -> None:
    jct = {("x", 0): 10.0, ("x", 1): 20.0, ("y", 0): 40.0, ("y", 1): 50.0}
    runs = [with_figures(a_run("a", trace, seed, 5), avg_jct_s=s) for (trace, seed), s in jct.items()]
    found = standings_of(a_comparison(runs=tuple(runs))).best.estimates["avg_jct_s"]
    assert (found.value, found.basis, found.count) == (30.0, "traces", 2)


@pytest.mark.parametrize(
    ("traces", "seeds", "basis"),
    [(("x", "y"), (0,), "traces"), (("x",), (0, 1), "seeds"), (("x",), (0,), "jobs")],
)
def test_an_interval_says_what_it_varies(traces: tuple[str, ...], seeds: tuple[int, ...], basis: str) -> None:
    comparison = a_comparison(("a", "b"), traces, seeds, jobs=8)
    found = standings_of(comparison).ranked[0].estimates["avg_jct_s"]
    assert basis_of(comparison) == found.basis == basis
    assert found.low < found.value < found.high


def test_pairs_are_taken_on_the_workloads_that_both_ran() -> None:
    runs = (a_run("a", "x", jobs=20), a_run("a", "y", jobs=20), a_run("b", "y", jobs=20, slowness=3))
    standings = standings_of(a_comparison(runs=runs))
    assert [pairing.workloads for pairing in standings.pairings] == [1]
    assert not standings.same_workloads


def test_jobs_are_paired_by_name_where_the_runs_hold_different_ones() -> None:
    ours, other = a_run("a", jobs=20), a_run("b", jobs=20, slowness=2.5)
    order = np.arange(20)[::-1]
    turned = replace(
        other,
        jobs=tuple(other.jobs[index] for index in order),
        jct_s=other.jct_s[order],
        queue_s=other.queue_s[order],
    )
    straight = standings_of(a_comparison(runs=(ours, other))).pairings[0]
    back = standings_of(a_comparison(runs=(ours, turned))).pairings[0]
    assert back.jobs == straight.jobs
    assert back.waiting_s == pytest.approx(straight.waiting_s)


def test_what_is_saved_is_waiting_and_running_together() -> None:
    standings = standings_of(a_comparison(("a", "b"), jobs=50))
    pairing = standings.pairings[0]
    ours, other = (s.value("avg_jct_s") for s in (pairing.ours, pairing.other))
    assert pairing.saved_s == pytest.approx(other - ours)
    assert pairing.ratio.value == pytest.approx(other / ours)


@pytest.mark.parametrize(
    ("figures", "leaders"),
    [
        pytest.param({"a": 1.0, "b": 2.0}, {"a"}, id="the lower one"),
        pytest.param({"a": 1.0, "b": 1.0, "c": 3.0}, {"a", "b"}, id="two share it"),
        pytest.param({"a": 1.0, "b": 1.0}, set(), id="all alike"),
        pytest.param({"a": 1.0, "b": None}, set(), id="nothing to compare with"),
    ],
)
def test_the_best_of_a_column_is(figures: dict[str, float | None], leaders: set[str]) -> None:
    runs = [with_figures(a_run(name, jobs=5), restarts_per_job=value) for name, value in figures.items()]
    assert standings_of(a_comparison(runs=tuple(runs))).leaders(BY_KEY["restarts_per_job"]) == leaders


def test_an_interval_around_one_is_not_called_clear() -> None:
    means_s = {"a": (90.0, 110.0, 95.0, 100.0), "b": (100.0, 96.0, 110.0, 92.0)}
    runs = [
        with_figures(a_run(policy, f"t{index}", jobs=5), avg_jct_s=mean_s)
        for policy, means in means_s.items()
        for index, mean_s in enumerate(means)
    ]
    comparison = a_comparison(runs=tuple(runs))
    assert verdict(standings_of(comparison)).cards[0].figure == "Not settled"


def test_a_lead_on_every_trace_is_called_clear() -> None:
    comparison = a_comparison(("stretto", "fifo"), tuple("uvwxyz"), jobs=40)
    card = verdict(standings_of(comparison)).cards[0]
    assert (card.figure, card.tone) == ("Clear", "clear")
    assert "Ahead on 6 of 6 workloads" in card.text


def test_one_run_is_never_called_clear() -> None:
    assert verdict(standings_of(a_comparison(jobs=60))).cards[0].figure == "One run only"


def test_jobs_that_never_completed_are_said_aloud() -> None:
    run = a_run("a", jobs=10)
    stuck = replace(run, jct_s=np.where(np.arange(10) < 3, np.nan, run.jct_s))
    comparison = a_comparison(runs=(stuck, a_run("b", jobs=10)))
    assert any("a (3)" in words for words in caution(comparison, standings_of(comparison)))


def test_the_same_run_twice_is_refused() -> None:
    with pytest.raises(InputError, match="a on x, seed 0 twice"):
        a_comparison(runs=(a_run("a", "x", jobs=3), a_run("a", "x", jobs=3)))


def test_a_column_of_another_length_is_refused_with_both_shapes() -> None:
    with pytest.raises(InputError, match=r"queue_s must have shape \(3,\), got \(2,\)"):
        replace(a_run("a", jobs=3), queue_s=np.zeros(2))


def test_what_a_run_cost_stands_beside_its_summary() -> None:
    run = replace(
        a_run("a", jobs=3), summary={"avg_jct_s": 5.0, "peak_rss_mb": 90}, wall_s=7.0, peak_rss_mb=None
    )
    assert (run.metric("avg_jct_s"), run.metric("wall_s"), run.metric("peak_rss_mb")) == (5.0, 7.0, 90.0)
    assert np.isnan(run.metric("makespan_s"))
