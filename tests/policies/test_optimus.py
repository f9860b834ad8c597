from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.model import (
    Adaptivity,
    Cluster,
    Durations,
    GpuType,
    InputError,
    Learning,
    MeasuredSpeeds,
    Shares,
    Snapshot,
    View,
    Why,
    cluster_of,
)
from stretto.policies import load_policy
from stretto.policies.common.speed_curves import Curve
from stretto.policies.optimus import (
    Optimus,
    Remaining,
    SpeedFrom,
    by_marginal_gain,
    epochs_to_converge,
    even_counts,
    fit_losses,
    fitted_curve,
    seconds_per_step,
)
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, speeds_of
from stretto.testing.conformance import PROMISES
from stretto.testing.situations import Situation, situations

THREE_FIFTHS = (1.0, 1.8, 2.4, 2.8)  # speed on 1 to 4 GPUs


def table(*per_s: float, types: int = 1) -> MeasuredSpeeds:
    rows = np.tile([np.nan, *per_s], (types, 1))
    return MeasuredSpeeds(rows, rows)


def asked(policy: Optimus, snapshot: Snapshot) -> Shares:
    columns = policy.configurations(snapshot.cluster)
    blank = speeds_of(columns, np.ones((len(snapshot.jobs), len(columns))), types=len(snapshot.cluster.types))
    return policy.allocate(snapshot.limited_to(policy.views), blank)


def with_work(cluster: Cluster, work: dict[str, float], per_s: Any = THREE_FIFTHS, **rest: Any) -> Snapshot:
    """Jobs in this order with so many steps left, able to use as many GPUs as were measured."""
    jobs = [a_job(name, 1, at_s=float(at), max_gpus=len(per_s)) for at, name in enumerate(work)]
    tables = [table(*per_s, types=len(cluster.types))] * len(jobs)
    return a_snapshot(
        *jobs, cluster=cluster, known_work=np.array(list(work.values())), known_tables=tables, **rest
    )


def test_two_jobs_share_four_gpus_in_two_steps() -> None:
    shares = asked(Optimus(), with_work(a_cluster(4), {"short": 100.0, "long": 300.0}))
    assert shares.gpus.tolist() == [2, 2]


def test_of_equal_curves_the_longer_job_gains_most_from_the_next_gpu() -> None:
    curve = Curve((1, 2, 3, 4), THREE_FIFTHS)
    work, kind, factor = np.array([100.0, 300.0]), np.array([0, 0]), np.ones(2)
    after = [by_marginal_gain({0: curve, 1: curve}, work, kind, [more], factor) for more in (1, 2, 3, 4, 5)]
    assert [tuple(given.values()) for given in after] == [(1, 2), (2, 2), (2, 3), (2, 4), (3, 4)]


def test_gpus_that_would_slow_a_job_down_are_left_alone() -> None:
    shares = asked(Optimus(), with_work(a_cluster(8), {"a": 100.0}, per_s=(1.0, 1.5, 1.4, 3.0)))
    assert shares.gpus.tolist() == [2]


def test_a_count_that_cannot_be_is_stepped_over() -> None:
    shares = asked(Optimus(), with_work(a_cluster(4), {"a": 100.0}, per_s=(1.0, np.nan, np.nan, 3.0)))
    assert shares.gpus.tolist() == [4]


def test_with_more_jobs_than_gpus_those_that_came_first_run_on_one_each() -> None:
    shares = asked(Optimus(), with_work(a_cluster(2), {"a": 1.0, "b": 9.0, "c": 99.0}))
    assert shares.gpus.tolist() == [1, 1, 0]
    assert shares.why.of(2) is Why.NO_FREE_GPUS


def test_a_rigid_job_gets_all_that_it_asks_for_before_others_grow() -> None:
    cluster = a_cluster(4)
    jobs = [a_job("elastic", 1, at_s=0, max_gpus=4), a_job("rigid", 3, at_s=1, adaptivity=Adaptivity.RIGID)]
    tables = [table(*THREE_FIFTHS)] * 2
    snapshot = a_snapshot(*jobs, cluster=cluster, known_work=np.array([1e6, 1.0]), known_tables=tables)
    assert asked(Optimus(), snapshot).gpus.tolist() == [1, 3]


def test_a_job_stays_on_its_type() -> None:
    cluster = cluster_of("two", (GpuType("small"), 1, 2), (GpuType("large"), 1, 8))
    snapshot = with_work(cluster, {"a": 100.0, "b": 100.0}, allocations={"a": grant(0, n0=1)})
    shares = asked(Optimus(), snapshot)
    assert shares.kind.tolist() == [0, 1]
    assert shares.gpus.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("free", "gpus", "counts"),
    [
        pytest.param([8, 8, 8], 10, (5, 5), id="evenly over two"),
        pytest.param([8, 3, 3], 10, (4, 3, 3), id="over one more where two are too small"),
        pytest.param([8, 1], 8, (8,), id="on one where it fits"),
        pytest.param([4, 1], 5, (), id="nowhere evenly"),
    ],
)
def test_a_job_lies_evenly_on_as_few_nodes_as_can_be(
    free: list[int], gpus: int, counts: tuple[int, ...]
) -> None:
    assert even_counts(free, gpus, most_nodes=9) == counts


