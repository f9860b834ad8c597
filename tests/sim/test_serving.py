"""Jobs that answer requests within a latency, as the simulated world runs them and as policies decide."""

from math import isfinite, nan
from pathlib import Path
from typing import Any

import pytest

from stretto.estimate.serving import kept
from stretto.model import Adaptivity, GpuType, InputError, Job, Purpose, ServiceLevel, cluster_of
from stretto.policies.registry import load_policy
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.sim.setup import physics_of
from stretto.sim.truth.serving import ServingRun, ServingTruth
from stretto.testing.builders import a_job
from stretto.traces import read_trace
from stretto.traces.workload import Truth, Workload

from .made_worlds import seen

T4, A100 = GpuType("t4"), GpuType("a100")
MIXED = cluster_of("mixed", (T4, 2, 4), (A100, 1, 4))
HOUR = Truth(3600.0)
MODEL = "resnet18-cifar10"


def serving(name: str = "s", latency_s: float = 0.1, requests_per_s: float = 1000.0, **rest: Any) -> Job:
    usual: dict[str, Any] = {"model": MODEL, "adaptivity": Adaptivity.STRONG_SCALING, "max_gpus": 8}
    promised = {"latency_s": latency_s, "requests_per_s": requests_per_s}
    return a_job(name, **(usual | {"purpose": Purpose.SERVING} | promised | rest))


def run_of(job: Job, truth: Truth = HOUR, **sim: Any) -> ServingRun:
    run = physics_of(Workload("one", [job], [truth]), MIXED, SimSettings(**sim)).training[0]
    assert isinstance(run, ServingRun)
    return run


def truth_of(job: Job) -> ServingTruth:
    truth = run_of(job).truth
    assert isinstance(truth, ServingTruth)
    return truth


def rate_of(workers: float, latency_s: float, kind: int = 0) -> float:
    """Requests per second that so many workers of a type keep the latency for."""
    truth = truth_of(serving(latency_s=latency_s, requests_per_s=1e-3))
    batch = truth.largest_batch(kind)
    return workers * batch / truth.step(kind, (), batch)[0]


# ── which GPUs keep a promise ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("latency_s", "workers", "most", "batch", "per_s"),
    [
        pytest.param(0.2, 1, 64, 9, 90.0, id="two batches within the latency"),
        pytest.param(0.2, 3, 64, 9, 270.0, id="workers do not wait for each other"),
        pytest.param(0.2, 1, 4, 4, 80.0, id="no more than fit on it"),
        pytest.param(0.03, 1, 64, 0, 0.0, id="one request takes too long"),
        pytest.param(0.2, 1, 0, 0, 0.0, id="the model does not run there"),
    ],
)
def test_a_worker_answers_as_many_together_as_two_batches_fit_into_the_latency(
    latency_s: float, workers: int, most: int, batch: int, per_s: float
) -> None:
    found = kept(ServiceLevel(latency_s, per_s or 1.0), 0.01, 0.01, workers, most)
    assert found.batch == batch
    assert found.per_s == pytest.approx(per_s)
    assert bool(found.holds) is (per_s > 0)
    assert not kept(ServiceLevel(latency_s, per_s + 0.1), 0.01, 0.01, workers, most).holds


def test_the_truth_and_the_estimate_agree_once_batches_were_timed() -> None:
    job = serving(requests_per_s=rate_of(3, 0.1))
    run = run_of(job)
    assert run.truth.table(0, 8).per_s[0, 2:5].tolist() == pytest.approx([nan, 1.0, 1.0], nan_ok=True)
    policy = load_policy("sia")
    world = seen(policy, Workload("one", [job], [HOUR]), MIXED, SimSettings())
    sizes = [int(snapshot.jobs.held_gpus[0]) for snapshot in world.snapshots if len(snapshot.jobs)]
    assert sizes[:2] == [0, 1], "it begins with the fewest"
    assert sizes[-1] == 4, "the smallest configuration of Sia that keeps it"


# ── in the simulated world ────────────────────────────────────────────────────────────────────────


def test_time_passes_whether_the_latency_is_kept_or_not_and_both_are_counted() -> None:
    job = serving(requests_per_s=rate_of(2, 0.1))
    run = run_of(job)
    run.give(0, (1,), moved=True, now_s=0.0)
    run.advance(run.truth.restart_s + 1000.0)
    assert (run.progress, run.kept_s) == pytest.approx((1000.0, 0.0))
    run.give(0, (2,), moved=True, now_s=run.now_s)
    run.advance(1e9)
    assert run.done
    assert run.kept_s == pytest.approx(2600.0)
    assert run.samples == pytest.approx(3600.0 * job.requests_per_s)
    assert run.completed_s == pytest.approx(3600.0 + 2 * run.truth.restart_s)


