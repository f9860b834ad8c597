"""Jobs that adapt less than they could, for figures 1 and 11 of Sia."""

import pytest

from stretto.model import Adaptivity, InputError
from stretto.traces import make_workload
from stretto.traces.recipes import prepared

MADE = make_workload("synthetic-sia:jobs=40,hours=8,seed=1", seed=0)


def adaptivities(recipe: str) -> list[Adaptivity]:
    return [job.adaptivity for job in prepared(MADE, recipe).jobs]


@pytest.mark.parametrize(
    ("recipe", "rigid", "strong"),
    [("sia", 0, 0), ("sia:rigid=1", 40, 0), ("sia:strong_scaling=0.5", 0, 20),
     ("sia:rigid=0.25,strong_scaling=0.75", 10, 30), ("sia:rigid=0.99", 39, 0)],
)  # fmt: skip
def test_a_share_of_the_jobs_is_limited(recipe: str, rigid: int, strong: int) -> None:
    limited = adaptivities(recipe)
    assert limited.count(Adaptivity.RIGID) == rigid
    assert limited.count(Adaptivity.STRONG_SCALING) == strong
    assert limited.count(Adaptivity.ADAPTIVE) == 40 - rigid - strong


def test_a_larger_share_has_the_jobs_of_a_smaller_one() -> None:
    fewer, more = adaptivities("sia:rigid=0.25"), adaptivities("sia:rigid=0.5")
    assert all(
        late is Adaptivity.RIGID for early, late in zip(fewer, more, strict=True) if early is Adaptivity.RIGID
    )
    assert adaptivities("sia:rigid=0.25,seed=2") != fewer


def test_rigid_jobs_keep_the_gpus_and_the_batch_size_of_the_trace() -> None:
    for before, after in zip(MADE.jobs, prepared(MADE, "sia:rigid=1").jobs, strict=True):
        assert (after.min_gpus, after.max_gpus) == (before.gpus, before.gpus)
        assert after.batch_size == before.batch_size


@pytest.mark.parametrize(
    ("recipe", "line"),
    [("sia:rigid=1.5", "recipe sia: rigid must be from 0 to 1, got 1.5"),
     ("sia:rigid=0.6,strong_scaling=0.6",
      "recipe sia: rigid and strong_scaling must be at most 1 together, got 0.6 and 0.6")],
)  # fmt: skip
def test_wrong_shares_are_one_line(recipe: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        prepared(MADE, recipe)
