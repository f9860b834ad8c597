from math import nan

import pytest

from stretto.experiments.draws import draws_words, merged, missing_words, seeds_of
from stretto.experiments.reproduction import Request, Row


def test_rows_of_several_draws_become_their_mean_and_half_of_its_interval() -> None:
    draws = [[Row("fifo", "jct_s", 9.0, ours, "at most")] for ours in (8.0, 10.0, 12.0)]
    mean, half = merged(draws)
    assert mean == Row("fifo", "jct_s", 9.0, 10.0, "at most")
    assert (half.metric, half.paper, half.bound) == ("jct_s_plus_minus", None, "")
    assert half.ours == pytest.approx(4.303 * 2.0 / 3**0.5, rel=1e-3)  # Student's quantile for three draws


def test_one_draw_has_its_own_figures_and_no_interval() -> None:
    rows = [Row("fifo", "jct_s", 9.0, 8.0), Row("fifo", "p95_s", None, None)]
    assert merged([rows]) == rows
    assert missing_words([rows]) == []


def test_a_figure_that_a_draw_lacks_is_the_mean_of_the_others_and_is_named() -> None:
    draws = [[Row("lent", "usage", 0.9, ours), Row("own", "usage", None, None)] for ours in (0.2, None, 0.4)]
    mean, half, missing = merged(draws)
    assert mean.ours == pytest.approx(0.3)
    assert half.metric == "usage_plus_minus"
    assert missing == Row("own", "usage", None, None)
    assert missing_words(draws) == [
        "of fewer than 3 traces, since it does not apply to the others: lent, usage (2)"
    ]


def test_what_is_no_number_is_missing() -> None:
    assert merged([[Row("a", "damage", None, nan)], [Row("a", "damage", None, 1.0)]]) == [
        Row("a", "damage", None, 1.0)
    ]


def test_draws_with_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="must agree"):
        merged([[Row("a", "jct_s", None, 1.0)], [Row("b", "jct_s", None, 1.0)]])


@pytest.mark.parametrize(("scale", "seeds"), [(1.0, (0, 1, 2)), (0.5, (0, 1)), (0.001, (0,))])
def test_a_share_of_the_workload_has_a_share_of_the_draws(scale: float, seeds: tuple[int, ...]) -> None:
    assert seeds_of(Request(data=None, scale=scale)) == seeds
    assert all(str(seed) in draws_words(len(seeds)) for seed in seeds)
