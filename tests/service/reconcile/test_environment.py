"""What a worker finds in its environment."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.service.scene import Scene

from stretto.sdk.settings import CHECKPOINT_S, RULES, read_environment
from stretto.service.reconcile.worker_env import WorkerContext, start_of

SECRETS = WorkerContext("http://127.0.0.1:1", b"key", Path("/kept"), Path("/workdirs"))
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("checkpoint", "expected_s"),
    [
        pytest.param({"every_s": 90.0}, 90.0, id="as the job file says"),
        pytest.param({"every_s": 1e6}, 1e6, id="long times are whole as well"),
        pytest.param({}, CHECKPOINT_S, id="as usual where it only says that there are some"),
        pytest.param(None, CHECKPOINT_S, id="as usual where it says nothing"),
    ],
)
def test_a_training_saves_as_often_as_its_job_asks(
    checkpoint: dict[str, float] | None, expected_s: float
) -> None:
    scene = Scene()
    record = scene.submit("1", checkpoint=checkpoint)
    scene.give(_1={"n0": 1})
    scene.reconcile()
    start = start_of(scene.state, record, record.workers["1.1.0"], SECRETS)
    assert read_environment(start.env).checkpoint_s == expected_s


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        *((name, name) for name in RULES),
        pytest.param("", "", id="nothing where the job file says nothing"),
        pytest.param("legw", "", id="nothing of a rule that older job files could name and the SDK lacks"),
    ],
)
def test_a_worker_is_told_the_rule_of_learning_rates_of_its_job_file(rule: str, expected: str) -> None:
    scene = Scene()
    record = scene.submit("1", batch={"lr_scaling": rule})
    scene.give(_1={"n0": 1})
    scene.reconcile()
    start = start_of(scene.state, record, record.workers["1.1.0"], SECRETS)
    assert read_environment(start.env).lr_scaling == expected


@pytest.mark.processes
def test_a_script_is_run_by_the_shell_for_which_it_was_written() -> None:
    scene = Scene()
    record = scene.submit("1", run="#!/bin/bash -e\nset -o pipefail\n[[ $0 == *.1.0 ]] || echo 'in bash'\n")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    start = start_of(scene.state, record, record.workers["1.1.0"], SECRETS)
    env = {"PATH": os.defpath, **start.env, "STRETTO_CHECKPOINT_DIR": "/dev/null/none"}
    done = subprocess.run(start.command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in bash\n", "")


def test_two_services_of_one_machine_tell_their_jobs_different_ports() -> None:
    ports = {WorkerContext("", bytes([key]), Path(), Path()).port("1.1") for key in range(50)}
    assert len(ports) > 45
    assert all(1024 < port < 32_768 for port in ports)  # ephemeral ports begin there
