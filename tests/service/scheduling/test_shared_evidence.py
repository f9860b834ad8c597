"""What jobs of a model have shown counts for all of them, where the configuration says so."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.service.scene import Scene

from stretto.estimate.shared_points import MOST_BATCHES
from stretto.model import Evidence, Trigger, View
from stretto.service.scheduling.scheduler import evidence_that_counts
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured
from stretto.service.state.records import Learned, Prior
from stretto.service.state.reported_metrics import with_experience, with_news

BATCH = 64
BOUNDS: dict[str, Any] = {"init_batch": BATCH, "max_batch": 8 * BATCH}
PROFILE = {
    **BOUNDS,
    "restart_s": 30.0,
    "reach_gpus": 8,
    "types": {"a100": {"min_local": 8, "max_local": 64, "single_per_s": 100.0}},
}
SHARED, OWN = Configured("stretto", evidence="model"), Configured("stretto")


def report(*workers: int, step_s: float = 0.1) -> dict[str, Any]:
    points = [[1, count, BATCH // count, 1, step_s / count, step_s] for count in workers]
    return {**BOUNDS, "grad_sqr": 1.0, "grad_var": 2.0, "points": points}


def evidence(scene: Scene) -> Sequence[Evidence | None]:
    builder = SnapshotBuilder(frozenset({View.GOODPUT_MODEL}))
    return builder.observe(scene.state, scene.now_s, frozenset({Trigger.ROUND})).jobs.evidence


def of_type(shown: Evidence | None) -> set[tuple[int, int]]:
    """Placements on the first GPU type of which a job is believed to know something: nodes, replicas."""
    assert shown is not None
    return {point[:2] for point in shown.observed[0].points}


def two_that_train(configured: Configured, profile: bool) -> Scene:
    """Both run on one worker; then the first is measured on one and on two."""
    scene = Scene(1)
    scene.tell(configured)
    for number, name in enumerate(("1", "2")):
        scene.submit(name, elastic=(1, 4), model="m")
        if profile:
            scene.tell(happened.Reported(name, {"profile": PROFILE}))
        scene.give(**{f"_{name}": {"n0": 1 << number}})
        scene.reconcile()
    scene.tell(happened.Reported("2", BOUNDS), happened.Reported("1", report(1, 2)))
    return scene


@pytest.mark.parametrize("profile", [True, False], ids=["profiled", "not profiled"])
def test_what_one_job_shows_counts_for_another_of_its_model_that_trains(profile: bool) -> None:
    first, second = evidence(two_that_train(SHARED, profile))
    assert of_type(first) == of_type(second) == {(1, 1), (1, 2)}
    assert second is not None
    assert (second.grad_sqr, second.grad_var) == (1.0, 2.0)


@pytest.mark.parametrize("profile", [True, False], ids=["profiled", "not profiled"])
def test_older_logs_have_each_job_that_trains_count_what_it_has_shown_itself(profile: bool) -> None:
    first, second = evidence(two_that_train(OWN, profile))
    assert of_type(first) == {(1, 1), (1, 2)}
    assert of_type(second) == set()


def test_a_job_that_comes_later_starts_with_what_its_model_has_shown() -> None:
    scene = two_that_train(SHARED, profile=True)
    scene.submit("3", elastic=(1, 4), model="m")
    scene.tell(happened.Reported("3", {"profile": PROFILE}))
    assert of_type(evidence(scene)[-1]) == {(1, 1), (1, 2)}


def test_what_a_job_has_measured_itself_counts_more() -> None:
    scene = two_that_train(SHARED, profile=True)
    scene.tell(happened.Reported("2", report(1, step_s=0.3)))
    first, second = evidence(scene)
    assert first is not None
    assert second is not None
    steps_s = [{point.gpus: point.step_s for point in one.observed[0].points} for one in (first, second)]
    assert steps_s == [{1: 0.1, 2: 0.1}, {1: 0.3, 2: 0.1}]


def test_equal_jobs_share_one_object_which_stays_until_something_new_is_measured() -> None:
    scene = two_that_train(SHARED, profile=True)
    scene.tell(happened.Reported("2", report(1, step_s=0.101)))
    first, second = evidence(scene)
    assert first is not None
    assert second is not None
    assert first.observed[0] is second.observed[0]


def test_of_a_placement_few_batches_are_kept_and_others_find_room() -> None:
    many = tuple((0.0, 1.0, 1.0, float(batch), 1.0, 0.1, 0.1) for batch in range(8, 4096))
    prior = with_experience(Prior(), Learned(points=many), shared=True)
    assert len(prior.points) == MOST_BATCHES
    other = (0.0, 1.0, 2.0, 8.0, 1.0, 0.1, 0.1)
    assert other in with_news(prior.points, (other,), replaces=False)


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        pytest.param("stretto", {}, "model", id="as the policy has it"),
        pytest.param("sia", {}, "own", id="which may be for itself alone"),
        pytest.param("sia", {"estimate.share": "model"}, "model", id="unless the settings say otherwise"),
        pytest.param("stretto", {"estimate.share": "job"}, "own", id="in either direction"),
    ],
)
def test_a_service_shares_what_jobs_show_as_a_simulation_does(
    policy: str, settings: dict[str, str], expected: str
) -> None:
    assert evidence_that_counts(policy, settings) == expected
