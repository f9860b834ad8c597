"""A specification goes into the log and comes out the same, or is refused with one line."""

import json
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.jobfile import Elastic, JobSpec, Resources, When
from stretto.model import InputError

from .specs import specs


@settings(max_examples=scaled(80), deadline=None)
@given(spec=specs())
def test_every_specification_comes_back_from_json(spec: JobSpec) -> None:
    stored = json.dumps(spec.to_json(), allow_nan=False)
    assert JobSpec.from_json(json.loads(stored)) == spec
    assert json.dumps(JobSpec.from_json(json.loads(stored)).to_json()) == stored


def test_a_default_that_changes_later_does_not_change_what_is_stored() -> None:
    stored = JobSpec(run="x").to_json()
    assert stored["grace_period_s"] == 30.0
    assert set(stored) == set(JobSpec.__dataclass_fields__)


def test_what_an_older_log_lacks_takes_its_default() -> None:
    assert JobSpec.from_json({"run": "x"}) == JobSpec(run="x")


def test_equal_parts_of_specifications_are_one_object() -> None:
    one, other = (
        JobSpec.from_json({"run": run, "resources": {"accelerators": [{"gpu_type": "", "gpus": 4}]}})
        for run in ("x", "y")
    )
    assert one.resources is other.resources


def test_a_part_that_only_compares_equal_is_looked_at_anew() -> None:
    JobSpec.from_json({"run": "x", "resources": {"gpus_per_worker": 1}})
    with pytest.raises(InputError, match="gpus_per_worker must be a whole number, got True"):
        JobSpec.from_json({"run": "x", "resources": {"gpus_per_worker": True}})


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        pytest.param([], "job must be an object", id="no object"),
        pytest.param({}, "run", id="nothing to run"),
        pytest.param({"run": 1}, "job.run must be a text, got 1", id="a number to run"),
        pytest.param({"run": " "}, "run must be a command", id="blanks to run"),
        pytest.param({"run": "x", "nmae": "y"}, "unknown key 'nmae', did you mean 'name'", id="a slip"),
        pytest.param({"run": "x", "priority": 1.5}, "job.priority must be a whole number", id="half"),
        pytest.param({"run": "x", "priority": True}, "job.priority must be a whole number", id="true"),
        pytest.param({"run": "x", "kind": "lazy"}, "one of batch, interactive, got 'lazy'", id="kind"),
        pytest.param({"run": "x", "kind": []}, "one of batch, interactive", id="kind of lists"),
        pytest.param({"run": "x", "max_time_s": nan}, "finite", id="no time"),
        pytest.param({"run": "x", "max_time_s": 10**400}, "finite", id="beyond floats"),
        pytest.param({"run": "x", "grace_period_s": inf}, "finite", id="endless"),
        pytest.param({"run": "x", "deadline": {}}, "either a date or a duration", id="empty time"),
        pytest.param({"run": "x", "rewards": {}}, "job.rewards must be a list", id="no list"),
        pytest.param({"run": "x", "rewards": [{"worth": 1}]}, "by", id="a reward without time"),
        pytest.param({"run": "x", "envs": {"A": 1}}, "job.envs.A must be a text", id="a number in envs"),
        pytest.param({"run": "x", "elastic": {"min_gpus": 0}}, "elastic.min", id="no GPUs"),
    ],
)
def test_json_is_refused(stored: object, said: str) -> None:
    with pytest.raises(InputError) as refused:
        JobSpec.from_json(stored)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "gpus"),
    [
        pytest.param({}, 1, id="nothing said"),
        pytest.param({"elastic": Elastic(3)}, 3, id="the fewest of a range"),
        pytest.param({"elastic": Elastic(3), "resources": Resources((), 2)}, 4, id="in whole workers"),
        pytest.param({"elastic": Elastic(2, 8, (2, 8))}, 2, id="the smallest size"),
        pytest.param({"resources": Resources((), 8)}, 8, id="one worker"),
    ],
)
def test_a_job_that_does_not_say_asks_for(change: dict[str, Any], gpus: int) -> None:
    assert replace(JobSpec(run="x"), **change).gpus == gpus


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=scaled(150), deadline=None)
@given(spec=specs(), field=st.sampled_from(sorted(JobSpec.__dataclass_fields__)), value=JSON)
def test_json_of_any_shape_is_understood_or_refused(spec: JobSpec, field: str, value: Any) -> None:
    try:
        made = JobSpec.from_json(spec.to_json() | {field: value})
    except InputError:
        return
    assert JobSpec.from_json(made.to_json()) == made


def test_a_time_is_counted_from_the_submission_or_from_the_calendar() -> None:
    assert When(after_s=60.0).seconds(submitted_s=100.0, epoch_s=1e9) == 160.0
    assert When(at_unix_s=1e9 + 5).seconds(submitted_s=100.0, epoch_s=1e9) == 5.0
