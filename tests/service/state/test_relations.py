"""Jobs that wait for others, and tasks of arrays."""

from pathlib import Path
from typing import Any

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import Rig, a_rig, play
from tests.service.scene import Scene

from stretto.jobfile import JobSpec
from stretto.model import InputError
from stretto.service.reconcile.worker_env import WorkerContext, start_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.service import submission
from stretto.service.state import events as happened
from stretto.service.state.relations import resolved
from stretto.service.state.status import Reason, status_of, why_not_yet


def eligible(scene: Scene) -> tuple[str, ...]:
    return SnapshotBuilder(frozenset()).observe(scene.state, scene.now_s, frozenset()).jobs.ids


def submit(scene: Scene, job: str, **spec: Any) -> None:
    """As the service does, names looked up and arrays taken apart."""
    given = JobSpec.from_json({"run": "true", "name": "job", **spec})
    after = resolved(scene.state.relations, scene.state.jobs, given, "ada")
    scene.tell(submission(job, given, "ada", "", after))


def run_and_end(scene: Scene, job: str, status: int = 0) -> None:
    scene.give(**{f"_{job}": {"n0": 1}})
    scene.reconcile()
    (worker,) = scene.names(job)
    scene.end(worker, status)
    scene.reconcile()


@pytest.mark.parametrize(
    ("when", "status", "then"),
    [
        ("succeeded", 0, Reason.NONE),
        ("succeeded", 1, Reason.NEVER),
        ("failed", 1, Reason.NONE),
        ("failed", 0, Reason.NEVER),
        ("ended", 0, Reason.NONE),
        ("ended", 1, Reason.NONE),
    ],
)
def test_who_comes_after_another_waits_for_how_it_ends(when: str, status: int, then: Reason) -> None:
    scene = Scene()
    submit(scene, "1")
    submit(scene, "2", depends_on=[{"job": "1", "when": when}])
    scene.reconcile()
    assert eligible(scene) == ("1",)
    assert status_of(scene.state, scene.state.jobs["2"], 0.0).reason == "DEPENDENCY"
    run_and_end(scene, "1", status)
    shown = status_of(scene.state, scene.state.jobs["2"], 0.0)
    if then is Reason.NONE:
        assert (eligible(scene), shown.state) == (("2",), "PENDING")
    else:
        assert (shown.state, shown.reason) == ("CANCELLED", "DEPENDENCY_FAILED")
        assert shown.evidence == "after 1"


def test_who_comes_after_a_start_waits_for_that() -> None:
    scene = Scene()
    submit(scene, "1")
    submit(scene, "2", depends_on=[{"job": "1", "when": "started"}])
    assert eligible(scene) == ("1",)
    scene.give(_1={"n0": 1})
    scene.reconcile()
    assert eligible(scene) == ("1", "2")


def test_a_chain_ends_as_a_whole_where_its_first_fails() -> None:
    scene = Scene()
    submit(scene, "1")
    for before, name in (("1", "2"), ("2", "3"), ("3", "4")):
        submit(scene, name, depends_on=[{"job": before}])
    scene.tell(happened.Held("3", True))
    run_and_end(scene, "1", 1)
    assert [scene.standing(name) for name in ("2", "3", "4")] == ["CANCELLED"] * 3


def test_a_job_that_comes_after_one_that_has_failed_already_ends_at_once() -> None:
    scene = Scene()
    submit(scene, "1")
    run_and_end(scene, "1", 1)
    submit(scene, "2", depends_on=[{"job": "1"}])
    scene.reconcile()
    assert scene.standing("2") == "CANCELLED"


def test_a_name_means_the_newest_job_of_that_name_of_the_same_user() -> None:
    scene = Scene()
    submit(scene, "1", name="prepare")
    submit(scene, "2", name="prepare")
    scene.tell(happened.Submitted("3", JobSpec("true", "prepare").to_json(), "bob"))
    submit(scene, "4", name="prepare", depends_on=[{"job": "prepare"}])  # not itself
    assert scene.state.jobs["4"].after == ("2",)
    submit(scene, "5", depends_on=[{"job": "prepare"}])
    assert scene.state.jobs["5"].after == ("4",)


