"""When a job counts as on its way to what it is to hold, so that a policy of restarts leaves it alone."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.service.http.rig import play
from tests.service.scene import Scene
from tests.service.scheduling.test_deciding import comes_to, deciding, has_seen

from stretto.jobfile.submission import read_submission
from stretto.model import Trigger, View
from stretto.service.reconcile.reconciler import STARTING_S
from stretto.service.scheduling.estimates import WAITED_S
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.events import AttemptClosed, Decided, Joined, NodeSeen, Reported, Submitted

SPEED = {"points": [[1, 1, 64, 1, 0.02, 0.021]]}
BOTH, FIRST, SECOND = 0b11, 0b01, 0b10


def is_recovering(scene: Scene, job: str = "1") -> bool:
    snapshot = SnapshotBuilder(frozenset({View.PROGRESS})).observe(
        scene.state, scene.now_s, frozenset({Trigger.ROUND})
    )
    assert snapshot.jobs.known_progress is not None
    return bool(snapshot.jobs.known_progress.recovering[snapshot.jobs.ids.index(job)])


def training() -> Scene:
    """A job that trains on the first GPU of the only node, and has said how fast."""
    scene = Scene(1, 2)
    scene.submit("1", elastic=(1, 2))
    scene.give(_1={"n0": FIRST})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.tell(Reported("1", SPEED))
    assert not is_recovering(scene)
    return scene


def test_an_elastic_job_recovers_until_it_trains_and_has_told_its_speed() -> None:
    scene = Scene(1, 2)
    scene.submit("1", elastic=(1, 2))
    assert not is_recovering(scene)
    seen = []
    scene.give(_1={"n0": FIRST})
    seen.append(is_recovering(scene))  # wanted
    scene.reconcile()
    seen.append(is_recovering(scene))  # runs, and imports what it needs
    scene.ready("1.1.0")
    scene.reconcile()
    seen.append(is_recovering(scene))  # builds its group
    scene.join("1")
    seen.append(is_recovering(scene))  # trains, nobody knows how fast
    assert seen == [True] * 4
    scene.tell(Reported("1", SPEED))
    assert not is_recovering(scene)


@pytest.mark.parametrize("says_ready", [False, True])
def test_whoever_says_nothing_counts_as_recovering_for_a_while_only(says_ready: bool) -> None:
    scene = Scene(1, 2)
    scene.submit("1", elastic=(1, 2))
    scene.give(_1={"n0": FIRST})
    scene.reconcile()
    if says_ready:
        scene.ready("1.1.0")
        scene.reconcile()
        scene.join("1")
    scene.now_s = STARTING_S - 0.1
    assert is_recovering(scene)
    scene.now_s = STARTING_S
    assert not is_recovering(scene)


def test_a_rigid_job_recovers_until_its_processes_run() -> None:
    scene = Scene(1, 2)
    scene.submit("1")
    scene.give(_1={"n0": FIRST})
    assert is_recovering(scene)
    scene.reconcile()
    assert not is_recovering(scene)


def test_a_job_whose_growth_waits_for_others_to_end_recovers_until_everybody_trains() -> None:
    scene = training()
    scene.submit("2")
    scene.give(_2={"n0": SECOND})
    scene.reconcile()
    scene.give(_2=None, _1={"n0": BOTH})
    scene.reconcile()
    assert scene.asked_to_stop == {"2.1.0"}
    assert is_recovering(scene)  # although all of its workers train
    scene.end("2.1.0", 143)
    scene.reconcile()
    scene.ready("1.1.1")
    scene.reconcile()
    assert is_recovering(scene)
    scene.join("1")
    assert not is_recovering(scene)


def test_a_job_that_is_to_shrink_or_to_move_recovers_until_it_has() -> None:
    scene = training()
    scene.give(_1={"n0": SECOND})
    assert is_recovering(scene)
    scene.reconcile()
    scene.ready("1.1.1")
    scene.reconcile()
    scene.join("1")
    assert is_recovering(scene)  # for one generation both train
    scene.reconcile()
    scene.join("1")
    assert not is_recovering(scene)


def growing() -> Scene:
    """A job that trains on one GPU, and whose second worker imports what it needs."""
    scene = training()
    scene.give(_1={"n0": BOTH})
    scene.reconcile()
    assert is_recovering(scene)
    return scene


def test_who_waits_for_an_interactive_job_does_not_wait_for_what_others_import() -> None:
    scene = growing()
    scene.submit("2", kind="interactive")
    assert not is_recovering(scene)
    scene.give(_1={"n0": FIRST}, _2={"n0": SECOND})
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.1"}  # the newcomer; who trains goes on


def test_a_batch_job_that_starts_may_be_stopped_for_an_interactive_one_and_not_the_other_way() -> None:
    scene = Scene(1, 2)
    scene.submit("1", elastic=(1, 2))
    scene.submit("2", kind="interactive")
    scene.give(_1={"n0": FIRST}, _2={"n0": SECOND})
    scene.reconcile()
    assert is_recovering(scene, "1")
    scene.submit("3", kind="interactive")
    assert not is_recovering(scene, "1")
    scene.submit("4", kind="interactive", elastic=(1, 2))
    scene.give(_1=None, _3={"n0": FIRST}, _2=None, _4={"n0": SECOND})
    scene.submit("5", kind="interactive")
    assert is_recovering(scene, "4")


def test_while_a_group_is_built_it_is_left_alone_whoever_waits() -> None:
    scene = growing()
    scene.submit("2", kind="interactive")
    scene.ready("1.1.1")
    scene.reconcile()
    assert is_recovering(scene)
    scene.join("1")
    assert not is_recovering(scene)


def test_an_interactive_job_that_nothing_helps_does_not_disturb_others_without_end() -> None:
    scene = growing()
    scene.submit("2", kind="interactive")
    scene.now_s += WAITED_S - 0.1
    assert not is_recovering(scene)
    scene.now_s += 0.1
    assert is_recovering(scene)


@pytest.mark.sqlite
@pytest.mark.parametrize("kind", ["batch", "interactive"])
def test_the_end_of_a_switch_is_a_reason_to_decide_while_an_interactive_job_waits(
    tmp_path: Path, kind: str
) -> None:
    async def story() -> None:
        async with deciding(tmp_path) as (log_writer, made):
            await log_writer.record(NodeSeen("n0", "a100", 1))
            for name, each in (("1", "batch"), ("2", kind)):
                spec, _ = read_submission(json.dumps({"run": "x", "kind": each}))
                await has_seen(made, await log_writer.record(Submitted(name, spec.to_json(), "ada")))
            await asyncio.sleep(0.5)
            before = len(made)
            await log_writer.record(Joined("1", "1.1.0", 1))
            await comes_to(made, before + (kind == "interactive"))
            await asyncio.sleep(0.5)
            assert len(made) - before == (kind == "interactive")

    play(story)


@pytest.mark.sqlite
@pytest.mark.parametrize("at_once", [None, 1])
def test_the_end_of_stopped_processes_is_a_reason_to_decide_only_for_arrays_that_wait_for_it(
    tmp_path: Path, at_once: int | None
) -> None:
    async def story() -> None:
        async with deciding(tmp_path) as (log_writer, made):
            await log_writer.record(NodeSeen("n0", "a100", 2))
            spec, _ = read_submission(json.dumps({"run": "x"}))
            said = log_writer.record(Submitted("1", spec.to_json(), "ada", array="1", at_once=at_once))
            await has_seen(made, await said)
            await asyncio.sleep(0.5)
            before: list[Decided] = list(made)
            await log_writer.record(AttemptClosed("1", 1, "left"))
            await comes_to(made, len(before) + (at_once is not None))
            await asyncio.sleep(0.5)
            assert len(made) - len(before) == (at_once is not None)

    play(story)