def test_a_fast_type_keeps_what_a_slow_one_does_not() -> None:
    truth = truth_of(serving(requests_per_s=1.0))
    slow_s, fast_s = (truth.step(kind, (), 1)[0] for kind in (0, 1))
    assert fast_s < slow_s
    between = serving(latency_s=slow_s + fast_s, requests_per_s=1.0)
    assert [truth_of(between).fewest_gpus(kind) for kind in (0, 1)] == [float("inf"), 1.0]


def simulated(policy: str, *jobs: Job, **sim: Any) -> Any:
    made = load_policy(policy)
    workload = Workload("some", list(jobs), [HOUR if job.latency_s else Truth(nan) for job in jobs])
    return simulate(workload, Setup(MIXED, made, SimSettings(**sim)))


def test_sia_gives_it_what_keeps_its_latency_beside_trainings_and_fifo_does_not() -> None:
    job = serving(latency_s=0.1, requests_per_s=rate_of(2, 0.1), gpu_types=("t4",))
    others = [a_job(f"t{place}", model=MODEL, max_gpus=16) for place in range(3)]
    found = {policy: simulated(policy, job, *others) for policy in ("sia", "fifo")}
    assert found["sia"].summary()["latency_kept"] > 0.9
    assert found["fifo"].summary()["latency_kept"] == 0.0, "it keeps the one GPU that it asked for"
    assert simulated("sia", *others).summary()["latency_kept"] is None


@pytest.mark.parametrize("policy", ["afs", "optimus", "elasticflow", "pollux", "stretto", "drl"])
def test_policies_that_read_speeds_give_it_what_keeps_its_latency(policy: str) -> None:
    job = serving(requests_per_s=rate_of(2, 0.1), gpu_types=("t4",), max_gpus=4)
    assert simulated(policy, job).summary()["latency_kept"] > 0.9


def test_under_gavel_it_gets_the_type_that_keeps_its_latency() -> None:
    truth = truth_of(serving(requests_per_s=1.0))
    between_s = truth.step(0, (), 1)[0] + truth.step(1, (), 1)[0]
    job = serving(latency_s=between_s, requests_per_s=1.0)
    assert simulated("gavel", job).summary()["latency_kept"] > 0.9


# ── traces ────────────────────────────────────────────────────────────────────────────────────────


def test_a_trace_says_it_and_a_simulation_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "served.csv"
    file.write_text(
        "job_id,submitted_s,gpus,model,duration_s,purpose,latency_s,requests_per_s,adaptivity,max_gpus\n"
        f"serve-1,0,1,{MODEL},3600,serving,0.1,{rate_of(2, 0.1)!r},strong-scaling,8\n"
        f"train-1,60,2,{MODEL},,training,,,adaptive,16\n"
    )
    workload = read_trace(file)
    assert [job.purpose for job in workload.jobs] == [Purpose.SERVING, Purpose.TRAINING]
    run = seen(load_policy("sia"), workload, MIXED, SimSettings())
    assert all(isfinite(run.completed_s(name)) for name in ("serve-1", "train-1"))
    assert run.completed_s("serve-1") >= 3600.0


@pytest.mark.parametrize(
    ("job", "truth", "message"),
    [
        pytest.param({}, Truth(nan), "job s: serving: expected duration_s", id="no end"),
        pytest.param({"model": ""}, HOUR, "job s: .*model", id="no model"),
        pytest.param(
            {"latency_s": 1e-6}, HOUR, "latency_s and requests_per_s must be what some GPUs", id="too fast"
        ),
        pytest.param({"requests_per_s": 1e9}, HOUR, "got 0.1 and 1e\\+09", id="too many"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    job: dict[str, Any], truth: Truth, message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        run_of(serving(**job), truth)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"purpose": Purpose.SERVING, "latency_s": 0.1}, "above 0, got 0.1 and 0"),
        ({"latency_s": 0.1, "requests_per_s": 1.0}, "with purpose serving only, got 0.1 and 1"),
        (
            {"purpose": Purpose.SERVING, "latency_s": 0.1, "requests_per_s": 1.0, "heterogeneous": True},
            "GPUs of one type",
        ),
    ],
)
def test_a_promise_is_whole_or_not_there(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        a_job("s", **asked)
