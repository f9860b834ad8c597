"""GPU time by user and queue, against sums that were done by hand."""

from collections.abc import Callable

import pytest
from tests.service.scene import Scene

from stretto.service.state import events as happened
from stretto.service.state.shares import usage_of


def test_usage_is_gpus_times_hours_by_user_and_queue() -> None:
    scene = Scene()
    scene.submit("1", 2, elastic=(1, 4), queue="long")
    scene.submit("2", 1)
    scene.tell(happened.Submitted("3", scene.state.jobs["2"].spec.to_json(), "bob"))
    scene.give(_1={"n0": 0b11}, _2={"n1": 0b1})
    scene.now_s = 3600.0  # job 1: 2 GPUs for an hour
    scene.give(_1={"n0": 0b1111})
    scene.now_s = 5400.0  # and 4 for half an hour: 4 in all; job 2: 1 for an hour and a half
    scene.give(_1=None, _3={"n0": 0b1})
    scene.tell(happened.Ended("2", "COMPLETED", 0))
    scene.now_s = 9000.0  # job 3: 1 for an hour, and goes on
    everybody: Callable[[str], bool] = {"ada", "bob"}.__contains__
    assert usage_of(scene.state, everybody, scene.now_s, "user") == [
        {"user": "ada", "jobs": 2, "gpus": 0, "gpu_hours": pytest.approx(5.5)},
        {"user": "bob", "jobs": 1, "gpus": 1, "gpu_hours": pytest.approx(1.0)},
    ]
    assert usage_of(scene.state, "bob".__eq__, scene.now_s, "user") == [
        {"user": "bob", "jobs": 1, "gpus": 1, "gpu_hours": pytest.approx(1.0)},
    ]
    assert usage_of(scene.state, everybody, scene.now_s, "queue") == [
        {"queue": "", "jobs": 2, "gpus": 1, "gpu_hours": pytest.approx(2.5)},
        {"queue": "long", "jobs": 1, "gpus": 0, "gpu_hours": pytest.approx(4.0)},
    ]
