"""Snapshots of a steady state: what is in them, and what changes from one to the next."""

from itertools import pairwise

import numpy as np
import pytest

from stretto.estimate.estimators import Share
from stretto.experiments.steady.cluster import made_cluster
from stretto.experiments.steady.jobs import LARGE_GPUS, Models, draw_jobs
from stretto.experiments.steady.world import Churn, Steady, SteadyWorld
from stretto.model import InputError, Observations, Plan, Snapshot, Trigger, View
from stretto.model.plan import waiting_for

pytestmark = pytest.mark.slow  # the published durations are fitted first

ALL_VIEWS = frozenset(View)
SMALL = Steady(jobs=120, gpus=160, seed=3, rounds=12)


def nothing_changes(snapshot: Snapshot) -> Plan:
    why = waiting_for(0, len(snapshot.jobs))  # type: ignore[arg-type]
    return Plan(snapshot.version, (), snapshot.placement, why, snapshot.jobs)


def snapshots_of(steady: Steady) -> list[Snapshot]:
    world = SteadyWorld(steady, ALL_VIEWS)
    seen = []
    while world.wait():
        seen.append(world.observe())
        world.act(nothing_changes(seen[-1]))
    return seen


def shown_in(snapshot: Snapshot) -> list[tuple[Observations, ...]]:
    return [evidence.observed for evidence in snapshot.jobs.evidence if evidence is not None]


def test_the_same_words_make_the_same_snapshots() -> None:
    for one, other in zip(snapshots_of(SMALL), snapshots_of(SMALL), strict=True):
        assert one.jobs.ids == other.jobs.ids
        assert dict(one.placement) == dict(other.placement)
        assert shown_in(one) == shown_in(other)


def test_every_job_that_is_there_at_first_has_shown_speeds_and_later_ones_have_not() -> None:
    first, *_, last = snapshots_of(SMALL)
    assert all(any(observed) for observed in shown_in(first))
    newcomers = set(last.jobs.ids) - set(first.jobs.ids)
    shown = dict(zip(last.jobs.ids, shown_in(last), strict=True))
    assert newcomers
    assert not any(any(shown[job]) for job in newcomers)


def test_jobs_hold_gpus_of_usable_nodes_only() -> None:
    first = snapshots_of(Steady(jobs=2_000, gpus=1_500, rounds=1))[0]
    assert not first.usable.all()
    assert (first.placement.busy[~first.usable] == 0).all()
    assert first.jobs.held_gpus.sum() > 0.8 * first.capacity.sum()


def test_about_as_many_jobs_arrive_as_end() -> None:
    seen = snapshots_of(Steady(jobs=4_000, gpus=1_500, rounds=20))
    names = [set(snapshot.jobs.ids) for snapshot in seen]
    arrived = sum(len(after - before) for before, after in pairwise(names))
    ended = sum(len(before - after) for before, after in pairwise(names))
    assert arrived > 200
    assert 0.7 < arrived / ended < 1.4


def test_one_job_arrives_or_ends_where_that_is_asked_for_and_nobody_has_anything_new_to_show() -> None:
    seen = snapshots_of(Steady(jobs=120, gpus=160, rounds=8, churn=Churn.ONE))
    for before, after in pairwise(seen):
        assert len(set(before.jobs.ids) ^ set(after.jobs.ids)) == 1
        known = dict(zip(before.jobs.ids, before.jobs.evidence, strict=True))
        both = [row for row, job in enumerate(after.jobs.ids) if job in known]
        assert all(after.jobs.evidence[row] is known[after.jobs.ids[row]] for row in both)
    assert {Trigger.ARRIVAL} < seen[1].due != seen[2].due > {Trigger.COMPLETION}


def test_evidence_stays_the_same_object_until_there_is_something_new() -> None:
    before, after = snapshots_of(SMALL)[:2]
    known = dict(zip(before.jobs.ids, before.jobs.evidence, strict=True))
    same = [
        known[job] is evidence
        for job, evidence in zip(after.jobs.ids, after.jobs.evidence, strict=True)
        if job in known
    ]
    assert any(same)
    assert not all(same)


def test_jobs_of_one_model_have_shown_the_same_where_that_is_shared() -> None:
    first = snapshots_of(Steady(jobs=120, gpus=160, rounds=1, share=Share.MODEL))[0]
    by_model: dict[str, set[object]] = {}
    for row, observed in enumerate(shown_in(first)):
        by_model.setdefault(first.jobs[row].model, set()).add(observed)
    assert {len(shown) for shown in by_model.values()} == {1}
    assert len(set(shown_in(snapshots_of(Steady(jobs=120, gpus=160, rounds=1))[0]))) == 120


def test_who_looks_at_a_moment_meets_long_jobs_and_arrivals_are_as_submitted() -> None:
    rng = np.random.default_rng(0)
    models = Models.on(made_cluster(1_000, 4, rng).cluster)
    drawn = draw_jobs(models, 20_000, [1.0] * 20_000, rng)
    present = drawn.age_s >= 0
    assert drawn.duration_s[present].mean() > 10 * drawn.duration_s[~present].mean()
    # 18 % of GPU time is of jobs of one GPU, 48 % of eight: the shares that are published of Philly.
    ones, eights = (float((drawn.gpus[present] == gpus).mean()) for gpus in (1, 8))
    assert ones / eights == pytest.approx(18.1 / 48.4 * 8, rel=0.15)
    assert (drawn.gpus[~present] == 1).mean() == pytest.approx(0.93, abs=0.02)


def test_a_large_cluster_has_large_rigid_jobs() -> None:
    rng = np.random.default_rng(0)
    models = Models.on(made_cluster(20_000, 4, rng).cluster)
    large = draw_jobs(models, 4_000, [], rng)
    assert float(large.is_large.mean()) == pytest.approx(0.01, abs=0.005)
    assert set(large.gpus[large.is_large].tolist()) <= set(LARGE_GPUS)


def test_node_sizes_are_mixed_as_in_the_inventory() -> None:
    cluster = made_cluster(6_000, 4, np.random.default_rng(0)).cluster
    assert cluster.type_names == ("a100", "v100", "t4", "p100")
    sizes = [set(cluster.node_gpus[cluster.kind == kind].tolist()) for kind in range(4)]
    assert sizes == [{8}, {8, 4, 1}, {4, 2}, {2, 1}]
    assert abs(cluster.total_gpus - 6_000) < 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"jobs": 0, "gpus": 100}, "jobs must lie between 1 and"),
        ({"jobs": 5, "gpus": 10}, "gpus must be at least 64, got 10"),
        ({"jobs": 5, "gpus": 100, "types": 9}, "types must lie between 1 and 4, got 9"),
        ({"jobs": 5, "gpus": 100, "churn": "much"}, "churn must be one of usual, one, got 'much'"),
        ({"jobs": 5, "gpus": 100, "share": "all"}, "share must be one of job, model, got 'all'"),
    ],
)
def test_wrong_words_are_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        SteadyWorld(Steady.of(words), ALL_VIEWS)
