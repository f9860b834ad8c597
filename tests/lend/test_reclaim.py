"""Which servers go back: the paper's example, and the heuristic beside the optimum."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.lend import RULES
from stretto.lend.hosting import Hosting
from stretto.lend.reclaim import preemption_cost
from stretto.model import ints

FIGURE_5 = {"a": {1: 8, 2: 8}, "b": {3: 8}, "c": {4: 8, 5: 2}, "d": {5: 2, 6: 8}}


def hosting_of(
    held: Mapping[str, Mapping[int, int]],
    servers: int,
    flexible: Mapping[str, Mapping[int, int]] | None = None,
    elsewhere: Mapping[str, int] | None = None,
) -> Hosting:
    """GPUs of base and flexible workers by job and server (from 1); `elsewhere`: on one more server."""
    flexible, elsewhere = flexible or {}, elsewhere or {}
    names = sorted({*held, *flexible})
    pairs = [
        (row, at - 1, held.get(name, {}).get(at, 0), flexible.get(name, {}).get(at, 0))
        for row, name in enumerate(names)
        for at in sorted({*held.get(name, {}), *flexible.get(name, {})})
    ]
    job, server, base, spare = ints(pairs).reshape(-1, 4).T
    outside = ints([elsewhere.get(name, 0) for name in names])
    on = ints([len(held.get(name, {})) for name in names]) + (outside > 0)
    return Hosting(servers, len(names), job, server, base, spare, on, outside)


def chosen_by(rule: str, hosting: Hosting, count: int, seed: int = 0) -> list[int]:
    """Numbers from 1, ascending."""
    return sorted((RULES[rule].choose(hosting, count, np.random.default_rng(seed)) + 1).tolist())


def cost_of(rule: str, hosting: Hosting, count: int) -> tuple[int, int]:
    """(jobs stopped, GPUs vacated in excess)."""
    chosen = RULES[rule].choose(hosting, count, np.random.default_rng(0))
    stopped = hosting.stopped_by(chosen, RULES[rule].spares_flexible)
    return int(stopped.sum()), hosting.excess_gpus(chosen, stopped)


def test_preemption_costs_are_those_of_the_papers_table_1() -> None:
    hosting = hosting_of(FIGURE_5, servers=6)
    assert hosting.server_jobs.tolist() == [1, 1, 1, 1, 2, 1]
    fraction = hosting.gpus / hosting.job_gpus[hosting.job]
    assert np.bincount(hosting.server, fraction) == pytest.approx([0.5, 0.5, 1, 0.8, 0.4, 0.8])
    assert preemption_cost(hosting) == pytest.approx([0.5, 0.5, 1, 0.5, 1, 0.5])


@pytest.mark.parametrize(
    ("count", "servers", "stopped", "excess"),
    [
        pytest.param(2, [1, 2], 1, 0, id="two: the job on both goes alone"),
        pytest.param(1, [3], 1, 0, id="one: the job that holds nothing else"),
        pytest.param(3, [1, 2, 4], 2, 2, id="three: two jobs, and two GPUs too many"),
        pytest.param(4, [1, 2, 4, 6], 3, 4, id="four: three jobs"),
    ],
)
def test_the_servers_of_figure_5_that_go_back(
    count: int, servers: list[int], stopped: int, excess: int
) -> None:
    hosting = hosting_of(FIGURE_5, servers=6)
    assert chosen_by("lyra", hosting, count) == servers
    assert cost_of("lyra", hosting, count) == (stopped, excess)
    assert cost_of("optimal", hosting, count)[0] == stopped


def test_the_optimum_of_figure_5_for_three_servers_vacates_nothing_in_excess() -> None:
    hosting = hosting_of(FIGURE_5, servers=6)
    assert chosen_by("optimal", hosting, 3) == [1, 2, 3]
    assert cost_of("optimal", hosting, 3) == (2, 0)


@pytest.mark.parametrize(
    ("rule", "count", "servers"),
    [("smallest-count", 2, [1, 2]), ("smallest-count", 6, [1, 2, 3, 4, 5, 6]), ("least-busy", 1, [5])],
)
def test_rules_to_compare_with_choose(rule: str, count: int, servers: list[int]) -> None:
    assert chosen_by(rule, hosting_of(FIGURE_5, servers=6), count) == servers


def test_random_servers_follow_the_seed_and_are_all_found_sooner_or_later() -> None:
    hosting = hosting_of(FIGURE_5, servers=6)
    assert chosen_by("random", hosting, 3, seed=5) == chosen_by("random", hosting, 3, seed=5)
    assert {at for seed in range(40) for at in chosen_by("random", hosting, 1, seed)} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("count", "servers"),
    [
        pytest.param(1, [4], id="an idle server first"),
        pytest.param(2, [3, 4], id="then the one with fewest flexible GPUs"),
        pytest.param(3, [2, 3, 4], id="then the other that has flexible workers only"),
        pytest.param(4, [1, 2, 3, 4], id="and only then somebody is stopped"),
    ],
)
def test_lyra_takes(count: int, servers: list[int]) -> None:
    hosting = hosting_of({"e": {1: 4}, "f": {1: 2}}, 4, flexible={"e": {1: 2, 2: 6}, "f": {3: 2}})
    assert chosen_by("lyra", hosting, count) == servers
    assert cost_of("lyra", hosting, count)[0] == (2 if count == 4 else 0)


def test_flexible_workers_on_a_mixed_server_do_not_count_as_preemptions() -> None:
    hosting = hosting_of({"a": {1: 2}, "b": {2: 2}, "c": {2: 2}}, 2, flexible={"d": {1: 2}, "e": {1: 2}})
    assert chosen_by("lyra", hosting, 1) == [1]
    assert cost_of("lyra", hosting, 1)[0] == 1


def test_gpus_on_servers_that_are_not_on_loan_count_for_cost_and_damage() -> None:
    hosting = hosting_of({"a": {1: 4}, "b": {2: 4}}, 2, elsewhere={"a": 8})
    assert preemption_cost(hosting).tolist() == [0.5, 1.0]
    assert chosen_by("lyra", hosting, 1) == [2]  # one job each; stopping b vacates nothing else


@st.composite
def hostings(draw: st.DrawFn, servers: int = 8, jobs: int = 8) -> Hosting:
    """Small random situations: nobody has more than 8 GPUs of a server, though all together may."""
    there = draw(st.integers(1, servers))
    held = {
        f"j{job}": draw(
            st.dictionaries(st.integers(1, there), st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3)
        )
        for job in range(draw(st.integers(0, jobs)))
    }
    elsewhere = {name: draw(st.sampled_from([0, 0, 8])) for name in held}
    return hosting_of(held, there, elsewhere=elsewhere)


def exhaustive(hosting: Hosting, count: int) -> tuple[int, int]:
    """The best (jobs stopped, GPUs in excess) of all choices."""
    found = []
    for servers in combinations(range(hosting.servers), count):
        stopped = hosting.stopped_by(ints(servers), spare_flexible=False)
        found.append((int(stopped.sum()), hosting.excess_gpus(ints(servers), stopped)))
    return min(found)


@settings(max_examples=scaled(60), deadline=None)
@given(hosting=hostings(), data=st.data())
def test_the_optimal_rule_agrees_with_trying_everything(hosting: Hosting, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, hosting.servers))
    assert cost_of("optimal", hosting, count) == exhaustive(hosting, count)


@settings(max_examples=scaled(100), deadline=None)
@given(hosting=hostings(), data=st.data(), rule=st.sampled_from(sorted(RULES)))
def test_every_rule_returns_as_many_different_servers_as_asked_for(
    hosting: Hosting, data: st.DataObject, rule: str
) -> None:
    count = data.draw(st.integers(1, hosting.servers))
    servers = chosen_by(rule, hosting, count)
    assert len(set(servers)) == count
    assert set(servers) <= set(range(1, hosting.servers + 1))


def random_hosting(rng: np.random.Generator, servers: int, jobs: int) -> Hosting:
    held: dict[str, dict[int, int]] = {}
    for job in range(jobs):
        spread = int(rng.choice([1, 2, 4], p=[0.6, 0.3, 0.1]))
        at = rng.choice(servers, size=spread, replace=False) + 1
        held[f"j{job:03d}"] = dict.fromkeys(at.tolist(), 8 // spread)
    return hosting_of(held, servers)


def test_lyra_is_near_the_optimum_on_random_situations_and_never_below_it() -> None:
    rng = np.random.default_rng(0)
    ours, best, random = 0, 0, 0
    for _ in range(40):
        hosting = random_hosting(rng, servers=12, jobs=14)
        count = int(rng.integers(2, 9))
        least = cost_of("optimal", hosting, count)[0]
        found = cost_of("lyra", hosting, count)[0]
        assert found >= least
        ours, best, random = ours + found, best + least, random + cost_of("random", hosting, count)[0]
    assert ours <= 1.19 * best  # Lyra, section 7.3: at most 19 % more preemptions
    assert ours < random


def test_one_server_is_reclaimed_with_the_fewest_preemptions_there_are() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        hosting = random_hosting(rng, servers=8, jobs=10)
        assert cost_of("lyra", hosting, 1) == cost_of("optimal", hosting, 1)


def test_damage_is_brought_up_to_date_while_servers_are_chosen() -> None:
    """The choice, made by the definition alone: every damage is found anew before every choice."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        hosting = random_hosting(rng, servers=10, jobs=9)
        count = int(rng.integers(2, 9))
        assert RULES["lyra"].choose(hosting, count, rng).tolist() == by_definition(hosting, count)


def by_definition(hosting: Hosting, count: int) -> list[int]:
    pairs = list(zip(hosting.job.tolist(), hosting.server.tolist(), hosting.gpus.tolist(), strict=True))
    alive, left, chosen = set(range(hosting.jobs)), list(range(hosting.servers)), list[int]()

    def on(server: int) -> set[int]:
        return {job for job, at, _ in pairs if at == server and job in alive}

    def damage(server: int) -> int:
        gone = on(server)
        emptied = [at for at in left if at != server and on(at) and on(at) <= gone]
        spared = {server, *emptied[: count - len(chosen) - 1]}
        return sum(gpus for job, at, gpus in pairs if job in gone and at not in spared)

    while len(chosen) < count:
        idle = [server for server in left if not on(server)]
        costs = {at: round(sum(1 / hosting.base_servers[job] for job in on(at)), 6) for at in left}
        tied = [server for server in left if costs[server] == min(costs.values())]
        server = idle[0] if idle else min(tied, key=lambda at: (damage(at), at))
        alive -= on(server)
        left.remove(server)
        chosen.append(server)
    return chosen
