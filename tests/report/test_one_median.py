"""Texts of a report and its table mean the same by a median."""

import pytest

from stretto.report.charts.cdf import jct_cdf
from stretto.report.standings import standings_of
from stretto.report.wording import duration

from .made_runs import a_comparison


@pytest.mark.parametrize(
    "seeds", [pytest.param((0,), id="one run"), pytest.param((0, 1, 2), id="three runs")]
)
def test_the_text_below_a_distribution_has_the_median_of_the_table(seeds: tuple[int, ...]) -> None:
    standings = standings_of(a_comparison(("stretto", "fifo"), seeds=seeds, jobs=6))
    figure = jct_cdf(standings)
    assert figure is not None
    ours, theirs = (duration(standing.value("p50_jct_s"), 3) for standing in standings.ranked)
    assert figure.lead == f"The median JCT is {ours} under stretto and {theirs} under fifo."
    assert f"stretto: median {ours}, p95 " in figure.drawing
