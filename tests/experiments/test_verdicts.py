"""The rule by which a figure of ours is called reproduced, of the same order, or contradicted."""

import pytest

from stretto.experiments.reproduction import Row, Verdict, rows_over_seeds, table_verdict, verdicts_of

REPRODUCED, SAME, UNDECIDED, CONTRADICTED, PRIVATE, NOT = (
    Verdict.REPRODUCED,
    Verdict.SAME_ORDER,
    Verdict.UNDECIDED,
    Verdict.CONTRADICTED,
    Verdict.DATA_PRIVATE,
    Verdict.NOT_COMPARED,
)


def beside(*pairs: tuple[float | None, float | None], metric: str = "jct", case: str = "philly") -> list[Row]:
    """Schemes of one comparison, as (paper, ours)."""
    return [Row(f"{case}/{index}", metric, paper, ours) for index, (paper, ours) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [(100, 125, REPRODUCED), (125, 100, REPRODUCED), (100, 126, CONTRADICTED), (100, 79, CONTRADICTED),
     (0, 0, REPRODUCED), (0, 0.1, CONTRADICTED), (-1, 1, CONTRADICTED), (-100, -110, REPRODUCED),
     (None, 1, NOT), (1, None, NOT)],
)  # fmt: skip
def test_a_single_figure_is_reproduced_within_a_quarter(
    paper: float | None, ours: float | None, verdict: Verdict
) -> None:
    assert verdicts_of([Row("sia", "jct", paper, ours)]) == [verdict]


def test_figures_that_are_off_together_have_the_same_order() -> None:
    assert verdicts_of(beside((1.0, 2.0), (2.0, 5.0), (4.0, 9.0))) == [SAME] * 3


def test_a_figure_that_stands_in_another_place_is_contradicted() -> None:
    assert verdicts_of(beside((1.0, 3.0), (2.0, 2.1), (4.0, 9.0))) == [CONTRADICTED, REPRODUCED, SAME]


def test_schemes_that_the_paper_has_close_together_may_stand_either_way() -> None:
    assert verdicts_of(beside((1.0, 3.0), (1.05, 2.0), (4.0, 9.0))) == [SAME] * 3


def test_only_one_workload_and_one_metric_are_compared() -> None:
    rows = [
        *beside((1.0, 3.0), (4.0, 9.0)),
        *beside((9.0, 1.0), case="helios"),
        *beside((9.0, 1.0), metric="p99"),
    ]
    assert verdicts_of(rows) == [SAME, SAME, CONTRADICTED, CONTRADICTED]


@pytest.mark.parametrize(
    ("bound", "ours", "verdict"),
    [("at most", 1.0, REPRODUCED), ("at most", 1.01, CONTRADICTED), ("at least", 1.0, REPRODUCED),
     ("at least", 0.99, CONTRADICTED)],
)  # fmt: skip
def test_a_limit_is_kept_or_not(bound: str, ours: float, verdict: Verdict) -> None:
    assert verdicts_of([Row("sia", "ms", 1.0, ours, bound)]) == [verdict]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        pytest.param([2.3, 2.8, 3.0], REPRODUCED, id="within"),
        pytest.param([3.0, 3.1], CONTRADICTED, id="beside"),
        pytest.param([1.0, 3.5, 4.5], UNDECIDED, id="within one that is too wide to tell"),
        pytest.param([1.0, 2.0, 4.0], REPRODUCED, id="so wide, but the mean is near"),
    ],
)
def test_a_published_figure_within_our_interval_over_seeds_is_reproduced(
    values: list[float], verdict: Verdict
) -> None:
    assert verdicts_of(rows_over_seeds("a", "jct", 2.0, values)) == [verdict, NOT]
    if verdict is UNDECIDED:
        assert verdicts_of(rows_over_seeds("a", "jct", 2.0, values), is_private=True) == [UNDECIDED, NOT]


def test_made_data_contradict_nothing_where_the_paper_s_are_private() -> None:
    rows = [*beside((1.0, 3.0), (2.0, 2.1), (4.0, 9.0)), Row("x", "jct", None, 1.0)]
    assert verdicts_of(rows, is_private=True) == [PRIVATE, REPRODUCED, SAME, NOT]
    assert verdicts_of(rows) == [CONTRADICTED, REPRODUCED, SAME, NOT]


@pytest.mark.parametrize(
    ("verdicts", "table"),
    [([REPRODUCED] * 3 + [SAME], REPRODUCED), ([REPRODUCED, UNDECIDED], SAME),
     ([REPRODUCED] * 3 + [UNDECIDED], REPRODUCED),
     ([REPRODUCED] * 2 + [SAME] * 2, SAME),
     ([REPRODUCED] * 3 + [CONTRADICTED], SAME), ([REPRODUCED] * 2 + [CONTRADICTED], CONTRADICTED),
     ([REPRODUCED] * 3 + [PRIVATE], SAME), ([REPRODUCED] * 2 + [PRIVATE], PRIVATE),
     ([NOT, NOT], NOT), ([], NOT), ([REPRODUCED, NOT, NOT, NOT], REPRODUCED)],
)  # fmt: skip
def test_a_table_is_what_its_compared_rows_are(verdicts: list[Verdict], table: Verdict) -> None:
    assert table_verdict(verdicts) == table
