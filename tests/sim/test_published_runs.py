"""Our world beside the runs of Sia's published simulator, on its own workloads and profiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import pytest

from stretto.clusters import read_cluster
from stretto.model import Job, Plan, Snapshot
from stretto.policies.registry import load_policy
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.truth.profiles import ProfileLibrary, read_profiles
from stretto.testing.builders import a_job
from stretto.traces import read_trace
from stretto.traces.workload import Truth, Workload

pytestmark = pytest.mark.data

HETERO = read_cluster("sia-hetero-64")
ARTIFACT = SimSettings(fidelity=Fidelity.ARTIFACT)
AS_PUBLISHED: Mapping[str, Any] = {"first_type": "blind", "decimals": 2, "discount": "paper"}


@pytest.fixture(scope="module")
def profiles(data_dir: Path) -> ProfileLibrary:
    return read_profiles(data_dir / "sia" / "profiles")


@dataclass
class Changes:
    """What each job was given, whenever that changed: (time, type, GPUs on each node)."""

    of: dict[str, list[tuple[float, str, tuple[int, ...]]]] = field(default_factory=dict)

    def record(self, snapshot: Snapshot, plan: Plan) -> None:
        for action in plan.actions:
            if action.after is not None:
                name = snapshot.cluster.type_names[action.after.kind]
                self.of.setdefault(action.job, []).append((snapshot.now_s, name, action.after.shape))


def trained(
    jobs: Sequence[Job], profiles: ProfileLibrary, sim: SimSettings = ARTIFACT, **policy: Any
) -> tuple[Result, Changes]:
    """Jobs under Sia on the mixed cluster."""
    workload = Workload("made", jobs, [Truth(nan)] * len(jobs))
    changes = Changes()
    setup = Setup(HETERO, load_policy("sia", **policy), sim, profiles)
    return simulate(workload, setup, record=changes.record), changes


ALONE = [
    pytest.param("cifar10", 2048, 589, [(60, "rtx2080ti", (1,)), (120, "a100", (2,))], id="cifar10"),
    pytest.param("bert", 384, 1012, [(60, "rtx2080ti", (1,)), (240, "a100", (2,))], id="bert"),
    pytest.param("deepspeech2", 320, 1885, [(60, "rtx2080ti", (1,)), (120, "a100", (2,))], id="deepspeech2"),
    pytest.param("yolov3", 64, 7073, [(60, "rtx2080ti", (1,)), (180, "a100", (2,))], id="yolov3"),
    pytest.param("imagenet", 1600, 18519, [(60, "rtx2080ti", (1,)), (360, "a100", (2,))], id="imagenet"),
]


@pytest.mark.parametrize(("model", "batch_size", "completed_s", "first_changes"), ALONE)
def test_a_job_alone_begins_as_published_and_ends_within_5_percent(
    profiles: ProfileLibrary,
    model: str,
    batch_size: int,
    completed_s: float,
    first_changes: list[tuple[float, str, tuple[int, ...]]],
) -> None:
    job = a_job("j", model=model, batch_size=batch_size, at_s=30.0)
    result, changes = trained([job], profiles, **AS_PUBLISHED)
    assert changes.of["j"][:2] == first_changes
    assert result.completed_s[0] == pytest.approx(completed_s, rel=0.05)


def test_bert_alone_runs_exactly_as_published(profiles: ProfileLibrary) -> None:
    job = a_job("j", model="bert", batch_size=384, at_s=30.0)
    result, changes = trained([job], profiles, **AS_PUBLISHED)
    assert result.completed_s[0] == 1012.0
    assert result.restarts[0] == 3
    assert changes.of["j"] == [
        (60.0, "rtx2080ti", (1,)),
        (240.0, "a100", (2,)),
        (480.0, "a100", (4,)),
        (840.0, "a100", (8,)),
    ]


@pytest.mark.parametrize(
    ("trace", "policy", "settings", "mean_jct_h", "within"),
    [
        pytest.param("philly/workload-1", "sia", AS_PUBLISHED, 0.542, 0.12, id="sia on philly-1"),
        pytest.param(
            *("helios/workload-5", "sia", AS_PUBLISHED, 0.662, 0.12),
            id="sia on helios-5",
            marks=pytest.mark.long,
        ),
        pytest.param("philly/workload-1", "gavel", {}, 1.671, 0.08, id="gavel on philly-1"),
    ],
)
def test_a_workload_takes_as_long_as_published(
    data_dir: Path,
    profiles: ProfileLibrary,
    trace: str,
    policy: str,
    settings: Mapping[str, Any],
    mean_jct_h: float,
    within: float,
) -> None:
    """One trace resolves no better: with another exact solver the publication's own figures move."""
    workload = read_trace(str(data_dir / "sia" / "workloads" / f"{trace}.csv"))
    result = simulate(workload, Setup(HETERO, load_policy(policy, **settings), ARTIFACT, profiles))
    assert result.done.all()
    assert len(result.jct_s) == 160
    assert result.summary()["avg_jct_s"] / 3600 == pytest.approx(mean_jct_h, rel=within)


@pytest.mark.parametrize("sim", [ARTIFACT, SimSettings()], ids=["artifact", "paper"])
def test_a_hybrid_parallel_job_runs_on_whole_replicas_beside_others(
    profiles: ProfileLibrary, sim: SimSettings
) -> None:
    """A replica of the GPT model takes 8 of the smaller GPUs, or 2 of the larger; T4s cannot hold one."""
    jobs = [a_job(f"gpt-{n}", gpus=8, model="gpt_pmp", batch_size=48, at_s=100.0 * n) for n in range(3)]
    jobs += [a_job(f"small-{n}", model="cifar10", batch_size=256, at_s=130.0 * n) for n in range(6)]
    jobs.sort(key=lambda job: (job.submitted_s, job.id))
    result, changes = trained(jobs, profiles, sim)
    assert result.done.all()
    replica = {"rtx2080ti": 8, "a100": 2}
    given = {(name, sum(shape)) for job, all_of_it in changes.of.items() if "gpt" in job
             for _, name, shape in all_of_it}  # fmt: skip
    assert {name for name, _ in given} == {"rtx2080ti", "a100"}
    assert all(gpus % replica[name] == 0 for name, gpus in given)
    assert max(gpus // replica[name] for name, gpus in given) > 1  # it grows by replicas


def test_the_oracles_profile_of_a_measured_model_holds_what_was_measured(profiles: ProfileLibrary) -> None:
    job = a_job("j", model="bert", batch_size=384, at_s=30.0)
    setup = Setup(HETERO, load_policy("sia"), SimSettings(), profiles, estimate_settings={"mode": "oracle"})
    seen: list[Snapshot] = []
    workload = Workload("one", [job], [Truth(nan)])
    result = simulate(workload, setup, record=lambda snapshot, plan: seen.append(snapshot))
    evidence = seen[0].jobs.evidence[0]
    assert evidence is not None
    for kind, observed in enumerate(evidence.observed):
        name = HETERO.type_names[kind]
        for point in observed.points:
            shape = (point.gpus // point.nodes,) * point.nodes
            step_s, sync_s = profiles.model("bert").step(name, shape, point.local_batch)
            assert (point.step_s, point.grad_s) == (step_s, step_s - sync_s)
    bootstrapped, _ = trained([job], profiles, SimSettings())
    assert result.completed_s[0] <= bootstrapped.completed_s[0]
