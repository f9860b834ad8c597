"""Real trainings get the GPU type on which they have shown to gain most."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds.local import LocalWorld

from stretto.client import Client
from stretto.demo.own_service import until

from ..running import Running
from .measured_jobs import measured_entries, submit

pytestmark = [pytest.mark.processes, pytest.mark.alone]

TYPES = {"fast-0": "fast", "slow-0": "slow"}  # two GPUs each
MODELS = ("linear", "picky")  # the one as fast on both types, the other faster on `fast`
ROUND_S = 10.0
ROUNDS = 3  # that a division lasts; by turns each type would change hands in every one


def last(running: Running) -> int:
    """Number of the latest event."""
    return max(seq for seq, *_ in running.log_of_all())


def rounds(running: Running, after: int) -> dict[int, Any]:
    """Of the decisions of whole rounds after an event, what each changes."""
    return {
        seq: body["actions"]
        for seq, _, kind, body in running.log_of_all()
        if seq > after and kind == "Decided" and "round" in body["due"]
    }


def on_types(client: Client) -> dict[str, dict[str, int]]:
    """By GPU type, what jobs hold there."""
    return {TYPES[node["name"]]: node["jobs"] for node in client.nodes()}


def profiled_on(running: Running, name: str) -> list[str]:
    """The types on which a job was given GPUs for a profiling run, in their order."""
    decided = [body for _, _, kind, body in running.log_of_all() if kind == "Decided"]
    given = [
        action["after"]
        for body in decided
        for action in body["actions"]
        if action["job"] == name and is_trial(action)
    ]
    return [TYPES[node] for held in given for node in held["nodes"]]


def measure_models(client: Client) -> None:
    """Jobs of both models that accept one type each: others of their models know what these have shown."""
    for types in (("fast", "slow"), ("slow", "fast")):
        on = dict(zip(MODELS, types, strict=True))
        jobs = {
            submit(client, model, 2, 2, resources={"accelerators": f"{on[model]}:2"}): on[model]
            for model in MODELS
        }
        for name, gpu_type in jobs.items():
            until(
                lambda name=name, gpu_type=gpu_type: any(  # type: ignore[misc]
                    entry["gpu_type"] == gpu_type for entry in measured_entries(client, name)
                ),
                240.0,
                f"job {name} is measured on {gpu_type}",
            )
        for name in jobs:
            client.change(name, "cancel")
        until(lambda jobs=jobs: all(client.describe(name)["ended_s"] for name in jobs), what="they end")  # type: ignore[misc]


def test_under_gavel_the_fast_type_goes_to_the_real_job_that_gains_by_it(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path / "nodes", types=TYPES, owners=("service",))
    world.start()
    running = Running(
        tmp_path, "--policy", "gavel", "--set", f"policy.round_s={ROUND_S}", program=world.program
    )
    try:
        running.begin()
        with running.client() as client:
            measure_models(client)
            # The one that does not gain comes first: of equals it would begin on the fast type.
            even, picky = jobs = [submit(client, model, 2, 2) for model in MODELS]

            def by_gain() -> bool:
                on_fast, on_slow = (
                    node["jobs"] for node in sorted(client.nodes(), key=lambda node: node["name"])
                )
                return (on_fast, on_slow) == ({picky: 2}, {even: 2})

            until(by_gain, 240.0, "the fast type goes to the job that gains")
            known = last(running)
            until(lambda: len(rounds(running, known)) >= ROUNDS, what="some rounds")
            assert by_gain()
            for name in jobs:
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in jobs), what="they end")
    finally:
        running.end()
        asyncio.run(world.close())
    decisions, differences = running.differences()
    assert decisions
    assert not differences, "decided again, the same comes out"
    decided = rounds(running, known)
    assert not any(decided.values()), "they stay where they are"
    by_curve = running.decided_otherwise(speeds="assumed")
    moved = [other.again.actions for other in by_curve if other.seq in decided and other.again]
    assert any(moved), "by the curve they would take turns"


def moves(action: Mapping[str, Any]) -> bool:
    """Whether an action changes where a job is, and not only what for."""
    before, after = (action[when] or {"nodes": {}} for when in ("before", "after"))
    return bool(before["nodes"] != after["nodes"])


def is_trial(action: Mapping[str, Any]) -> bool:
    """Whether an action gives a job GPUs for a profiling run."""
    return bool(action["after"] and action["after"].get("profiling"))


@pytest.mark.long
def test_under_gavel_jobs_try_both_types_where_that_is_asked_for_and_then_keep_to_theirs(
    tmp_path: Path,
) -> None:
    world = LocalWorld(tmp_path / "nodes", types=TYPES, owners=("service",))
    world.start()
    options = ("--policy", "gavel", "--set", f"policy.round_s={ROUND_S}", "--set", "policy.profile_rounds=90")
    running = Running(tmp_path, *options, program=world.program)
    try:
        running.begin()
        with running.client() as client:
            # Nobody has measured anything. By what is stated both types are alike for both jobs, and by turns
            # of arrival the one that does not gain has the fast type first.
            even, picky = jobs = [submit(client, model, 2, 2) for model in MODELS]

            def known() -> bool:
                return all(
                    {entry["gpu_type"] for entry in measured_entries(client, name)} == {*TYPES.values()}
                    for name in jobs
                )

            until(known, 900.0, "both jobs are measured on both types")
            until(
                lambda: on_types(client) == {"fast": {picky: 2}, "slow": {even: 2}},
                240.0,
                "the fast type goes to the job that gains",
            )
            settled = last(running)
            until(lambda: len(rounds(running, settled)) >= ROUNDS, what="some rounds")
            assert on_types(client) == {"fast": {picky: 2}, "slow": {even: 2}}
            for name in jobs:
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in jobs), what="they end")
    finally:
        running.end()
        asyncio.run(world.close())
    assert {*profiled_on(running, even)} == {*profiled_on(running, picky)} == {*TYPES.values()}
    later = [action for actions in rounds(running, settled).values() for action in actions]
    assert not any(moves(action) for action in later), "they stay where they are"
    decisions, differences = running.differences()
    assert decisions
    assert not differences, "decided again, the same comes out"
    by_curve = running.decided_otherwise(speeds="assumed")
    of_trials = [other.again for other in by_curve if any(map(is_trial, other.was.actions)) and other.again]
    assert any(not any(map(is_trial, again.actions)) for again in of_trials), (
        "by the curve no second type would be tried"
    )
