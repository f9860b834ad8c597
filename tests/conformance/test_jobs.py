"""Jobs of a service from their submission to their end, over every backend."""

import os
import signal
from typing import Any

import pytest
from tests.conformance.hall import Hall

from stretto.model import InputError

pytestmark = [pytest.mark.processes, pytest.mark.alone]


def test_a_job_starts_ends_well_and_its_log_stays(hall: Hall) -> None:
    job = hall.submit("sleep", 0.5)
    shown = hall.until_state(job, "COMPLETED")
    assert (shown["status"], shown["attempt"], shown["failures"]) == (0, 1, 0)
    if hall.tells:
        assert hall.log(job).splitlines() == ["sleep begins"]
        assert len(hall.began(job)) == 1


def test_a_job_of_several_workers_on_several_nodes_begins_and_ends_as_one(hall: Hall) -> None:
    gpu_type, nodes = next(of_one_type for of_one_type in by_type(hall).items() if len(of_one_type[1]) > 1)
    gpus = sum(nodes.values())
    job = hall.submit("beat", 100_000 if hall.tells else 60, gpus=gpus, gpu_type=gpu_type)
    works = hall.until_works(job, gpus)
    assert works["nodes"] == nodes
    hall.until(lambda: not hall.tells or hall.count(job) >= 10, "it counts")
    hall.finish(job)
    assert hall.until_state(job, "COMPLETED")["attempt"] == 1
    if hall.tells:
        assert {one["node"] for one in hall.began(job)} == set(nodes)


def test_who_waits_for_gpus_says_so_and_starts_when_they_are_free(hall: Hall) -> None:
    gpu_type, nodes = next(iter(by_type(hall).items()))
    gpus = sum(nodes.values())
    first = hall.submit("beat", 100_000, gpus=gpus, gpu_type=gpu_type, preemptible=False)
    hall.until_works(first)
    second = hall.submit("sleep", 0.2, gpus=gpus, gpu_type=gpu_type)
    reasons = {"NO_FREE_GPUS", "BEHIND_IN_ORDER", "WORTH_LESS"}
    hall.until(lambda: hall.shown(second)["reason"] in reasons, "the second waits for GPUs")
    assert hall.shown(second)["state"] == "PENDING"
    hall.change(first, "cancel")
    assert hall.until_state(first, "CANCELLED")["gpus"] == 0
    assert hall.until_state(second, "COMPLETED")["failures"] == 0


def test_what_the_cluster_can_never_give_is_refused_in_one_line(hall: Hall) -> None:
    for asked in ({"gpu_type": "type-that-nobody-has"}, {"gpus": 10_000}):
        with pytest.raises(InputError) as refused:
            hall.submit("sleep", 1.0, **asked)
        assert "\n" not in str(refused.value)
        assert str(next(iter(asked.values()))) in str(refused.value).replace(",", "")


def test_a_status_of_its_own_ends_a_job_as_failed(hall: Hall) -> None:
    shown = hall.until_state(hall.submit("sleep", 0.1, 7, restart={"max": 0}), "FAILED")
    assert (shown["status"], shown["attempt"], shown["failures"]) == (7, 1, 1)


def test_a_worker_that_breaks_down_is_tried_again_as_its_file_allows(hall: Hall) -> None:
    job = hall.submit("sleep", 0.1, 7, restart={"max": 1})

    def waits() -> dict[str, Any] | None:
        shown = hall.shown(job)
        return shown if shown["reason"] == "NOT_BEFORE" else None

    shown = hall.until(waits, "it waits until it is tried again")
    assert shown is not None
    assert (shown["state"], shown["failures"]) == ("PENDING", 1)
    assert "status 7" in shown["evidence"]


def test_who_is_killed_from_outside_goes_on_from_where_it_was(hall: Hall) -> None:
    job = hall.submit("beat", 100_000, gpus=2)
    hall.until_works(job, 2)
    hall.until(lambda: hall.count(job) > 2, "it has counted")
    os.kill(hall.began(job)[0]["pid"], signal.SIGKILL)
    before = hall.count(job)
    assert hall.until_works(job, 2, attempt=2)["failures"] == 0
    hall.until(lambda: hall.count(job) > before + 2, "it goes on")
    assert len(hall.began(job)) == 4


def test_a_cancelled_job_is_gone_with_its_processes(hall: Hall) -> None:
    running, stubborn = hall.submit("beat", 100_000), hall.submit("stubborn", grace_period="0.5s")
    for job in (running, stubborn):
        hall.until_works(job)
        hall.change(job, "cancel")
    for job in (running, stubborn):
        assert hall.until_state(job, "CANCELLED")["gpus"] == 0
    hall.until(lambda: not hall.left(), "their processes are gone")


def test_a_job_that_is_held_saves_within_its_grace_and_goes_on_when_released(hall: Hall) -> None:
    job = hall.submit("polite", 0.5, grace_period="20s")
    hall.until_works(job)
    hall.change(job, "hold")
    hall.until_state(job, "SUSPENDED")
    if hall.tells:
        assert hall.log(job, attempt=1).splitlines() == ["polite begins", "asked to end", "saved"]
    hall.change(job, "release")
    assert hall.until_works(job, attempt=2)["failures"] == 0


def by_type(hall: Hall) -> dict[str, dict[str, int]]:
    """Nodes with their GPUs, by GPU type."""
    found: dict[str, dict[str, int]] = {}
    for name, node in hall.nodes().items():
        found.setdefault(node["gpu_type"], {})[name] = node["gpus"]
    return found
