from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.model import (
    NOTHING_OBSERVED,
    Allocation,
    Cluster,
    Evidence,
    InputError,
    Job,
    Learning,
    Pinned,
    Shares,
    Snapshot,
    TrainingLimits,
    Trigger,
    Why,
    ints,
    no_speeds,
)
from stretto.policies.ones.memory import Remembered
from stretto.policies.ones.policy import Ones
from stretto.policies.ones.problem import (
    Gpus,
    genome_of,
    participants_of,
    pin_of,
    problem_of,
    settle_on_nodes,
)
from stretto.policies.ones.progress import NOTHING_LEARNED
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress

POLICY = Ones(generations=5)


def evidence(init_batch: int = 64, max_local: int = 128) -> Evidence:
    limits = TrainingLimits(
        init_batch=init_batch,
        max_batch=100 * init_batch,
        min_local=ints([8]),
        max_local=ints([max_local]),
        single_per_s=np.array([100.0]),
        replica_gpus=ints([1]),
        restart_s=30.0,
        reach_gpus=64,
    )
    return Evidence(limits, (NOTHING_OBSERVED,), np.nan, np.nan)


def at(
    *jobs: Job,
    cluster: Cluster,
    epochs: list[int] | None = None,
    executed_s: list[float] | None = None,
    dataset: list[float] | None = None,
    recovering: list[bool] | None = None,
    **rest: Any,
) -> Snapshot:
    """Jobs that have processed so many epochs of 1,000 samples, or of their data sets."""
    done = np.array(epochs or [0] * len(jobs))
    samples = np.array(dataset or [1_000.0] * len(jobs))
    learning = Learning(
        samples=done * samples,
        dataset_samples=samples,
        initial_loss=np.full(len(jobs), 2.3),
        loss=2.3 / (1.0 + done),
        metric=1.0 - 0.9 / (1.0 + done),
        history=[np.zeros(0)] * len(jobs),
    )
    known = rest.pop("known_evidence", [evidence() for _ in jobs])
    columns = {"epochs": done, "executed_s": executed_s or [0.0] * len(jobs)}
    progress = some_progress(len(jobs), **columns, recovering=recovering or [False] * len(jobs))
    return a_snapshot(
        *jobs,
        cluster=cluster,
        known_learning=learning,
        known_progress=progress,
        known_evidence=known,
        **{"now_s": 1_000.0, "due": frozenset({Trigger.EPOCH_END}), **rest},
    )


def decided(snapshot: Snapshot, policy: Ones = POLICY) -> Shares:
    seen = snapshot.limited_to(policy.views)
    columns = policy.configurations(snapshot.cluster)
    return policy.allocate(seen, no_speeds(len(snapshot.jobs), 1, columns))


def held_after(snapshot: Snapshot, shares: Shares) -> dict[str, Allocation]:
    return {
        str(snapshot.jobs.ids[row]): Allocation(0, pin.nodes, pin.masks, pin.local_batch)
        for row, pin in shares.pinned.items()
    }


def test_the_first_jobs_start_on_one_gpu_each_with_the_batch_of_their_owner() -> None:
    snapshot = at(a_job("a"), a_job("b"), cluster=a_cluster(4, 4))
    shares = decided(snapshot)
    assert shares.gpus.tolist() == [1, 1]
    assert [shares.pinned[row].local_batch for row in (0, 1)] == [(64,), (64,)]


def test_a_batch_that_does_not_fit_starts_with_what_does() -> None:
    snapshot = at(a_job("a"), cluster=a_cluster(4), known_evidence=[evidence(init_batch=512)])
    assert decided(snapshot).pinned[0].local_batch == (128,)


def test_an_arrival_is_served_at_once_where_the_cluster_is_full() -> None:
    cluster = a_cluster(2)
    first = at(a_job("a", max_gpus=2), a_job("b"), cluster=cluster)
    held = held_after(first, decided(first))
    shares = decided(
        at(
            a_job("a"), a_job("b"), a_job("c", at_s=990.0), cluster=cluster, allocations=held,
            executed_s=[50.0, 90.0, 0.0], memory=decided(first).memory, due=frozenset({Trigger.ARRIVAL}),
        )
    )  # fmt: skip
    assert shares.gpus.tolist() == [1, 0, 1]  # the one that has run longest gives way
    assert shares.why.of(1) is Why.WORTH_LESS


