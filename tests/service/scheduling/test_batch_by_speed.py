"""Jobs that hold GPUs of several types at once: how a step is divided, and what it says of speeds."""

import pytest
from tests.service.scene import Scene

from stretto.model import InputError
from stretto.service.emulated.truth import Granted, Truths
from stretto.service.scheduling.batch_by_speed import divided_by_speed
from stretto.service.scheduling.scheduler import check_types
from stretto.service.state import events as happened
from stretto.service.state.events import Configured, Reported
from stretto.service.state.records import JobRecord
from stretto.service.state.status import status_of
from stretto.sim.settings import SimSettings

SAID = {"step": 1, "init_batch": 32, "max_batch": 32}
ANY = {"accelerators": [{"gpu_type": "", "gpus": 2}], "heterogeneous": True}


def two_types(step_s: dict[str, float]) -> Scene:
    """A node of four GPUs of each type, and how long a step on one GPU took jobs of the model there."""
    scene = Scene(0)
    scene.tell(Configured("lyra", speeds="measured", workers="whole"))
    for name, gpu_type in (("a", "fast"), ("b", "slow")):
        scene.tell(happened.NodeSeen(name, gpu_type, 4))
    for node, took_s in step_s.items():
        scene.submit(node, model="m", elastic=(1, 4))
        trains(scene, node, {node: 1})
        scene.tell(Reported(node, {**SAID, "points": [[1, 1, 32, 1, took_s, took_s]]}))
        scene.give(**{f"_{node}": None})
    return scene


def trains(scene: Scene, job: str, masks: dict[str, int]) -> None:
    scene.give(**{f"_{job}": masks})
    scene.reconcile()
    scene.ready(*scene.names(job))
    scene.reconcile()
    scene.join(job)


def mixed(scene: Scene) -> JobRecord:
    """A job of the model with two workers on `fast` and two on `slow`."""
    record = scene.submit("1", model="m", elastic=(2, 8), resources=ANY)
    trains(scene, "1", {"a": 0b1100, "b": 0b1100})
    scene.tell(Reported("1", SAID))
    return record


@pytest.mark.parametrize(
    ("step_s", "shares"),
    [({}, [8, 8, 8, 8]), ({"a": 0.1, "b": 0.3}, [12, 12, 4, 4]), ({"a": 0.2, "b": 0.1}, [5, 5, 11, 11])],
)
def test_a_step_is_divided_by_what_types_have_shown_and_evenly_before(
    step_s: dict[str, float], shares: list[int]
) -> None:
    scene = two_types(step_s)
    record = mixed(scene)
    batch = divided_by_speed(scene.state, record, record.members.workers)
    assert batch is not None
    assert (batch.total, list(batch.by_worker)) == (32, shares)


def test_a_division_is_kept_until_another_would_be_faster_by_a_tenth() -> None:
    scene = two_types({"a": 0.1, "b": 0.3})
    record = mixed(scene)
    names = record.members.workers
    near, far = (32, 13, 1, 13, 12, 3, 4), (32, 8, 1, 8, 8, 8, 8)
    for number, (published, shares) in enumerate([(near, [13, 12, 3, 4]), (far, [12, 12, 4, 4])], start=9):
        scene.tell(happened.Generation("1", 1, number, names, "", published))
        batch = divided_by_speed(scene.state, record, names)
        assert batch is not None
        assert list(batch.by_worker) == shares


def test_workers_of_one_type_share_evenly_and_so_do_those_of_a_job_that_only_moves() -> None:
    scene = two_types({"a": 0.1, "b": 0.3})
    record = mixed(scene)
    names = record.members.workers
    assert divided_by_speed(scene.state, record, names[:2]) is None
    other = scene.submit("2", gpus=2, model="m", elastic=(2, 8))
    other.workers.update(record.workers)
    assert divided_by_speed(scene.state, other, names) is None


def test_a_step_on_several_types_says_nothing_of_any_one() -> None:
    scene = two_types({})
    record = mixed(scene)
    scene.tell(Reported("1", {**SAID, "points": [[2, 4, 8, 1, 0.1, 0.1]]}))
    assert record.learned.points == ()
    assert record.learned.latest["init_batch"] == 32
    assert status_of(scene.state, record, scene.now_s).gpu_type == "fast, slow"


def test_a_policy_that_gives_one_type_refuses_such_a_job() -> None:
    spec = mixed(two_types({})).spec
    check_types(spec, Configured("lyra"))
    with pytest.raises(
        InputError, match=r"^resources.heterogeneous: policy fifo .* one of lyra, lyra-tuned$"
    ):
        check_types(spec, Configured("fifo"))


def test_on_the_emulated_cluster_it_runs_at_a_part_of_the_sum_of_both_speeds() -> None:
    scene = two_types({})
    record = scene.submit("1", gpus=4, resources=ANY, expected_time_s=3600.0, model="resnet18-cifar10")
    assert scene.state.cluster is not None
    truths = Truths(scene.state.cluster, SimSettings(mixing=0.7))
    alone, both = truths.run_of(record), truths.run_of(record)
    alone.give(Granted((2,), {0: 2}), 0.0, 0.0)
    both.give(Granted((2, 2), {0: 2, 1: 2}), 0.0, 0.0)
    assert both.next_s() == pytest.approx(alone.next_s() / (0.7 * 2))
