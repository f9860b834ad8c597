"""A job of higher priority comes to four real workers on which another one trains: both go on at once."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.client import Client
from stretto.demo.outcome import events_of
from stretto.demo.own_service import until

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]

HERE = Path(__file__).parent
# UniSched runs a new job on two GPUs until it is profiled: for five minutes, unless told otherwise.
KNOBS = {"unisched": {"profile_s": "2", "best_effort_lease_s": "2", "deadline_lease_s": "4"}}
TRAINING = {
    "name": "training",
    "run": f"{sys.executable} scaling.py",
    "workdir": str(HERE),
    "resources": {"accelerators": 4},
    "elastic": {"min": 4, "max": 4},  # at first: whatever the policy, it holds all four
    "envs": {"OMP_NUM_THREADS": "1"},
    "grace_period": "5s",
}
URGENT = {"name": "urgent", "run": "sleep 600", "resources": {"accelerators": 2}, "priority": 10}


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    policy = request.param
    options = ["--slots", "4", "--gpu-type", "cpu", "--policy", policy]
    for name, value in KNOBS.get(policy, {}).items():
        options += ["--set", f"policy.{name}={value}"]
    running = Running(tmp_path, *options)
    try:
        running.begin()
        yield running
    finally:
        running.end()


def submit(client: Client, file: object) -> str:
    return str(client.submit(json.dumps(file))["id"])


def trains_on(client: Client, job: str, gpus: int) -> bool:
    """Whether it trains on so many, and every resize so far is over."""
    resizes = sum(kind == "Generation" for _, kind, _ in events_of(client, job)) - 1
    shown = client.describe(job)
    assert not shown["ended_s"], "".join(client.log(job))
    return (shown["training_gpus"], shown["switches"]) == (gpus, resizes)


@pytest.mark.parametrize(
    "service",
    [
        "fifo",
        *(
            pytest.param(policy, marks=pytest.mark.long)
            for policy in ("sia", "pollux", "ones", "cornucopia", "unisched", "lyra")
        ),
    ],
    indirect=True,
)
def test_an_urgent_job_runs_at_once_and_the_other_goes_on_at_two_in_place(service: Running) -> None:
    with service.client() as client:
        training = submit(client, TRAINING)
        until(lambda: trains_on(client, training, 4), 300, "the first job trains on all four")
        before = client.describe(training)
        client.change(training, "scale", min_gpus=2, max_gpus=4)
        began = time.monotonic()
        urgent = submit(client, URGENT)
        until(lambda: client.describe(urgent)["state"] == "RUNNING", 120, "the urgent job runs")
        print(f"{service.options[5]}: runs after {time.monotonic() - began:.1f} s")
        until(lambda: trains_on(client, training, 2), 120, "the first job trains on two")
        after = client.describe(training)
        assert (after["attempt"], after["restarts"]) == (before["attempt"], before["restarts"])
        assert after["switches"] == before["switches"] + 1
        for name in (urgent, training):
            client.change(name, "cancel")
            client.wait(name)
    decisions, different = service.differences()
    assert decisions > 0
    assert different == 0
