"""The batch that a decision chooses reaches the workers, and only where the job's file lets it."""

import json
import pickle

import numpy as np
from tests.service.scene import Scene

from stretto.model import Allocation, Batch, TrainingLimits, Trigger, ints
from stretto.scheduler.batches import local_batches
from stretto.scheduler.round import decide
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.estimates import evidence_of
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


def test_what_fits_on_one_gpu_may_differ_by_type() -> None:
    scene = Scene(nodes=1)
    scene.tell(happened.NodeSeen("n1", "t4", 4), happened.NodeSeen("n2", "v100", 4))
    training(scene, ADAPTIVE | {"per_gpu": 16, "per_gpu_of": {"T4": 16, "a100": 96}})
    cluster = scene.state.cluster
    assert cluster is not None

    def largest() -> dict[str, int]:
        evidence = evidence_of(scene.state.jobs["1"], cluster)
        assert evidence is not None
        return dict(zip(cluster.type_names, evidence.limits.max_local.tolist(), strict=True))

    assert largest() == {"a100": 96, "t4": 16, "v100": 16}, "the least where the file says nothing of a type"
    total, local, passes = decide_now(scene, "sia")["1"]
    assert 16 < local <= 96, "it runs on a100"
    assert local * passes * 4 >= total
    # The script's own bound counts, too.
    scene.tell(happened.Reported("1", REPORT | {"max_local": 64}))
    assert largest() == {"a100": 64, "t4": 16, "v100": 16}


def test_ones_says_the_batch_gpu_by_gpu() -> None:
    scene = Scene()
    scene.submit("1", 1, elastic=(1, 4), batch=ADAPTIVE | {"per_gpu": 32})
    told = decide_now(scene, "ones")
    wanted = scene.state.wanted("1")
    assert wanted is not None
    assert wanted.local_batch
    assert told["1"][0] == max(64, sum(wanted.local_batch)), "never less than the script was tuned for"
    assert told["1"][1] * told["1"][2] * wanted.gpus >= told["1"][0]


def test_a_job_of_ones_starts_with_what_one_gpu_holds_however_much_was_submitted() -> None:
    scene = Scene()
    scene.submit("1", 1, elastic=(1, 4), batch=ADAPTIVE | {"per_gpu": 32})
    told = decide_now(scene, "ones", starts_from="submitted", sums_batches="false")["1"]
    assert tuple(told) == (32, 32, 1, 32), "in all, in a pass, passes, and on its only worker"
    wanted = scene.state.wanted("1")
    assert wanted is not None
    assert wanted.local_batch == (32,)


def test_local_batches_reach_the_workers_in_the_order_of_their_ranks() -> None:
    scene = Scene()
    scene.submit("1", 1, elastic=(1, 4), batch=ADAPTIVE, preemptible=True)
    scene.give(_1={"n1": 0b10})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    # It grows; its first worker, which has the second GPU of the second node, goes on as rank 0.
    scene.give(_1={"n0": 0b1, "n1": 0b11})
    scene.tell(happened.Decided(scene.state.seq, scene.now_s, (), (), batches={"1": [90, 50, 1, 10, 50, 30]}))
    scene.reconcile()
    assert scene.state.jobs["1"].members.workers == ("1.1.0",), "newcomers are not ready yet"
    scene.ready(*(name for name in scene.names("1") if name != "1.1.0"))
    scene.reconcile()
    record = scene.state.jobs["1"]
    gpus = [(record.workers[name].node, record.workers[name].gpus) for name in record.members.workers]
    assert record.members.batch is not None
    samples = dict(zip(gpus, record.members.batch.by_worker, strict=True))
    assert gpus[0] == (1, (1,))
    assert samples == {(0, (0,)): 10, (1, (0,)): 50, (1, (1,)): 30}
    before = record.members.number
    scene.join("1")
    scene.reconcile()
    assert scene.state.jobs["1"].members.number == before, "the same parts are no other batch"


def test_local_batches_for_other_gpus_than_it_has_are_split_evenly() -> None:
    scene = Scene()
    scene.submit("1", 1, elastic=(1, 4), batch=ADAPTIVE, preemptible=True)
    scene.give(_1={"n0": 0b11})
    scene.tell(happened.Decided(scene.state.seq, scene.now_s, (), (), batches={"1": [90, 50, 1, 10, 50, 30]}))
    scene.reconcile()
    scene.ready("1.1.0", "1.1.1")
    scene.reconcile()
    assert scene.state.jobs["1"].members.batch == Batch(90, 50, 1)


def test_workers_of_several_gpus_take_the_samples_of_all_of_theirs() -> None:
    limits = TrainingLimits(
        init_batch=8,
        max_batch=40,
        min_local=ints([1]),
        max_local=ints([6]),
        single_per_s=np.array([1.0]),
        replica_gpus=ints([1]),
        restart_s=1.0,
        reach_gpus=4,
    )
    held = Allocation(0, (0,), (0b1111,), local_batch=(9, 3, 4, 4))
    assert local_batches(held, 2, limits) == Batch(20, 6, 2, (12, 8))
    assert local_batches(held, 1, limits) == Batch(20, 5, 2, (9, 3, 4, 4))
    too_many = Allocation(0, (0,), (0b11,), local_batch=(60, 20))
    assert local_batches(too_many, 1, limits) == Batch(40, 6, 5, (30, 10)), "the job allows 40"


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
