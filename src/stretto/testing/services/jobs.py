"""Jobs of a service from their submission to their end, over every backend."""

import os
import signal
from typing import Any

import pytest

from stretto.errors import InputError
from stretto.testing.backends.world import pid_of
from stretto.testing.services.fixture import ServiceFixture


class Jobs:
    """Jobs of a service from their submission to their end."""

    def test_a_job_starts_ends_well_and_its_log_stays(self, service: ServiceFixture) -> None:
        """A job starts ends well and its log stays."""
        job = service.submit("sleep", 0.5)
        shown = service.until_state(job, "COMPLETED")
        assert (shown["status"], shown["attempt"], shown["failures"]) == (0, 1, 0)
        if service.tells:
            assert service.log(job).splitlines() == ["sleep begins"]
            assert len(service.began(job)) == 1

    def test_a_job_of_several_workers_on_several_nodes_begins_and_ends_as_one(
        self, service: ServiceFixture
    ) -> None:
        """A job of several workers on several nodes begins and ends as one."""
        gpu_type, nodes = next(
            of_one_type for of_one_type in by_type(service).items() if len(of_one_type[1]) > 1
        )
        gpus = sum(nodes.values())
        job = service.submit("beat", 100_000 if service.tells else 60, gpus=gpus, gpu_type=gpu_type)
        works = service.until_works(job, gpus)
        assert works["nodes"] == nodes
        service.until(lambda: not service.tells or service.count(job) >= 10, "it counts")
        service.finish(job)
        assert service.until_state(job, "COMPLETED")["attempt"] == 1
        if service.tells:
            assert {note["node"] for note in service.began(job)} == set(nodes)

    def test_who_waits_for_gpus_says_so_and_starts_when_they_are_free(self, service: ServiceFixture) -> None:
        """A job that waits for GPUs says so and starts when they are free."""
        gpu_type, nodes = next(iter(by_type(service).items()))
        gpus = sum(nodes.values())
        first = service.submit("beat", 100_000, gpus=gpus, gpu_type=gpu_type, preemptible=False)
        service.until_works(first)
        second = service.submit("sleep", 0.2, gpus=gpus, gpu_type=gpu_type)
        reasons = {"NO_FREE_GPUS", "BEHIND_IN_ORDER", "WORTH_LESS"}
        service.until(lambda: service.shown(second)["reason"] in reasons, "the second waits for GPUs")
        assert service.shown(second)["state"] == "PENDING"
        service.change(first, "cancel")
        assert service.until_state(first, "CANCELLED")["gpus"] == 0
        assert service.until_state(second, "COMPLETED")["failures"] == 0

    def test_what_the_cluster_can_never_give_is_refused_in_one_line(self, service: ServiceFixture) -> None:
        """What the cluster can never give is refused in one line."""
        for asked in ({"gpu_type": "type-that-nobody-has"}, {"gpus": 10_000}):
            with pytest.raises(InputError) as refused:
                service.submit("sleep", 1.0, **asked)
            assert "\n" not in str(refused.value)
            assert str(next(iter(asked.values()))) in str(refused.value).replace(",", "")

    def test_a_worker_of_more_gpus_than_a_node_has_is_refused_in_one_line(
        self, service: ServiceFixture
    ) -> None:
        """A worker of more GPUs than any node has is refused in one line."""
        most = 1 + max(node["gpus"] for node in service.nodes().values())
        with pytest.raises(InputError) as refused:
            service.submit("sleep", 1.0, resources={"accelerators": most, "gpus_per_worker": most})
        assert "\n" not in str(refused.value)
        assert "gpus_per_worker" in str(refused.value)
        assert str(most) in str(refused.value)

    def test_a_status_of_its_own_ends_a_job_as_failed(self, service: ServiceFixture) -> None:
        """A status of its own ends a job as failed."""
        shown = service.until_state(service.submit("sleep", 0.1, 7, restart={"max": 0}), "FAILED")
        assert (shown["status"], shown["attempt"], shown["failures"]) == (7, 1, 1)

    def test_a_worker_that_breaks_down_is_tried_again_as_its_file_allows(
        self, service: ServiceFixture
    ) -> None:
        """A worker that breaks down is tried again as its file allows."""
        job = service.submit("sleep", 0.1, 7, restart={"max": 1})

        def waits() -> dict[str, Any] | None:
            shown = service.shown(job)
            return shown if shown["reason"] == "NOT_BEFORE" else None

        shown = service.until(waits, "it waits until it is tried again")
        assert shown is not None
        assert (shown["state"], shown["failures"]) == ("PENDING", 1)
        assert "status 7" in shown["evidence"]

    def test_who_is_killed_from_outside_goes_on_from_where_it_was(self, service: ServiceFixture) -> None:
        """A job that is killed from outside goes on from where it was."""
        job = service.submit("beat", 100_000, gpus=2)
        service.until_works(job, 2)
        service.until(lambda: service.count(job) > 2, "it has counted")
        os.kill(pid_of(service.world, service.began(job)[0]), signal.SIGKILL)
        before = service.count(job)
        assert service.until_works(job, 2, attempt=2)["failures"] == 0
        service.until(lambda: service.count(job) > before + 2, "it goes on")
        assert len(service.began(job)) == 4

    def test_a_cancelled_job_is_gone_with_its_processes(self, service: ServiceFixture) -> None:
        """A cancelled job is gone with its processes."""
        running, stubborn = service.submit("beat", 100_000), service.submit("stubborn", grace_period="0.5s")
        for job in (running, stubborn):
            service.until_works(job)
            service.change(job, "cancel")
        for job in (running, stubborn):
            assert service.until_state(job, "CANCELLED")["gpus"] == 0
        service.until(lambda: not service.left(), "their processes are gone")

    def test_a_job_that_is_held_saves_within_its_grace_and_goes_on_when_released(
        self, service: ServiceFixture
    ) -> None:
        """A job that is held saves within its grace and goes on when released."""
        job = service.submit("polite", 0.5, grace_period="20s")
        service.until_works(job)
        service.change(job, "hold")
        service.until_state(job, "SUSPENDED")
        if service.tells:
            assert service.log(job, attempt=1).splitlines() == ["polite begins", "asked to end", "saved"]
        service.change(job, "release")
        assert service.until_works(job, attempt=2)["failures"] == 0


def by_type(service: ServiceFixture) -> dict[str, dict[str, int]]:
    """Nodes with their GPUs, by GPU type."""
    nodes_of_type: dict[str, dict[str, int]] = {}
    for name, node in service.nodes().items():
        nodes_of_type.setdefault(node["gpu_type"], {})[name] = node["gpus"]
    return nodes_of_type