def test_an_arrival_is_served_before_a_whole_schedule_is_put_in_place() -> None:
    cluster = a_cluster(4)
    first = at(a_job("a"), cluster=cluster)
    shares = decided(first)
    held = held_after(first, shares)
    arrival = at(
        a_job("a"),
        a_job("b", at_s=999.0),
        cluster=cluster,
        allocations=held,
        memory=shares.memory,
        epochs=[1, 0],
    )
    after = decided(arrival)
    assert after.gpus[1] == 1
    assert after.pinned[0].local_batch == held["a"].local_batch


def test_nobody_is_touched_until_every_running_job_has_had_an_epoch() -> None:
    cluster = a_cluster(2)
    jobs = (a_job("a"), a_job("b"), a_job("c"))
    first = at(*jobs, cluster=cluster)
    shares = decided(first)
    held = held_after(first, shares)
    early = at(*jobs, cluster=cluster, allocations=held, memory=shares.memory, epochs=[1, 0, 0])
    assert held_after(early, decided(early)) == held


def test_once_everybody_has_had_an_epoch_limits_double_and_batches_follow() -> None:
    cluster = a_cluster(4)
    first = at(a_job("a"), cluster=cluster)
    shares = decided(first)
    batches = []
    snapshot = first
    for epoch in range(1, 5):
        held = held_after(snapshot, shares)
        snapshot = at(a_job("a"), cluster=cluster, allocations=held, memory=shares.memory, epochs=[epoch])
        shares = decided(snapshot)
        batches.append(sum(shares.pinned[0].local_batch))
    assert batches == [128, 256, 512, 512]  # four GPUs hold no more than 512
    assert shares.gpus.tolist() == [4]


def test_epochs_that_end_while_new_workers_start_do_not_double_the_limit() -> None:
    cluster = a_cluster(4)
    snapshot = at(a_job("a"), cluster=cluster)
    shares = decided(snapshot)
    batches = []
    for epoch, recovering in ((1, False), (2, True), (3, True), (3, False), (4, False)):
        held = held_after(snapshot, shares)
        seen = {"allocations": held, "memory": shares.memory, "epochs": [epoch]}
        snapshot = at(a_job("a"), cluster=cluster, recovering=[recovering], **seen)
        shares = decided(snapshot)
        batches.append(sum(shares.pinned[0].local_batch))
    assert batches == [128, 128, 128, 128, 256]


def test_a_long_job_shrinks_while_somebody_waits() -> None:
    cluster = a_cluster(2)
    jobs = (a_job("a"), a_job("b"), a_job("c"))
    held = {"a": grant(0, n0=2)}
    dataset = [1_000.0, 1e6, 1e6]  # the long one is nearly done, so that it runs on
    first = at(*jobs, cluster=cluster, allocations=held, dataset=dataset)
    memory = decided(first).memory
    assert isinstance(memory, Remembered)
    limits = replace(memory.limits, limit=np.array([256, 64, 64]))
    memory = replace(memory, limits=limits, arrivals=11, first_s=0.0)  # one arrival in 100 s
    later = at(
        *jobs, cluster=cluster, allocations=held, epochs=[1, 0, 0], executed_s=[250.0, 0.0, 0.0],
        memory=memory, dataset=dataset,
    )  # fmt: skip
    after = decided(later, Ones(population=32)).memory
    assert isinstance(after, Remembered)
    assert after.limits.limit[0] == 128  # ⌈2 · 256 / ⌈2.5 + 1⌉⌉
    assert after.limits.reference[0] == 256


def test_a_job_that_a_whole_schedule_leaves_waiting_may_ask_for_half() -> None:
    cluster = a_cluster(1)
    jobs = (a_job("a"), a_job("b"))
    held = {"a": grant(0, n0=1)}
    small = [evidence(init_batch=16)] * 2
    memory = decided(at(*jobs, cluster=cluster, allocations=held, known_evidence=small)).memory
    assert isinstance(memory, Remembered)
    memory = replace(memory, limits=replace(memory.limits, limit=np.array([128, 128])))
    shares = decided(
        at(*jobs, cluster=cluster, allocations=held, known_evidence=small, memory=memory, epochs=[1, 0])
    )
    assert isinstance(shares.memory, Remembered)
    waits = int(np.flatnonzero(shares.gpus == 0)[0])
    assert shares.memory.limits.limit[waits] == 64


