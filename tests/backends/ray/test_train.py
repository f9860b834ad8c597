"""Scripts of Ray Train as jobs of a service over Ray."""

import sys
from pathlib import Path

import pytest
from tests.backends.ray.cluster import RayCluster
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.ray, pytest.mark.large]

SCRIPT = Path(__file__).with_name("train.py")
JOB = """
name: train
run: exec {python} {script} 60
resources: {{accelerators: "a100:2"}}
envs: {{OMP_NUM_THREADS: "1"}}
"""


@pytest.mark.long  # its processes import PyTorch and Ray
def test_a_script_that_uses_ray_train_runs_unchanged(cluster: RayCluster, tmp_path: Path) -> None:
    service = Running(tmp_path, "--policy", "fifo", "--backend", "ray", "--address", cluster.address)
    service.begin()
    try:
        with service.client() as client:
            job = str(client.submit(JOB.format(python=sys.executable, script=SCRIPT))["id"])
            until(lambda: client.describe(job)["state"] in ("COMPLETED", "FAILED"), 180.0, "it ends")
            shown = client.describe(job)
            logs = ["".join(client.log(job, rank=rank)) for rank in range(2)]
        assert (shown["state"], shown["attempt"]) == ("COMPLETED", 1), logs
        for rank, log in enumerate(logs):
            assert f"rank {rank} of 2 learned [1.0, 1.0, 1.0, 1.0]" in log
            assert "ended at 59" in log
    finally:
        service.end()
