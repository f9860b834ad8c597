"""The batch that a decision chooses reaches the workers, and only where the job's file lets it."""

import json
import pickle

from tests.service.scene import Scene

from stretto.model import Batch, Trigger
from stretto.scheduler.round import decide
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured, body_of, event_of

ADAPTIVE = {"policy": "adaptive", "init": 64, "max": 512}
DUE = frozenset({Trigger.ROUND, Trigger.ARRIVAL})
# One pass costs a millisecond a sample, and synchronising 30 ms: larger batches pay. The noise is large.
REPORT = {
    "init_batch": 64,
    "max_batch": 4096,
    "max_local": 128,
    "grad_sqr": 1.0,
    "grad_var": 50.0,
    "samples": 64.0,
    "dataset_samples": 6400.0,
    "points": [[1, 1, 64, 1, 0.064, 0.064], [1, 2, 64, 1, 0.064, 0.094]],
}


def decide_now(scene: Scene, policy: str, **settings: str) -> dict[str, list[int]]:
    """One decision of a policy, folded; the batches that it says."""
    configured = Configured(policy, settings={f"policy.{key}": value for key, value in settings.items()})
    scheduler = scheduler_of(configured)
    observer = SnapshotBuilder(scheduler.policy.views)
    snapshot = snapshot_for(scheduler, observer, scene.state, scene.now_s, DUE)
    event = decided(snapshot, decide(snapshot, scheduler), scene.state.seq, 1.0)
    again = event_of("Decided", json.loads(json.dumps(body_of(event))))
    scene.tell(again)
    return dict(event.batches)


def training(scene: Scene, batch: dict[str, object], report: dict[str, object] = REPORT) -> None:
    """Job 1 trains on one GPU, and has reported."""
    scene.submit("1", 1, elastic=(1, 4), batch=batch, preemptible=True)
    scene.give(_1={"n0": 0b1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.tell(happened.Reported("1", report))


def test_a_goodput_policy_publishes_the_batch_by_which_it_chose_the_gpus() -> None:
    scene = Scene()
    training(scene, ADAPTIVE)
    told = decide_now(scene, "sia")["1"]
    total, local, passes = told
    wanted = scene.state.wanted("1")
    assert wanted is not None
    assert wanted.gpus > 1
    assert 64 < total <= 512, "within the bounds of the file, though the script would take 4096"
    assert local <= 128
    assert local * passes * wanted.gpus >= total
    scene.reconcile()
    scene.ready(*(name for name in scene.names("1") if name != "1.1.0"))
    scene.reconcile()
    assert scene.state.jobs["1"].members.batch == Batch(total, local, passes)


def test_another_batch_for_the_same_workers_is_a_generation_of_its_own() -> None:
    scene = Scene(nodes=1, gpus=1)
    training(scene, ADAPTIVE)
    before = scene.state.jobs["1"].members
    assert decide_now(scene, "sia")
    scene.reconcile()
    after = scene.state.jobs["1"].members
    assert (after.number, after.workers) == (before.number + 1, before.workers)
    assert after.batch is not None
    assert before.batch is None
    scene.join("1")
    assert decide_now(scene, "sia") == {}, "nothing new, nothing said"


def test_a_fixed_batch_and_a_policy_without_goodput_leave_the_batch_to_the_script() -> None:
    scene = Scene()
    training(scene, {"init": 64, "max": 512})
    assert decide_now(scene, "sia") == {}
    scene = Scene()
    training(scene, ADAPTIVE)
    assert decide_now(scene, "srtf") == {}


def test_a_job_that_has_shown_nothing_keeps_its_own_batch() -> None:
    scene = Scene()
    training(scene, ADAPTIVE, {key: value for key, value in REPORT.items() if key != "points"})
    assert decide_now(scene, "sia") == {}


def test_ones_says_the_batch_gpu_by_gpu() -> None:
    scene = Scene()
    scene.submit("1", 1, elastic=(1, 4), batch=ADAPTIVE | {"per_gpu": 32})
    told = decide_now(scene, "ones")
    wanted = scene.state.wanted("1")
    assert wanted is not None
    assert wanted.local_batch
    assert told["1"][0] == max(64, sum(wanted.local_batch)), "never less than the script was tuned for"
    assert told["1"][1] * told["1"][2] * wanted.gpus >= told["1"][0]


def test_pollux_says_a_batch_too_and_keeps_to_it() -> None:
    scene = Scene()
    training(scene, ADAPTIVE)
    assert 64 < decide_now(scene, "pollux")["1"][0] <= 512


def test_a_batch_for_gpus_that_could_not_be_had_is_not_published() -> None:
    scene = Scene()
    training(scene, ADAPTIVE)
    scheduler = scheduler_of(Configured("sia"))
    snapshot = snapshot_for(scheduler, SnapshotBuilder(scheduler.policy.views), scene.state, scene.now_s, DUE)
    late = decided(snapshot, decide(snapshot, scheduler), scene.state.seq, 1.0)
    assert set(late.batches) == {"1"}
    grown = scene.state.wanted("1")
    scene.give(_1={"n0": 0b1, "n1": 0b1})  # meanwhile
    scene.tell(late)
    assert scene.state.wanted("1") != grown
    assert scene.state.jobs["1"].batch is None


def test_a_snapshot_alone_repeats_a_decision_with_its_batches() -> None:
    scene = Scene()
    training(scene, ADAPTIVE)
    scheduler = scheduler_of(Configured("sia"))
    snapshot = snapshot_for(scheduler, SnapshotBuilder(scheduler.policy.views), scene.state, scene.now_s, DUE)
    plan, again = (decide(kept, scheduler) for kept in (snapshot, pickle.loads(pickle.dumps(snapshot))))
    assert plan.batches
    assert (again.batches, again.actions) == (plan.batches, plan.actions)
