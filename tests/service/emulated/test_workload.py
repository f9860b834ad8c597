"""What is submitted for a job of a trace."""

import json
from math import nan

import pytest

from stretto.service.emulated.workload import job_file
from stretto.testing.builders import a_cluster, a_job
from stretto.traces.workload import Truth


@pytest.mark.parametrize(
    ("duration_s", "epochs", "stop"),
    [
        pytest.param(nan, 12, {"epochs": 12}, id="a training that runs by its model says where it stops"),
        pytest.param(nan, 0, None, id="unless that is not known"),
        pytest.param(60.0, 12, None, id="one that was recorded says how long it takes"),
    ],
)
def test_a_file_says_how_many_epochs_there_are(
    duration_s: float, epochs: int, stop: dict[str, int] | None
) -> None:
    job = a_job("a", model="resnet18-cifar10")
    text = job_file(job, Truth(duration_s), a_cluster(1), epochs)
    assert json.loads(text).get("stop") == stop
