"""Real trainings are given what they have shown to gain by it."""

import json
import time
from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running
from .measured_jobs import (
    as_if_the_other_had_shown_it,
    gpus_given,
    measure_on_one_and_two,
    measured,
    submit,
    worth_of_third,
)

pytestmark = [pytest.mark.processes, pytest.mark.alone]

# Workers begin one after the other, each once the last was measured; a busy machine takes a minute for each.
PATIENCE_S = 900.0
MACHINE = ("--slots", "4", "--gpu-type", "cpu", "--policy")
OPTIONS = (*MACHINE, "cornucopia")
RAMP = ("--set", "policy.profile=ramp", "--set", "policy.profile_step_s=1", "--set", "policy.notice_s=1")


def test_under_cornucopia_a_real_job_that_does_not_scale_keeps_one_worker(tmp_path: Path) -> None:
    running = Running(tmp_path, *OPTIONS, *RAMP)
    running.begin()
    try:
        with running.client() as client:
            first = {model: submit(client, model, 1, 2) for model in ("flat", "linear")}
            for model, name in first.items():  # they ramp up, which measures one worker and two
                until(lambda name=name: measured(client, name) == [1, 2], PATIENCE_S, f"{model} is measured")  # type: ignore[misc]
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in first.values()), what="they end")
            everything = {"resources": {"accelerators": 4}, "grace_period": "1s"}
            before = client.submit(json.dumps({"name": "before", "run": "sleep 999", **everything}))["id"]
            until(lambda: client.describe(before)["gpus"] == 4, what="both come to one decision")
            flat, linear = submit(client, "flat", 2, 4), submit(client, "linear", 4, 4)
            client.change(before, "cancel")

            def held() -> tuple[int, int]:
                return client.describe(flat)["training_gpus"], client.describe(linear)["training_gpus"]

            until(lambda: held() == (1, 3), PATIENCE_S, "the one trains on one worker, the other on three")
            sized = max(seq for seq, _, kind, _ in running.log_of_all() if kind == "Decided")
            for name in (flat, linear):
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in (flat, linear)), what="they end")
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
        # By the curve both would be ramped up anew, in a log of other decisions.
        otherwise = running.decided_from(
            as_if_the_other_had_shown_it(flat=[first["flat"], flat], linear=[first["linear"], linear])
        )
        given = [
            gpus_given(other.again.actions, flat) for other in otherwise if other.again and other.seq <= sized
        ]
        assert max(given, default=0) > 1, "by what the other has shown, the one would have more"
    finally:
        running.end()


UNISCHED = (
    *("--set", "policy.auto_scaling=true", "--set", "policy.profile_s=1"),
    *("--set", "policy.best_effort_lease_s=3", "--set", "policy.deadline_lease_s=6"),
)


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        pytest.param("afs", (), marks=pytest.mark.long),
        pytest.param("optimus", ("--set", "policy.round_s=2"), marks=pytest.mark.long),
        pytest.param("unisched", UNISCHED, marks=pytest.mark.long),
    ],
)
def test_a_real_job_that_does_not_scale_keeps_one_worker_beside_one_that_does(
    tmp_path: Path, policy: str, settings: tuple[str, ...]
) -> None:
    running = Running(tmp_path, *MACHINE, policy, *settings)
    running.begin()
    try:
        with running.client() as client:
            steps = {"stop": {"steps": 1_000_000}}
            flat, linear = jobs = [submit(client, model, 1, 1, **steps) for model in ("flat", "linear")]
            measure_on_one_and_two(client, jobs, PATIENCE_S)

            def training() -> tuple[int, int]:
                return client.describe(flat)["training_gpus"], client.describe(linear)["training_gpus"]

            until(
                lambda: training() == (1, 3), PATIENCE_S, "the one trains on one worker, the other on three"
            )
            sized = max(seq for seq, _, kind, _ in running.log_of_all() if kind == "Decided")
            assert [client.describe(name)["restarts"] for name in jobs] == [0, 0], "both changed in place"
            for name in jobs:
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in jobs), what="they end")
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
        by_curve = running.decided_otherwise(speeds="assumed")
        given = [
            gpus_given(other.again.actions, flat) for other in by_curve if other.again and other.seq <= sized
        ]
        assert max(given, default=0) > 1, "by the curve the one that does not scale would have more"
    finally:
        running.end()