def test_smaller_demands_are_placed_first() -> None:
    cluster = a_cluster(8, 8)
    jobs = [
        a_job("large", 12, adaptivity=Adaptivity.RIGID),
        a_job("small", 3, at_s=1, adaptivity=Adaptivity.RIGID),
    ]
    tables = [table(*range(1, 17))] * 2
    snapshot = a_snapshot(*jobs, cluster=cluster, known_work=np.ones(2), known_tables=tables)
    pinned = asked(Optimus(), snapshot).pinned
    assert pinned[1].nodes == (0,)
    assert 0 not in pinned  # 6 and 6 find no room beside 3: the placer spreads it as it can


def test_a_job_whose_count_stays_is_not_moved() -> None:
    snapshot = with_work(a_cluster(1, 1), {"a": 5.0}, per_s=(1.0,), allocations={"a": grant(0, n1=1)})
    assert dict(asked(Optimus(), snapshot).pinned) == {}


def test_the_loss_curve_of_known_parameters_is_found_again() -> None:
    epoch = np.arange(1, 31)
    losses = 5.0 * (1 / (0.4 * epoch + 1.2) + 0.1)
    found = fit_losses(losses)
    predicted = found.unit * found.at(np.array([60.0]))
    assert predicted[0] == pytest.approx(5.0 * (1 / (0.4 * 60 + 1.2) + 0.1), rel=0.05)


def reporting(*histories: list[float], samples: float = 1_000.0) -> Snapshot:
    """Jobs with a batch of 10 that have reported these metrics."""
    jobs = [a_job(f"j{at}", 1, at_s=float(at), max_gpus=4, batch_size=10) for at in range(len(histories))]
    size = np.full(len(jobs), samples)
    blank = np.full(len(jobs), np.nan)
    done = size * np.array([len(one) for one in histories])
    learning = Learning(done, size, blank, blank, blank, [np.array(one) for one in histories])
    tables = [table(*THREE_FIFTHS)] * len(jobs)
    return a_snapshot(*jobs, cluster=a_cluster(3), known_learning=learning, known_tables=tables)


def test_without_an_oracle_what_is_left_is_extrapolated_from_what_was_reported() -> None:
    policy = Optimus(remaining=Remaining.LOSS)
    assert View.REMAINING_WORK not in policy.views
    epoch = np.arange(1, 13)
    nearly_done, just_begun = (1 - 1 / (rate * epoch + 1.0) for rate in (8.0, 0.2))
    assert asked(policy, reporting(nearly_done.tolist(), just_begun.tolist())).gpus.tolist() == [1, 2]
    assert asked(policy, reporting(just_begun.tolist(), nearly_done.tolist())).gpus.tolist() == [2, 1]


def test_told_estimates_it_grows_the_job_that_is_believed_to_be_longer() -> None:
    policy = Optimus(remaining=Remaining.ESTIMATE)
    assert View.REMAINING_WORK not in policy.views
    for believed_s, gpus in ([10.0, 1_000.0], [1, 2]), ([1_000.0, 10.0], [2, 1]):
        estimates = Durations(np.array(believed_s), np.array(believed_s))
        known = with_work(a_cluster(3), {"a": 500.0, "b": 500.0}, known_estimates=estimates)
        assert asked(policy, known).gpus.tolist() == gpus


def test_a_job_that_reports_nothing_gets_its_fewest_gpus() -> None:
    policy = Optimus(remaining=Remaining.LOSS)
    assert asked(policy, reporting([], samples=np.nan)).gpus.tolist() == [1]
    assert asked(policy, reporting([])).gpus.tolist() == [3]  # a first guess


def test_one_wild_loss_does_not_bend_the_curve() -> None:
    epoch = np.arange(1, 21)
    losses = 1 / (0.5 * epoch + 1.0)
    spiked = losses.copy()
    spiked[9] *= 20
    at = np.array([40.0])
    clean, spoilt = fit_losses(losses), fit_losses(spiked)
    assert spoilt.unit * spoilt.at(at) == pytest.approx(clean.unit * clean.at(at), rel=0.5)


def test_epochs_end_where_the_loss_hardly_falls() -> None:
    curve = fit_losses(1 / (np.arange(1, 20) + 1.0))
    epochs = epochs_to_converge(curve, 0.01, most=500)
    loss = curve.at(np.arange(1, 503, dtype=np.float64))
    assert loss[epochs - 1] - loss[epochs] < 0.01 <= loss[epochs - 2] - loss[epochs - 1]
    assert epochs_to_converge(curve, 1e-9, most=50) == 50


def test_step_times_of_known_parameters_are_found_again() -> None:
    gpus = np.array([1.0, 2.0, 4.0, 8.0])
    assert seconds_per_step(gpus, 0.8 / gpus + 0.1 + 0.01 * gpus) == pytest.approx([0.8, 0.1, 0.01])
    counts = tuple(range(1, 17))
    curve = Curve(counts, tuple(1 / (0.8 / g + 0.1 + 0.01 * g) for g in counts))
    assert fitted_curve(curve).per_s == pytest.approx(curve.per_s)


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="round_s must be > 0, got 0"):
        load_policy("optimus", round_s="0")
    with pytest.raises(InputError, match=r"policy\.unsure must be > 0 and <= 1, got"):
        load_policy("optimus", unsure="2")


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=10, deadline=None)
@given(situation=situations())
def test_its_variants_keep_every_promise(promise: str, situation: Situation) -> None:
    for policy in [
        Optimus(remaining=Remaining.LOSS),
        Optimus(remaining=Remaining.ESTIMATE),
        Optimus(speeds=SpeedFrom.FIT),
    ]:
        PROMISES[promise](policy, situation)
