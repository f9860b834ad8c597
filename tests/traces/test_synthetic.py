from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stretto.catalogue import find_model
from stretto.clusters import read_cluster
from stretto.model import Adaptivity, InputError, Kind
from stretto.traces import MADE, check_against, make_workload, read_trace, write_trace
from stretto.traces.arrivals import PATTERNS, arrival_times_s
from stretto.traces.makers import (
    DURATION_S,
    GPUS,
    LEAST,
    MOST,
    PROBABILITY,
    SHARE_OF_GPU_HOURS,
    SHARE_OF_JOBS,
    draw_durations_s,
    draw_gpus,
    requests,
)

CLUSTERS = ["sia-hetero-64", "sia-homo-64", "sia-physical-44", "ones-16", "gpu8-256", "lyra"]


@pytest.mark.parametrize("kind", MADE)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(kind: str, tmp_path: Path) -> None:
    texts = []
    for seed in (1, 1, 2):
        path = tmp_path / "trace.csv"
        write_trace(make_workload(kind, jobs=50, seed=seed), path)
        texts.append(path.read_bytes())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("kind", MADE)
def test_made_workloads_say_so_and_keep_saying_so_in_a_file(kind: str, tmp_path: Path) -> None:
    workload = make_workload(kind, jobs=20, seed=5)
    assert workload.synthetic
    assert workload.source.startswith("made, not recorded:")
    assert "seed 5" in workload.source
    write_trace(workload, tmp_path / "trace.csv")
    assert read_trace(tmp_path / "trace.csv").synthetic


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
def test_the_name_of_a_made_workload_makes_it_again(kind: str) -> None:
    workload = make_workload(kind, jobs=30, hours=3, seed=4, arrivals="venus", rigid=0.5)
    again = read_trace(workload.name)
    assert again.jobs == workload.jobs
    assert make_workload(kind).name == kind


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("kind", MADE)
def test_every_job_fits_the_cluster_it_is_made_for(kind: str, cluster: str) -> None:
    machines = read_cluster(cluster)
    workload = make_workload(kind, jobs=300, seed=1, cluster=machines)
    assert check_against(workload, machines) is workload
    assert cluster in workload.source
    assert max(job.gpus for job in workload.jobs) <= max(machines.capacity)


@pytest.mark.parametrize("kind", MADE)
def test_jobs_arrive_in_order_within_the_window(kind: str) -> None:
    workload = make_workload(kind, jobs=200, hours=5)
    times = [job.submitted_s for job in workload.jobs]
    assert len(times) == 200
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 5 * 3600
    assert len({job.id for job in workload.jobs}) == 200


def test_without_a_number_of_jobs_the_pattern_decides() -> None:
    assert len(make_workload("synthetic-sia", hours=4).jobs) == 80
    assert len(make_workload("synthetic-sia").jobs) == 160
    assert len(make_workload("demo").jobs) == 40


