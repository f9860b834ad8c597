import csv
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stretto.catalogue import find_model
from stretto.clusters import read_cluster
from stretto.traces import make_workload
from stretto.traces.ones import (
    ABOVE_TARGET_EPOCHS,
    CLUSTER_GPUS,
    KINDS,
    TARGET,
    USUAL,
    curve_of,
    duration_s,
    load_of,
)

TABLE_2 = (
    Path(os.environ.get("STRETTO_DATA", Path(__file__).parents[2] / "../shared/data"))
    / "ones"
    / "table2_workloads.csv"
)


def test_there_are_fifty_kinds_as_in_table_2() -> None:
    assert len(set(KINDS)) == 50
    assert Counter(kind.dataset for kind in KINDS) == {
        "ImageNet": 24, "CIFAR10": 15, "COLA": 4, "MRPC": 1, "SST-2": 6
    }  # fmt: skip


@pytest.mark.data
@pytest.mark.skipif(not TABLE_2.exists(), reason="needs ones/table2_workloads.csv below $STRETTO_DATA")
def test_the_kinds_are_those_of_the_published_table() -> None:
    with TABLE_2.open(encoding="utf-8", newline="") as file:
        rows = {
            (row["dataset"], row["model"], int(row["dataset_size"]), int(row["num_classes"]))
            for row in csv.DictReader(file)
        }
    assert {(kind.dataset, kind.model, kind.samples, kind.classes) for kind in KINDS} == rows


@pytest.mark.parametrize("reached", [1, 10, 40])
def test_a_job_stops_ten_epochs_after_it_has_reached_its_target(reached: int) -> None:
    curve = curve_of(KINDS[0], reached)
    assert curve.epochs == reached + ABOVE_TARGET_EPOCHS
    assert curve.metrics[reached - 1] == pytest.approx(TARGET)
    assert (curve.metrics[reached:] > TARGET).all()


def test_the_load_of_the_usual_workload_is_about_four_fifths() -> None:
    loads = []
    for seed in range(8):
        workload = make_workload("ones", seed=seed)
        loads.append(load_of(list(zip(workload.jobs, workload.truths, strict=True))))
    assert np.mean(loads) == pytest.approx(0.8, abs=0.04)


def test_jobs_end_within_two_hours_on_what_they_ask_for() -> None:
    workload = make_workload("ones", seed=1)
    alone_s = [duration_s(job, truth) for job, truth in zip(workload.jobs, workload.truths, strict=True)]
    assert max(alone_s) < 7_200
    assert min(alone_s) > 10


def test_arrivals_are_poisson() -> None:
    gaps_s = np.diff([job.submitted_s for job in make_workload("ones", hours=30.0).jobs])
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.06)


def test_a_small_cluster_is_asked_for_no_more_than_it_has() -> None:
    small = make_workload("ones", jobs=60, cluster=read_cluster("ones-16"))
    assert max(job.gpus for job in small.jobs) <= 16
    assert read_cluster("ones-64").total_gpus == CLUSTER_GPUS


def test_the_workload_says_that_it_is_made() -> None:
    workload = make_workload("ones", jobs=5)
    assert workload.synthetic
    assert workload.source.startswith("made, not recorded: trainings of the fifty kinds")
    assert len(workload.jobs) == 5


def test_batches_grow_with_the_gpus_or_are_the_usual_ones() -> None:
    grown, usual = (make_workload(f"{kind}:hours=3,seed=0") for kind in ("ones", "ones-usual-batch"))
    assert all(job.batch_size == find_model(job.model).init_batch for job in usual.jobs)
    assert sum(job.batch_size > find_model(job.model).init_batch for job in grown.jobs) > 150


def test_the_calibrated_workload_has_a_tail_and_owners_that_ask_for_most_of_a_node_and_more() -> None:
    jobs = make_workload("ones-usual-batch:hours=30,seed=2")
    assert np.mean([job.gpus == 8 for job in jobs.jobs]) == pytest.approx(USUAL.gpus_share[-1], abs=0.03)
    assert {job.gpus for job in jobs.jobs} == {4, 8}
    assert len(jobs.jobs) / 30 == pytest.approx(95, rel=0.1)
    reached = np.array(
        [truth.learning.epochs - ABOVE_TARGET_EPOCHS for truth in jobs.truths if truth.learning]
    )
    assert np.mean(reached > 10) == pytest.approx(10**-USUAL.tail, abs=0.03)