# Steps of half a second: what a busy machine adds to each is then small beside what tells the jobs apart.
SLOW = {"envs": {"OMP_NUM_THREADS": "1", "SAMPLE_S": "0.016"}}


def test_an_interactive_job_starts_on_a_worker_of_the_real_job_that_misses_it_least(
    tmp_path: Path,
) -> None:
    """By what was measured of them: the test expects no more of a busy machine than that."""
    running = Running(tmp_path, "--slots", "6", *OPTIONS[2:], *RAMP)
    running.begin()
    try:
        with running.client() as client:
            for model in ("sublinear", "linear"):  # the first job of a model measures one to three workers
                first = submit(client, model, 3, 3, **SLOW)
                what = f"{model} is measured"
                until(lambda name=first: measured(client, name) == [1, 2, 3], PATIENCE_S, what)  # type: ignore[misc]
                client.change(first, "cancel")
                until(lambda name=first: bool(client.describe(name)["ended_s"]), what="it ends")  # type: ignore[misc]
            # Of equals the later one would give: here that is the linear one.
            sublinear, linear = (submit(client, model, 3, 3, **SLOW) for model in ("sublinear", "linear"))

            def training() -> tuple[int, int]:
                shown = [client.describe(name) for name in (sublinear, linear)]
                return shown[0]["training_gpus"], shown[1]["training_gpus"]

            until(lambda: training() == (3, 3), PATIENCE_S, "both train on three workers")
            worth = {name: worth_of_third(client, name) for name in (sublinear, linear)}
            print(f"the third worker is worth {worth[sublinear]:.2f} and {worth[linear]:.2f} of the second")
            gives, keeps = sorted(
                (linear, sublinear), key=lambda name: worth[name]
            )  # of equals the later one
            switches = client.describe(keeps)["switches"]
            before = max(seq for seq, *_ in running.log_of_all())
            asked_at_s = time.monotonic()
            asked = {"name": "look", "kind": "interactive", "run": "sleep 999", "grace_period": "1s"}
            waits = client.submit(json.dumps({**asked, "resources": {"accelerators": 1}}))["id"]
            until(lambda: client.describe(waits)["state"] == "RUNNING", PATIENCE_S, "the user is served")
            took_s, waited_s = time.monotonic() - asked_at_s, client.describe(waits)["waited_s"]
            # Shown by pytest -rP
            print(f"GPUs after {waited_s:.2f} s of the cluster, running after {took_s:.2f} s of ours")
            with_two = (2, 3) if gives == sublinear else (3, 2)
            until(lambda: training() == with_two, PATIENCE_S, f"job {gives} trains on two workers: {worth}")
            served = max(seq for seq, *_ in running.log_of_all())
            shown = {name: client.describe(name) for name in (sublinear, linear, waits)}
            assert shown[gives]["restarts"] == 0, "it gave a worker in place"
            assert shown[gives]["switches"] > 0
            assert (shown[keeps]["restarts"], shown[keeps]["switches"]) == (0, switches)
            assert shown[waits]["standing"].startswith("queue 1 of 3")
            client.change(waits, "cancel")
            until(lambda: training() == (3, 3), PATIENCE_S, "what was taken comes back")
            for name in (sublinear, linear):
                client.change(name, "cancel")
            until(
                lambda: all(client.describe(name)["ended_s"] for name in (sublinear, linear)), what="they end"
            )
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
        if gives == sublinear:  # by the curve both miss it alike
            by_curve = running.decided_otherwise(speeds="assumed")
            given = [
                gpus_given(other.again.actions, linear)
                for other in by_curve
                if other.again and before < other.seq <= served
            ]
            assert 2 in given, "by the curve the later one would give the worker"
    finally:
        running.end()