@pytest.mark.parametrize("word", ["nobody", "9", "bobs", "3"])
def test_what_nobody_or_somebody_else_submitted_cannot_come_first(word: str) -> None:
    scene = Scene()
    scene.tell(happened.Submitted("3", JobSpec("true", "bobs").to_json(), "bob"))
    with pytest.raises(InputError, match=f"depends_on: expected the id or name .* got '{word}'$"):
        submit(scene, "4", depends_on=[{"job": word}])


# ── arrays ────────────────────────────────────────────────────────────────────────────────────────


def array_scene(at_once: int | None = 2, indices: tuple[int, ...] = (0, 1, 2, 5)) -> Scene:
    scene = Scene()
    submit(scene, "7", name="sweep", array={"indices": list(indices), "at_once": at_once})
    return scene


def test_an_array_is_one_job_for_each_index_which_its_workers_find_in_their_environment() -> None:
    scene = array_scene()
    assert list(scene.state.jobs) == ["7_0", "7_1", "7_2", "7_5"]
    scene.give(_7_5={"n0": 1})
    scene.reconcile()
    job = scene.state.jobs["7_5"]
    context = WorkerContext("http://here", b"key", Path("kept"), Path("begun"))
    env = start_of(scene.state, job, job.workers["7_5.1.0"], context).env
    told = {key: value for key, value in env.items() if key.startswith("STRETTO_ARRAY")}
    assert told == {"STRETTO_ARRAY_ID": "7", "STRETTO_ARRAY_INDEX": "5", "STRETTO_ARRAY_COUNT": "4"}
    told = {key: value for key, value in env.items() if key.startswith("SLURM_ARRAY")}
    assert told == {
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "5",
        "SLURM_ARRAY_TASK_COUNT": "4",
    }
    assert env["STRETTO_JOB_ID"] == "7_5"
    shown = status_of(scene.state, job, 0.0)
    assert (shown.array, shown.index, shown.name) == ("7", 5, "sweep")


def test_at_most_so_many_tasks_run_at_once_and_the_next_comes_when_one_has_ended() -> None:
    scene = array_scene(at_once=2)
    assert eligible(scene) == ("7_0", "7_1")
    reasons = [why_not_yet(scene.state, job, 0.0) for job in scene.state.jobs.values()]
    assert reasons == [Reason.NONE, Reason.NONE, Reason.ARRAY_LIMIT, Reason.ARRAY_LIMIT]
    scene.give(_7_0={"n0": 1}, _7_1={"n0": 2})
    scene.reconcile()
    assert eligible(scene) == ("7_0", "7_1")
    scene.end("7_1.1.0", 0)
    scene.reconcile()
    assert eligible(scene) == ("7_0", "7_2")


def test_a_task_that_was_stopped_counts_until_its_processes_are_gone() -> None:
    scene = array_scene(at_once=1)
    scene.give(_7_0={"n0": 1})
    scene.reconcile()
    scene.tell(happened.Held("7_0", True))
    scene.reconcile()
    assert eligible(scene) == ()
    scene.end("7_0.1.0", 143)
    scene.reconcile()
    assert eligible(scene) == ("7_1",)


def test_a_task_that_waits_for_its_next_try_gives_way_until_its_time_has_come() -> None:
    scene = array_scene(at_once=1)
    scene.tell(happened.Requeued("7_0", 50.0, "tried again"))
    assert eligible(scene) == ("7_1",)
    scene.now_s = 50.0
    assert eligible(scene) == ("7_0",)


def test_an_array_without_a_limit_may_run_as_a_whole() -> None:
    assert len(eligible(array_scene(at_once=None))) == 4


def test_who_comes_after_an_array_waits_for_all_its_tasks() -> None:
    scene = array_scene(at_once=None, indices=(0, 1))
    submit(scene, "8", depends_on=[{"job": "sweep"}])
    submit(scene, "9", depends_on=[{"job": "7_0"}])
    run_and_end(scene, "7_0")
    assert eligible(scene) == ("7_1", "9")
    run_and_end(scene, "7_1")
    assert eligible(scene) == ("8", "9")


