"""Random situations show all of a job that a policy may depend on."""

from dataclasses import MISSING, fields

import pytest
from hypothesis import find

from stretto.model import Job
from stretto.testing.situations import LEFT_AT_DEFAULT, clusters, jobs_for

DRAWN = clusters().flatmap(lambda cluster: jobs_for(cluster, "j"))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name",
    [one.name for one in fields(Job) if one.default is not MISSING and one.name not in LEFT_AT_DEFAULT],
)
def test_a_field_of_a_job_is_drawn_or_left_at_its_default_on_purpose(name: str) -> None:
    (default,) = (one.default for one in fields(Job) if one.name == name)
    find(DRAWN, lambda job: getattr(job, name) != default)  # raises where no job has another value


def test_what_is_left_at_its_default_is_a_field() -> None:
    assert {one.name for one in fields(Job)} >= LEFT_AT_DEFAULT
