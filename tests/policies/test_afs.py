import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import Allocation, MeasuredSpeeds, floats
from stretto.policies.afs import Afs, BasesBy, Tournament, Variant, by_gain, by_tournament
from stretto.policies.common.speed_curves import Curve
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, speeds_of

CURVE = Curve((1, 2, 3, 4), (1.0, 1.8, 2.4, 2.8))  # as in the example of Optimus
S, L = 0, 1
WORK = floats([100.0, 300.0])


@pytest.mark.parametrize(
    ("gpus", "given"),
    [(1, (1, 0)), (2, (1, 1)), (3, (2, 1)), (4, (2, 2))],
)
def test_afs_l_grants_to_the_short_the_long_the_short_the_long(gpus: int, given: tuple[int, int]) -> None:
    assert tuple(by_tournament([CURVE, CURVE], WORK, gpus)) == given


def test_every_grant_follows_its_comparison() -> None:
    tournament = Tournament([CURVE, CURVE], WORK)
    compared = []
    for winner in (S, L, S, L):
        assert tournament.winner() == winner
        compared.append((tournament.as_short[S], tournament.as_long[L]))
        tournament.grant(winner)
    assert compared[1:] == [
        pytest.approx(pair, abs=5e-5) for pair in ((0.8, 1.0), (0.8, 0.4444), (0.3333, 0.4444))
    ]


def test_a_decision_gives_what_the_grants_add_up_to() -> None:
    cluster = a_cluster(4)
    table = MeasuredSpeeds(*[np.array([[np.nan, *CURVE.per_s]])] * 2)
    jobs = [a_job(name, 1, max_gpus=4) for name in "ls"]
    snapshot = a_snapshot(
        *jobs, cluster=cluster, known_tables=[table, table], known_work=floats([300.0, 100.0])
    )
    policy = Afs()
    shares = policy.allocate(snapshot, speeds_of(policy.configurations(cluster), [[1.0]] * 2))
    assert shares.gpus.tolist() == [2, 2]


def test_a_gain_that_is_not_positive_ends_growth() -> None:
    falls = Curve((1, 2, 3), (1.0, 0.9, 5.0))
    assert by_tournament([falls], floats([10.0]), 8).tolist() == [1]
    assert by_gain([falls], 8).tolist() == [0]


def test_a_step_that_does_not_fit_leaves_the_gpus_to_others() -> None:
    wide, narrow = Curve((4, 8), (4.0, 9.0)), Curve((1, 2, 3), (1.0, 1.5, 1.6))
    assert by_tournament([wide, narrow], floats([10.0, 10.0]), 3).tolist() == [0, 3]
    assert by_gain([wide, narrow], 3).tolist() == [0, 2]


