"""What a job asks for is checked when it is built, and read as columns by every table of jobs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.model import Adaptivity, InputError, JobTable, Kind, Requests, Reward
from stretto.model.job import Column, JobColumns
from stretto.testing.builders import a_cluster, a_job

JOBS = (
    a_job("a", gpus=2, batch_size=64, weight=0.5, priority=-3, adaptivity=Adaptivity.RIGID),
    a_job("b", gpus=4, at_s=1.0, min_gpus=2, max_gpus=8, kind=Kind.INTERACTIVE, heterogeneous=True),
    a_job(
        "c", gpus=2, at_s=2.0, min_gpus=2, gpus_per_worker=2, preemptible=False, rewards=(Reward(9.0, 1.0),)
    ),
)
REQUESTS = Requests(JOBS, a_cluster(8))
COLUMNS = {name: one for name, one in vars(JobColumns).items() if isinstance(one, Column)}


def table(*rows: int) -> JobTable:
    nothing = np.zeros(len(rows), dtype=np.int64)
    return JobTable(REQUESTS, np.array(rows), nothing, nothing, nothing - 1)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("gpus", [2, 4, 2]),
        ("batch_size", [64, 0, 0]),
        ("deadline_s", [np.inf, np.inf, 9.0]),
        ("interactive", [False, True, False]),
        ("rigid", [True, False, False]),
        ("preemptible", [True, True, False]),
        ("gpus_per_worker", [1, 1, 2]),
    ],
)
def test_a_column_has_what_each_job_asked_for(column: str, expected: list[Any]) -> None:
    assert getattr(REQUESTS, column).tolist() == expected


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_is_in_every_table_and_is_computed_once(column: str) -> None:
    shown = table(2, 0)
    assert getattr(shown, column).tolist() == getattr(REQUESTS, column)[[2, 0]].tolist()
    assert getattr(shown, column) is getattr(shown, column)
    assert not getattr(REQUESTS, column).flags.writeable


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"batch_size": -1}, "job a: batch_size must be >= 0, got -1"),
        ({"gpus_per_worker": 0}, "job a: gpus_per_worker must be >= 1, got 0"),
        ({"weight": 0.0}, "job a: weight must be > 0, got 0.0"),
        ({"weight": float("nan")}, "job a: weight must be > 0, got nan"),
    ],
)
def test_a_value_outside_its_bound_is_one_clear_line(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        replace(a_job("a"), **asked)
    assert str(refused.value) == message