def test_who_comes_after_an_array_of_which_a_task_fails_never_comes() -> None:
    scene = array_scene(at_once=None, indices=(0, 1))
    submit(scene, "8", depends_on=[{"job": "7"}])
    run_and_end(scene, "7_1", 1)
    assert scene.standing("8") == "CANCELLED"


ARRAY = {"text": "name: sweep\nrun: 'true'\narray: 0-3%2\n"}


async def shown(rig: Rig, person: str, job: str) -> dict[str, Any]:
    async with rig.client(person) as client:
        found: dict[str, Any] = (await client.get(f"/api/v1/jobs/{job}")).json()
        return found


@pytest.mark.sqlite
@pytest.mark.parametrize("word", ["1", "sweep"])
def test_an_array_is_held_released_and_cancelled_by_its_id_or_name(tmp_path: Path, word: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, backend=FakeBackend(gpus=2)) as rig, rig.client("ada") as client:
            answer = await client.post("/api/v1/jobs", json=ARRAY, headers={"idempotency-key": "k"})
            ids = [f"1_{index}" for index in range(4)]
            assert answer.json()["ids"] == ids
            again = await client.post("/api/v1/jobs", json=ARRAY, headers={"idempotency-key": "k"})
            assert (again.status_code, again.json()["ids"]) == (200, ids)
            state = rig.service.state
            await rig.until(lambda: set(rig.backend.shown) == {"1_0.1.0", "1_1.1.0"})
            assert (await shown(rig, "ada", "1_2"))["reason"] == "ARRAY_LIMIT"
            held = await client.post(f"/api/v1/jobs/{word}/hold")
            assert (held.status_code, held.json()["ids"]) == (200, ids)
            await rig.until(lambda: all(not job.alive for job in state.jobs.values()))
            other = await rig.submit("ada")
            assert not other.startswith("1")
            await client.post(f"/api/v1/jobs/{word}/release")
            await rig.until(lambda: "1_0.2.0" in rig.backend.shown)
            await rig.backend.finish("1_0.2.0", 0)
            await rig.until(lambda: state.jobs["1_0"].has_ended)
            cancelled = await client.post(f"/api/v1/jobs/{word}/cancel")
            assert cancelled.json()["ids"] == ids[1:]
            await rig.until(lambda: all(state.jobs[name].has_ended for name in ids))
            assert (await client.post(f"/api/v1/jobs/{word}/cancel")).status_code == 409
            async with rig.client("bob") as bob:
                assert (await bob.post(f"/api/v1/jobs/{word}/cancel")).status_code == 404

    play(story)


@pytest.mark.sqlite
def test_a_service_ends_whoever_waited_in_vain_as_soon_as_that_is_known(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            first = await rig.submit()
            second = await rig.submit(text=f"run: 'true'\ndepends_on: {first}\n")
            third = await rig.submit(text=f"name: third\nrun: 'true'\ndepends_on: {second}\n")
            await rig.until(lambda: f"{first}.1.0" in rig.backend.shown)
            await rig.backend.finish(f"{first}.1.0", 1)
            await rig.until(lambda: rig.service.state.jobs[third].has_ended)
            found = await shown(rig, "ada", second)
            assert (found["state"], found["reason"]) == ("CANCELLED", "DEPENDENCY_FAILED")

    play(story)


@pytest.mark.sqlite
def test_who_comes_after_a_start_is_asked_about_once_it_has_begun(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            first = await rig.submit()
            second = await rig.submit(text=f"run: 'true'\ndepends_on: [{{job: {first}, when: started}}]\n")
            await rig.until(lambda: f"{second}.1.0" in rig.backend.shown)

    play(story)


@pytest.mark.sqlite
def test_an_unknown_dependency_is_refused_with_one_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as client:
            text = "run: 'true'\ndepends_on: prepare\n"
            answer = await client.post("/api/v1/jobs", json={"text": text})
            assert answer.status_code == 422
            assert answer.json()["detail"].endswith("that you have submitted, got 'prepare'")
            await rig.submit(text="name: prepare\nrun: 'true'\n")
            assert (await client.post("/api/v1/jobs", json={"text": text})).status_code == 201

    play(story)