def one_by_one(curves: list[Curve], gpus: int) -> list[int]:
    """What a loop that always takes the largest next gain per GPU gives out."""
    rung = [0] * len(curves)
    open_rows = set(range(len(curves)))
    while open_rows:
        gains = []
        for row in list(open_rows):
            curve, at = curves[row], rung[row]
            if at + 1 == len(curve.gpus) or curve.per_s[at + 1] <= curve.per_s[at]:
                open_rows.discard(row)
                continue
            cost = curve.gpus[at + 1] - curve.gpus[at]
            gains.append(((curve.per_s[at + 1] - curve.per_s[at]) / cost, -row, cost))
        if not gains:
            break
        _, negative, cost = max(gains)
        if cost > gpus:
            open_rows.discard(-negative)
            continue
        gpus -= cost
        rung[-negative] += 1
    return [curve.gpus[at] - curve.gpus[0] for curve, at in zip(curves, rung, strict=True)]


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Up to five counts in equal steps; gains that all differ, so that ties cannot."""
    each = draw(st.sampled_from([1, 2, 4]))
    count = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Curve(tuple(range(each, each * (count + 1), each)), tuple(np.cumsum(rng.uniform(0.1, 9, count))))


def by_whole_walks(curves: list[Curve], work: list[float], gpus: int) -> list[int]:
    """AFS-L as it is printed: each grant to the winner of a walk through all jobs that may get more."""
    rung = [-1] * len(curves)
    open_rows = list(range(len(curves)))

    def beats(other: int, best: int) -> bool:
        if rung[other] < 0 and rung[best] < 0:
            return work[other] / curves[other].per_s[0] < work[best] / curves[best].per_s[0]
        is_shorter = left_s(other) < left_s(best)
        return gain(other, 0) > gain(best, 1) if is_shorter else gain(other, 1) >= gain(best, 0)

    def left_s(row: int) -> float:
        return work[row] / curves[row].per_s[rung[row]] if rung[row] >= 0 else np.inf

    def gain(row: int, ahead: int) -> float:
        if rung[row] < 0:
            return (np.inf, 1.0)[ahead]
        (few, many), at = curves[row].gpus[rung[row] :][:2], rung[row]
        slow, fast = curves[row].per_s[at : at + 2]
        return (fast - slow) / (many - few) / (slow, fast)[ahead]

    while open_rows:
        best = open_rows[0]
        for other in open_rows[1:]:
            best = other if beats(other, best) else best
        cost = curves[best].gpus[rung[best] + 1] - (curves[best].gpus[rung[best]] if rung[best] >= 0 else 0)
        fits = cost <= gpus
        if fits:
            gpus -= cost
            rung[best] += 1
        if not fits or rung[best] + 1 == len(curves[best].gpus):
            open_rows.remove(best)
    return [curve.gpus[at] if at >= 0 else 0 for curve, at in zip(curves, rung, strict=True)]


@settings(max_examples=scaled(300), deadline=None)
@given(st.lists(curves(), min_size=1, max_size=40), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_a_walk_that_goes_on_ends_as_a_whole_one(drawn: list[Curve], gpus: int, seed: int) -> None:
    work = np.random.default_rng(seed).uniform(1, 100, len(drawn))
    assert by_tournament(drawn, work, gpus).tolist() == by_whole_walks(drawn, work.tolist(), gpus)


@settings(max_examples=scaled(200), deadline=None)
@given(st.lists(curves(), min_size=1, max_size=5), st.integers(0, 30))
def test_one_sort_gives_what_a_heap_would(drawn: list[Curve], gpus: int) -> None:
    assert by_gain(drawn, gpus).tolist() == one_by_one(drawn, gpus)


@pytest.mark.parametrize(
    ("variant", "given"),
    [
        pytest.param(Variant.AFS_L, [4, 4], id="in a tournament a job without GPUs comes before growth"),
        pytest.param(Variant.LYRA, [4, 4], id="bases come before growth"),
    ],
)
def test_afs_serves_everybody_first(variant: Variant, given: list[int]) -> None:
    cluster = a_cluster(8)
    per_s = np.arange(17.0)[None] / 8
    policy = Afs(variant=variant)
    snapshot = a_snapshot(
        a_job("runs", 8, min_gpus=4, max_gpus=8),
        a_job("waits", 8, at_s=1, min_gpus=4, max_gpus=8),
        cluster=cluster,
        allocations={"runs": grant(0, n0=8)},
        known_tables=[MeasuredSpeeds(per_s, per_s)] * 2,
        known_work=floats([100.0, 200.0]),
    )
    shares = policy.allocate(snapshot, speeds_of(policy.configurations(cluster), [[1.0]] * 2))
    assert shares.gpus.tolist() == given


def test_lyras_variant_grows_by_gain_per_gpu_and_stops_nobody() -> None:
    cluster = a_cluster(8)
    fast, slow = (np.arange(17.0)[None] / asked for asked in (2, 4))
    policy = Afs(variant=Variant.LYRA)
    snapshot = a_snapshot(
        a_job("slow", 4, min_gpus=2, max_gpus=8),
        a_job("fast", 2, at_s=1, min_gpus=2, max_gpus=5),
        a_job("large", 7, at_s=2, min_gpus=7, max_gpus=7),
        cluster=cluster,
        allocations={"slow": grant(0, n0=6), "fast": Allocation(0, (0,), (0b11000000,))},
        known_tables=[MeasuredSpeeds(one, one) for one in (slow, fast, slow)],
        known_work=floats([500.0, 900.0, 1.0]),
    )
    shares = policy.allocate(snapshot, speeds_of(policy.configurations(cluster), [[1.0]] * 3))
    assert shares.gpus.tolist() == [3, 5, 0]


@pytest.mark.parametrize(
    ("bases_by", "gpus"),
    [
        pytest.param(BasesBy.SUBMISSION, [2, 0], id="who came first"),
        pytest.param(BasesBy.REMAINING, [0, 2], id="who has least left"),
    ],
)
def test_the_first_base_of_lyras_variant_is_for(bases_by: BasesBy, gpus: list[int]) -> None:
    cluster = a_cluster(2)
    linear = np.arange(5.0)[None]
    table = MeasuredSpeeds(linear, linear)
    policy = Afs(variant=Variant.LYRA, bases_by=bases_by)
    snapshot = a_snapshot(
        a_job("long", 2, min_gpus=2, max_gpus=2),
        a_job("short", 2, at_s=1, min_gpus=2, max_gpus=2),
        cluster=cluster,
        known_tables=[table, table],
        known_work=floats([900.0, 5.0]),
    )
    speeds = speeds_of(policy.configurations(cluster), [[1.0]] * 2, requested_per_s=floats([[2.0], [2.0]]))
    shares = policy.allocate(snapshot, speeds)
    assert shares.gpus.tolist() == gpus
