"""Counts of the published files, as their own pages and papers give them."""

from pathlib import Path

import numpy as np
import pytest

from stretto.clusters import read_cluster
from stretto.model import Adaptivity, Kind
from stretto.traces import built_in_traces, check_against, read_trace

pytestmark = pytest.mark.data

JOBS = {
    "philly": 82_247,
    "chronus-slo": 30_735,
    "chronus-mix1": 30_756,
    "chronus-mix2": 30_746,
    "sia-philly-1": 160,
    "sia-helios-5": 160,
    "sia-newtrace-2": 960,
    "sia-scale-32x": 5_120,
    "tiresias-60": 60,
    "shockwave-120jobs": 120,
    "shockwave-900jobs-b": 900,
    "elasticflow-philly": 876,
    "elasticflow-pollux": 195,
    "elasticflow-cifar10": 5,
}


@pytest.mark.parametrize(("name", "jobs"), JOBS.items())
def test_every_job_of_a_published_file_is_read(name: str, jobs: int, data_dir: Path) -> None:
    if name not in built_in_traces(data_dir):
        pytest.skip(f"no {name} below {data_dir}")
    assert len(read_trace(name, data=data_dir).jobs) == jobs


@pytest.mark.parametrize(
    ("name", "gpu_hours"),
    [("philly", 978_078), ("chronus-mix1", 371_328), ("chronus-mix2", 378_975), ("chronus-slo", 368_511)],
)
def test_gpu_hours_agree(name: str, gpu_hours: float, data_dir: Path) -> None:
    workload = read_trace(name, data=data_dir)
    gpu_s = sum(
        job.gpus * truth.duration_s for job, truth in zip(workload.jobs, workload.truths, strict=True)
    )
    assert gpu_s / 3600 == pytest.approx(gpu_hours, abs=1)


def test_chronus_mixes_strict_soft_and_no_deadlines(data_dir: Path) -> None:
    steps = [len(job.rewards) for job in read_trace("chronus-mix2", data=data_dir).jobs]
    best_effort, strict, soft = (steps.count(count) for count in (0, 1, 4))
    assert best_effort + strict + soft == len(steps)
    assert soft > strict > best_effort  # 18,525, 9,276 and 3,139 before rows without GPUs are left out
    assert np.isclose(strict / len(steps), 9_276 / 30_940, atol=0.005)


def test_alibaba_pods_are_those_that_ran_on_a_gpu(data_dir: Path) -> None:
    workload = read_trace("alibaba-gpuspec33", data=data_dir)
    assert len(workload.jobs) == 8_152 - 1_088 - 861
    assert any(job.gpu_types for job in workload.jobs)
    assert {job.kind for job in workload.jobs} == set(Kind)


def test_every_job_of_sia_fits_the_clusters_of_its_paper(data_dir: Path) -> None:
    for name in ("sia-philly-1", "sia-helios-1", "sia-newtrace-1"):
        workload = read_trace(name, data=data_dir)
        assert {job.adaptivity for job in workload.jobs} == {Adaptivity.ADAPTIVE}
        for cluster in ("sia-hetero-64", "sia-homo-64", "sia-physical-44"):
            assert check_against(workload, read_cluster(cluster)) is workload
