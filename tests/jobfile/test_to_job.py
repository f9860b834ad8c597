"""What was asked for becomes what a scheduler decides over, or a reason why it never can."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from tests.drawn import scaled

from stretto.jobfile import JobSpec, permitted_gpus, read_submission, spec_to_job
from stretto.jobfile.to_job import DEADLINE_WORTH, JOB_KEYS, accepted_job, scaled_bounds
from stretto.model import (
    UNLIMITED_GPUS,
    Adaptivity,
    Cluster,
    Goal,
    GpuType,
    InputError,
    Job,
    Kind,
    Node,
    NodeId,
    Reward,
)

from .specs import specs

T4 = GpuType("t4", aliases=("aws",))
A100 = GpuType("a100", aliases=("dgx", "A100-80GB"), max_nodes_per_job=2)
LENT = GpuType("lent", stand_ins=3)
CLUSTER = Cluster(
    "mixed",
    (T4, A100, LENT),
    (
        *(Node(NodeId(f"t{n}"), "t4", 4, cpus=48, memory_gb=192.0) for n in range(2)),
        *(Node(NodeId(f"a{n}"), "a100", 8) for n in range(3)),
        Node(NodeId("l0"), "lent", 8),
    ),
)


def job_of(text: str, **more: Any) -> Job:
    spec, _ = read_submission(f"run: x\n{text}")
    return spec_to_job(spec, "j1", 100.0, CLUSTER, **more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "",
            {"gpus": 1, "max_gpus": 1, "adaptivity": Adaptivity.RIGID, "gpu_types": ()},
            id="one GPU of any type",
        ),
        pytest.param(
            "resources: {accelerators: 'A100:8'}",
            {"gpus": 8, "min_gpus": 8, "gpu_types": ("a100",), "adaptivity": Adaptivity.RIGID},
            id="a fixed size, the type in other letters",
        ),
        pytest.param(
            "resources: {accelerators: [a100-80gb, AWS]}", {"gpu_types": ("a100", "t4")}, id="aliases"
        ),
        pytest.param(
            "resources: {accelerators: [DGX, A100]}", {"gpu_types": ("a100",)}, id="two names of one"
        ),
        pytest.param("resources: {accelerators: [H100, t4]}", {"gpu_types": ("t4",)}, id="one is known"),
        pytest.param("resources: {accelerators: 12}", {"gpu_types": ("a100",)}, id="where so many fit"),
        pytest.param(
            "resources: {gpus_per_worker: 8}", {"gpu_types": ("a100",), "gpus": 8}, id="on one node"
        ),
        pytest.param("resources: {cpus: 49}", {"gpu_types": ("a100", "lent")}, id="where the cores are"),
        pytest.param(
            "elastic: {min: 2, max: 16}",
            {"gpus": 2, "min_gpus": 2, "max_gpus": 16, "adaptivity": Adaptivity.STRONG_SCALING},
            id="a range with a fixed batch",
        ),
        pytest.param(
            "elastic: {}\nbatch: {policy: adaptive, init: 128}",
            {"adaptivity": Adaptivity.ADAPTIVE, "batch_size": 128, "max_gpus": UNLIMITED_GPUS, "min_gpus": 1},
            id="any size and batch",
        ),
        pytest.param("elastic: {sizes: [2, 8]}", {"min_gpus": 2, "max_gpus": 8}, id="sizes"),
        pytest.param(
            "elastic: {min: 3}\nresources: {gpus_per_worker: 2}",
            {"min_gpus": 4, "gpus": 4, "gpus_per_worker": 2},
            id="whole workers",
        ),
        pytest.param(
            "elastic: {min: 1, max: 16}\nresources: {gpus_per_worker: {A100-80GB: 2, t4: 4}}",
            {
                "replica_gpus": {"a100": 2, "t4": 4},
                "gpus_per_worker": 2,
                "min_gpus": 2,
                "gpus": 2,
                "max_gpus": 16,
                "gpu_types": ("t4", "a100"),
            },
            id="workers of other sizes on other types, and on no type that is not named",
        ),
        pytest.param(
            "resources: {gpus_per_worker: {a100: 2, t4: 8}}",
            {"gpus": 8, "min_gpus": 8, "gpu_types": ("a100",)},
            id="a fixed size of whole workers on both types, of which one has no such node",
        ),
        pytest.param(
            "resources: {accelerators: ['t4:20', 'a100:20'], heterogeneous: true}",
            {"heterogeneous": True, "gpus": 20, "gpu_types": ("t4", "a100")},
            id="more than any type has, on several at once",
        ),
        pytest.param("kind: interactive", {"kind": Kind.INTERACTIVE}, id="interactive"),
        pytest.param("deadline: 1h", {"rewards": (Reward(3_700.0, DEADLINE_WORTH),)}, id="a deadline"),
        pytest.param(
            "rewards: [{by: 1h, worth: 3}, {by: 2h, worth: 1}]",
            {"rewards": (Reward(3_700.0, 3.0), Reward(7_300.0, 1.0))},
            id="rewards",
        ),
        pytest.param("stop: {metric: acc, target: 0.9, max: 20}", {"goal": Goal(0.9, 20)}, id="a goal"),
        pytest.param("stop: {epochs: 20}", {"goal": None}, id="epochs are no goal"),
        pytest.param("checkpoint: {}", {"checkpoints": True}, id="keeps its progress"),
        pytest.param("", {"checkpoints": None, "preemptible": False, "deadline_s": inf}, id="nothing said"),
        pytest.param(
            "priority: 7\nqueue: q\nmodel: bert\nlabels: {a: b}\npreemptible: no",
            {"priority": 7, "queue": "q", "model": "bert", "labels": {"a": "b"}, "preemptible": False},
            id="as it says",
        ),
    ],
)
def test_a_job_is(text: str, expected: dict[str, Any]) -> None:
    job = job_of(text)
    assert {field: getattr(job, field) for field in expected} == expected


def test_who_submits_and_what_a_queue_weighs_come_from_the_service() -> None:
    job = job_of("", user="ann", weight=2.5)
    assert (job.id, job.submitted_s, job.user, job.weight) == ("j1", 100.0, "ann", 2.5)


def test_without_the_sdk_a_batch_stays_as_it_is() -> None:
    job = job_of("elastic: {}\nbatch: {policy: adaptive}", uses_sdk=False)
    assert job.adaptivity is Adaptivity.STRONG_SCALING


def test_a_date_is_put_on_the_clock_of_the_service() -> None:
    job = job_of("deadline: 2030-01-31T18:00:00Z", epoch_s=1_896_112_800.0 - 500.0)
    assert job.rewards == (Reward(500.0, DEADLINE_WORTH),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("resources: {accelerators: H100}", "unknown gpu type 'H100', did you mean 'a100'?"),
        ("resources: {accelerators: [TPU, GB200]}", "unknown gpu type 'TPU', 'GB200', expected one of"),
        ("resources: {accelerators: 't4:9'}", "asks for 9 GPUs of t4, which has 8"),
        ("resources: {accelerators: 'a100:17'}", "asks for 17 GPUs of a100, which has 16 on 2 nodes"),
        ("resources: {accelerators: 'lent:3'}", "asks for 9 GPUs of lent, which has 8"),
        ("resources: {accelerators: 99}", "asks for 99 GPUs of t4, which has 8; asks for 99 GPUs of a100"),
        ("elastic: {min: 9}\nresources: {accelerators: t4}", "asks for 9 GPUs of t4, which has 8"),
        ("resources: {accelerators: t4, gpus_per_worker: 8}", "gpus_per_worker=8, but a node of t4 has 4"),
        (
            "resources: {accelerators: 't4:1', cpus: 49}",
            "mixed: 49 cores beside 1 GPU are more than a node",
        ),
        (
            "resources: {accelerators: ['t4:25', 'a100:25'], heterogeneous: true}",
            "mixed: asks for 25 GPUs of several types, which have 24 together",
        ),
        (
            "resources: {accelerators: 16, gpus_per_worker: 16, heterogeneous: true}",
            "gpus_per_worker=16, but a node of t4 has 4",
        ),
        ("resources: {accelerators: 't4:2', memory: 400GB}", "mixed: 200 GB beside 1 GPU are more than"),
        (
            "resources: {accelerators: 't4:2', gpus_per_worker: 2, cpus: 49, memory: 4GB}",
            "mixed: 49 cores and 4 GB beside 2 GPUs are more than a node",
        ),
        (
            "elastic: {min: 10, max: 12}\nresources: {gpus_per_worker: {t4: 2, a100: 8}}",
            "mixed: asks for 10 GPUs of t4, which has 8; "
            "expected a range with a multiple of 8 GPUs, one worker on a100, got 10 to 12",
        ),
    ],
)
def test_a_job_that_can_never_run_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        job_of(text)
    assert str(refused.value).startswith("job job can never run on cluster mixed: ")
    assert said in str(refused.value)


def test_a_range_without_a_whole_worker_is_no_matter_on_a_type_among_others_or_once_it_was_accepted() -> None:
    text = "run: x\nelastic: {min: 10, max: 12}\nresources: {gpus_per_worker: {a100: 2, t4: 8}}"
    spec, _ = read_submission(text)
    assert spec_to_job(spec, "j1", 100.0, CLUSTER).gpu_types == ("a100",)
    alone, _ = read_submission(text.replace("a100: 2", "lent: 8").replace("t4: 8", "a100: 2"))
    assert accepted_job(alone, "j1", 100.0, CLUSTER).max_gpus == 12


@pytest.mark.parametrize(
    ("fewest", "most", "expected"),
    [(2, 12, (2, 12)), (10, 12, "a multiple of 8 GPUs, one worker on a100, got 10 to 12"), (8, 8, (8, 8))],
)
def test_other_bounds_have_to_hold_a_whole_worker(
    fewest: int, most: int, expected: tuple[int, int] | str
) -> None:
    text = "run: x\nelastic: {min: 2, max: 16}\nresources: {gpus_per_worker: {t4: 2, a100: 8}}"
    spec, _ = read_submission(text)
    if isinstance(expected, tuple):
        assert scaled_bounds(spec, fewest, most, CLUSTER) == expected
        return
    with pytest.raises(InputError, match=expected):
        scaled_bounds(spec, fewest, most, CLUSTER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "resources: {gpus_per_worker: {dgx: 2, a100: 4}}",
            "resources.gpus_per_worker must .* dgx: 2 and a100: 4",
        ),
        (
            "elastic: {min: 2}\nresources: {accelerators: ['a100:2', 'DGX:4']}",
            "resources.accelerators must .* a100: 2 and DGX: 4",
        ),
        (
            "batch: {per_gpu: {t4: 8, AWS: 9}}",
            "batch.per_gpu must .* type t4 of cluster mixed, got t4: 8 and AWS: 9",
        ),
    ],
)
def test_two_numbers_for_one_type_by_two_of_its_names_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        job_of(text)


def test_one_number_by_two_names_of_a_type_is_fine() -> None:
    assert job_of("resources: {accelerators: ['a100:2', 'dgx:2']}").gpu_types == ("a100",)
    assert job_of("resources: {gpus_per_worker: {dgx: 4, a100: 4}}").replica_gpus == {"a100": 4}


@pytest.mark.parametrize(
    ("text", "epoch_s", "said"),
    [
        ("deadline: 2001-01-01T00:00:00Z", 1e9, "deadline must be after the submission"),
        ("deadline: 0s", 0.0, "deadline must be after the submission"),
        (
            "rewards: [{by: 4h, worth: 2}, {by: 2001-09-09T02:00:00Z, worth: 1}]",
            1e9,
            "rewards, entry 2 must be later than the one before it",
        ),
    ],
)
def test_a_time_that_cannot_be_kept_is_refused(text: str, epoch_s: float, said: str) -> None:
    with pytest.raises(InputError, match=said):
        job_of(text, epoch_s=epoch_s)


@pytest.mark.parametrize(
    ("text", "permitted"),
    [
        ("resources: {accelerators: 4}", {3: 0, 4: 4, 9: 4}),
        ("elastic: {min: 2, max: 6}", {1: 0, 2: 2, 5: 5, 9: 6}),
        ("elastic: {sizes: [1, 2, 8]}", {1: 1, 7: 2, 8: 8, 99: 8}),
        ("elastic: {min: 2}\nresources: {gpus_per_worker: 2}", {1: 0, 3: 2, 5: 4}),
    ],
)
def test_the_largest_permitted_size_within(text: str, permitted: dict[int, int]) -> None:
    spec, _ = read_submission(f"run: x\n{text}")
    assert {gpus: permitted_gpus(spec, gpus) for gpus in permitted} == permitted


HUGE = Cluster("huge", (GpuType("a"),), tuple(Node(NodeId(f"n{n}"), "a", 8) for n in range(200)))


@settings(max_examples=scaled(80), deadline=None)
@given(spec=specs())
def test_whatever_is_specified_becomes_a_job_or_a_reason(spec: JobSpec) -> None:
    anywhere = replace(spec, resources=replace(spec.resources, accelerators=()))
    for one in (spec, anywhere):
        try:
            job = spec_to_job(one, "j", 50.0, HUGE)
        except InputError:
            continue
        assert job.min_gpus <= one.gpus <= job.max_gpus
        assert {name: getattr(job, name) for name in JOB_KEYS} == {
            name: getattr(spec, name) for name in JOB_KEYS
        }
        assert permitted_gpus(one, job.gpus) == job.gpus
