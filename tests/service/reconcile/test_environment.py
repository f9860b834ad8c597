"""What a worker finds in its environment."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.service.scene import Scene

from stretto.sdk.settings import CHECKPOINT_S, RULES, read_environment
from stretto.service.reconcile.worker_env import WorkerContext, start_of
from stretto.service.state.events import NodeSeen

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


def test_a_replica_of_each_type_is_one_worker_that_knows_its_gpus() -> None:
    scene = Scene(nodes=1, gpus=8)
    scene.tell(NodeSeen("other", "rtx", 8))
    sizes = {"accelerators": [], "gpus_per_worker": 2, "replica_gpus": {"a100": 2, "rtx": 8}}
    for name, node in (("1", "n0"), ("2", "other")):
        record = scene.submit(name, elastic=(2, 8), resources=sizes)
        kind = scene.state.cluster.type_index("a100" if node == "n0" else "rtx")  # type: ignore[union-attr]
        scene.give(kind, **{f"_{name}": {node: 0b11111111}})
        scene.reconcile()
        starts = [start_of(scene.state, record, worker, SECRETS) for worker in record.workers.values()]
        expected = [(0, 1), (2, 3), (4, 5), (6, 7)] if node == "n0" else [tuple(range(8))]
        assert [start.gpus for start in starts] == expected
        assert {read_environment(start.env).gpus for start in starts} == {len(expected[0])}


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
