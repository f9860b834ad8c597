"""A service over a real Slurm, as people use it: from the command line, with scripts that were sbatch's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.slurm.cluster import SlurmCluster, until
from tests.service.running import Running

from stretto.model import InputError

pytestmark = [pytest.mark.slurm, pytest.mark.large]

SCRIPT = """#!/bin/bash
#SBATCH --job-name=from-sbatch
#SBATCH --partition=fast
#SBATCH --constraint=a100
#SBATCH --nodes=1
#SBATCH --gres=gpu:a100:2
#SBATCH --cpus-per-task=2
#SBATCH --mem=1G
#SBATCH --time=10
#SBATCH --output=%x-%j.out
echo "partition $SLURM_JOB_PARTITION devices $CUDA_VISIBLE_DEVICES cpus $SLURM_CPUS_ON_NODE"
export MINE=kept
srun sh -c 'echo "a step on $SLURMD_NODENAME of $STRETTO_WORKER_ID with what was $MINE"'
while :; do sleep 0.1; done
"""


@pytest.fixture
def service(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Running]:
    env = {**os.environ, **cluster.environment}
    options = ["--backend", "slurm", "--policy", "sia", "--set", "policy.round_s=1"]
    running = Running(tmp_path / "service", *options, env=env)
    (tmp_path / "service").mkdir()
    running.begin()
    try:
        yield running
    finally:
        running.end()


def test_a_script_of_sbatch_is_submitted_unchanged_and_runs_as_a_worker_job(
    cluster: SlurmCluster, service: Running, tmp_path: Path
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(SCRIPT)
    with service.client() as client:
        job = client.submit(script)["id"]
        until(lambda: cluster.jobs(), lambda: f"{client.describe(job)}")
        (line,) = cluster.jobs()
        assert line.split()[2] == f"from-sbatch:{job}.1.0"
        until(lambda: client.describe(job)["state"] == "RUNNING", lambda: f"{client.describe(job)}")
        until(lambda: "a step on a" in "".join(client.log(job)), lambda: "".join(client.log(job)))
        assert f" of {job}.1.0 with what was kept\n" in "".join(client.log(job))
        assert "partition fast devices 0,1 cpus 2\n" in "".join(client.log(job))
        client.change(job, "cancel")
        until(lambda: client.describe(job)["state"] == "CANCELLED", lambda: f"{client.describe(job)}")
        until(lambda: not cluster.jobs(), lambda: f"{cluster.jobs()}")


def test_what_slurm_can_never_take_is_refused_when_it_is_submitted(service: Running) -> None:
    wrong = {
        "--partition=fast": ("--partition=nowhere", "nowhere"),
        "--constraint=a100": ("--constraint=h100", "constraint=h100"),
        "gpu:a100:2": ("gpu:h100:2", "h100"),
    }
    with service.client() as client:
        for was, (now, words) in wrong.items():
            with pytest.raises(InputError, match=words) as refused:
                client.submit(SCRIPT.replace(was, now))
            assert "\n" not in str(refused.value)