def test_jobs_that_have_ended_teach_how_many_epochs_are_to_come() -> None:
    cluster = a_cluster(2)
    snapshot = at(a_job("a"), a_job("b"), cluster=cluster)
    shares = decided(snapshot)
    for epoch in range(1, 6):
        held = held_after(snapshot, shares)
        snapshot = at(
            a_job("a"),
            a_job("b"),
            cluster=cluster,
            allocations=held,
            memory=shares.memory,
            epochs=[epoch, epoch],
        )
        shares = decided(snapshot)
    assert isinstance(shares.memory, Remembered)
    assert shares.memory.regression is NOTHING_LEARNED
    last = decided(at(a_job("b"), cluster=cluster, memory=shares.memory, epochs=[5]))
    assert isinstance(last.memory, Remembered)
    assert last.memory.points.progress.tolist() == pytest.approx([epoch / 6 for epoch in range(1, 6)])
    assert last.memory.regression is not NOTHING_LEARNED


def test_a_decision_at_which_no_epoch_has_ended_adds_nothing_to_a_log() -> None:
    cluster = a_cluster(1)
    memory = decided(at(a_job("a"), cluster=cluster)).memory
    held = {"a": grant(0, n0=1)}
    for _ in range(3):  # two epochs at once, then none
        memory = decided(at(a_job("a"), cluster=cluster, allocations=held, memory=memory, epochs=[2])).memory
    assert isinstance(memory, Remembered)
    assert [len(log) for log in memory.logs] == [1]


def test_the_same_snapshot_draws_the_same_and_the_next_decision_others() -> None:
    jobs = [a_job(f"j{index}", at_s=float(index)) for index in range(6)]
    snapshot = at(*jobs, cluster=a_cluster(4))
    one, other = decided(snapshot).memory, decided(replace(snapshot, seed=1)).memory
    assert isinstance(one, Remembered)
    assert isinstance(other, Remembered)
    assert one.decisions == 1
    again = decided(snapshot).memory
    assert isinstance(again, Remembered)
    assert (again.population == one.population).all()
    assert other.population.shape != one.population.shape or (other.population != one.population).any()


def test_no_schedule_gives_a_job_more_gpus_than_its_limit_fills() -> None:
    jobs = [a_job(f"j{index}") for index in range(3)]
    snapshot = at(*jobs, cluster=a_cluster(4, 4))
    participants = participants_of(snapshot)
    limit = np.array([64, 256, 600])  # a GPU holds 128
    problem = problem_of(snapshot, participants, limit, limit)
    assert problem.fit[:, -1].tolist() == [1, 2, 5]
    assert problem.grown[:, 0].tolist() == [1, 2, 5]


def test_counts_are_whole_workers_within_the_range_of_the_job() -> None:
    paired = a_job("a", gpus=4, min_gpus=4, max_gpus=6, gpus_per_worker=2)
    snapshot = at(paired, cluster=a_cluster(8))
    problem = problem_of(snapshot, participants_of(snapshot), np.array([1_024]), np.array([1_024]))
    assert problem.fit[0].tolist() == [0, 0, 0, 0, 4, 4, 6, 6, 6]


def test_a_schedule_settles_where_most_of_it_is_already() -> None:
    gpus = Gpus(np.zeros(8, dtype=np.int64), np.arange(8) // 4, np.arange(8) % 4)
    held = genome_of(gpus, {0: grant(0, n1=4), 1: grant(0, n0=2)})[0]
    there = settle_on_nodes(gpus, np.array([0, 0, 0, 0, 1, 1, 2, 2]), held, 3)
    assert there.tolist() == [1, 1, 2, 2, 0, 0, 0, 0]


def test_a_batch_is_split_evenly_and_the_first_gpus_take_the_rest() -> None:
    gpus = Gpus(np.zeros(8, dtype=np.int64), np.arange(8) // 4, np.arange(8) % 4)
    assert pin_of(gpus, np.array([5, 1, 2]), 11) == Pinned((0, 1), (2, 1), (0b110, 0b10), (4, 4, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generations": -1}, "policy.generations must be >= 0, got -1"),
        ({"mutation_rate": 1.5}, "policy.mutation_rate must be >= 0 and <= 1, got 1.5"),
        ({"penalty": float("nan")}, "policy.penalty must be finite, got nan"),
    ],
)
def test_parameters_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ones(**settings)