@pytest.mark.parametrize("name", PATTERNS)
def test_arrivals_have_the_published_mean_and_median_by_the_hour(name: str) -> None:
    pattern, hours = PATTERNS[name], 24 * 365
    times = arrival_times_s(pattern, round(pattern.per_hour * hours), hours, np.random.default_rng(0))
    per_hour = np.bincount((times // 3600).astype(int), minlength=hours)
    assert np.median(per_hour) == pytest.approx(pattern.median_per_hour, rel=0.25)
    by_hour_of_day = np.median(per_hour.reshape(-1, 24), axis=0)
    ratio = by_hour_of_day.max() / by_hour_of_day.min()
    assert ratio == pytest.approx(pattern.peak_over_trough, rel=0.5)


def test_the_busiest_hour_of_sia_windows_is_as_busy_as_in_its_workloads() -> None:
    busiest = []
    for seed in range(100):
        times = arrival_times_s(PATTERNS["sia"], 160, 8, np.random.default_rng(seed))
        busiest.append(np.bincount((times // 3600).astype(int)).max())
    assert 31 <= np.mean(busiest) <= 44  # the ten workloads of 8 hours: 31 to 44


def test_gpus_durations_and_gpu_time_are_distributed_as_in_philly() -> None:
    rng = np.random.default_rng(0)
    gpus = draw_gpus(200_000, 10_000, rng)
    duration_s = draw_durations_s(gpus, rng)
    for size, jobs, gpu_hours in zip(GPUS, SHARE_OF_JOBS, SHARE_OF_GPU_HOURS, strict=True):
        drawn = gpus == size
        assert 100 * drawn.mean() == pytest.approx(jobs, rel=0.2)
        share = (gpus * duration_s)[drawn].sum() / (gpus * duration_s).sum()
        assert 100 * share == pytest.approx(gpu_hours, rel=0.35)
    inner = slice(1, -2)  # the ends of the table are single jobs
    drawn_s = np.quantile(duration_s, PROBABILITY[inner])
    assert drawn_s == pytest.approx(DURATION_S[inner], rel=0.35)


def test_numbers_of_gpus_that_do_not_fit_do_not_occur() -> None:
    assert set(draw_gpus(5_000, 8, np.random.default_rng(0))) == {1, 2, 4, 8}


def test_sia_like_jobs_come_in_the_size_classes_of_philly() -> None:
    workload = make_workload("synthetic-sia", jobs=20_000)
    share = Counter(find_model(job.model).size_class for job in workload.jobs)
    for name, percent in (("S", 76.8), ("M", 16.8), ("L", 4.4), ("XL", 2.1)):
        assert 100 * share[name] / 20_000 == pytest.approx(percent, rel=0.15)


def test_tuned_requests_lie_between_half_and_four_fifths_of_the_ideal_speed_up() -> None:
    workload = make_workload("synthetic-sia", jobs=500, cluster=read_cluster("sia-homo-64"))
    for job in workload.jobs:
        found = requests(find_model(job.model), "t4", 4, 64)
        (asked,) = [one for one in found if (one.gpus, one.batch_size) == (job.gpus, job.batch_size)]
        assert LEAST <= asked.share_of_ideal <= MOST
        # The same again from its definition: the best single GPU, over GPUs times the time on them.
        alone_s = min(one.runtime_s * one.gpus * one.share_of_ideal for one in found)
        assert asked.share_of_ideal == pytest.approx(alone_s / (asked.runtime_s * asked.gpus))


def test_shares_of_rigid_and_strong_scaling_jobs_are_as_asked_for() -> None:
    workload = make_workload("synthetic-sia", jobs=4_000, rigid=0.25, strong_scaling=0.5)
    found = Counter(job.adaptivity for job in workload.jobs)
    assert found[Adaptivity.RIGID] / 4_000 == pytest.approx(0.25, abs=0.03)
    assert found[Adaptivity.STRONG_SCALING] / 4_000 == pytest.approx(0.5, abs=0.03)


def test_more_rigid_jobs_change_nothing_else() -> None:
    usual, rigid = make_workload("synthetic-sia"), make_workload("synthetic-sia", rigid=1.0)
    assert [(job.id, job.submitted_s, job.gpus, job.batch_size) for job in usual.jobs] == [
        (job.id, job.submitted_s, job.gpus, job.batch_size) for job in rigid.jobs
    ]


def test_the_demo_has_something_of_everything() -> None:
    workload = make_workload("demo", cluster=read_cluster("sia-hetero-64"))
    assert {job.adaptivity for job in workload.jobs} == set(Adaptivity)
    assert Counter(job.kind for job in workload.jobs)[Kind.INTERACTIVE] == 6
    assert any(job.rewards for job in workload.jobs)
    assert len({job.model for job in workload.jobs}) >= 6
    assert len({job.user for job in workload.jobs}) >= 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic", "unknown made workload 'synthetic', did you mean"),
        ("demo:job=3", "unknown parameter 'job', did you mean 'jobs'?"),
        ("demo:jobs", "parameters must be key=value, each once, got 'jobs'"),
        ("demo:jobs=3,jobs=4", "parameters must be key=value, each once, got 'jobs=4'"),
        ("demo:jobs=many", "jobs must be a number, got 'many'"),
        ("demo:jobs=-3", "jobs must lie between 0 and 1e+07, got -3"),
        ("demo:hours=0", "hours must be a number > 0, got 0.0"),
        ("demo:hours=nan", "hours must be a number > 0, got nan"),
        ("demo:seed=-1", "seed must lie between 0 and inf, got -1"),
        ("demo:arrivals=phily", "unknown arrivals 'phily', did you mean 'philly'?"),
        ("demo:models=few", "unknown models 'few', expected one of all, sia"),
        ("demo:rigid=0.7,strong_scaling=0.7", "strong_scaling must lie between 0 and 0.3, got 0.7"),
        ("demo:cluster=lyra", "unknown parameter 'cluster'"),
    ],
)
def test_wrong_parameters_are_named(name: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        make_workload(name)
    assert message in str(refused.value)


def test_the_sample_for_the_testbed_is_small_and_keeps_the_bounds_of_its_section() -> None:
    made = make_workload("helios-testbed:seed=1")
    assert len(made.jobs) == 360
    assert max(job.gpus for job in made.jobs) == 8, "of the sizes there are, the largest below 16"
    assert all(300 <= truth.duration_s <= 10_800 for truth in made.truths)
    assert max(job.submitted_s for job in made.jobs) < 8 * 3_600
    assert {len(job.rewards) for job in made.jobs} == {0, 1, 4}
    even, single = (make_workload(f"helios-testbed-{word}:seed=1") for word in ("even", "single"))
    assert all(300 <= truth.duration_s <= 10_800 for truth in even.truths)
    half = np.median([truth.duration_s for truth in even.truths])
    assert half == pytest.approx((300 + 10_800) / 2, rel=0.1)
    assert half > 2 * np.median([truth.duration_s for truth in made.truths])
    assert {job.gpus for job in single.jobs} == {1}
    assert [truth.duration_s for truth in single.truths] == [truth.duration_s for truth in made.truths]
