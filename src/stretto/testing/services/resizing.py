"""Jobs of a service that grow, shrink, move, and lose nodes, over every backend."""

import asyncio

import pytest

from stretto.errors import InputError
from stretto.testing.services.fixture import ServiceFixture

MANY = 100_000
ONE_OR_TWO = {"min": 1, "max": 2}


class Resizing:
    """Jobs of a service that grow, shrink, move, and lose nodes."""

    def test_an_elastic_job_grows_and_shrinks_and_keeps_its_other_workers(
        self, service: ServiceFixture
    ) -> None:
        """An elastic job grows and shrinks and keeps its other workers."""
        gpu_type = service.nodes()[service.world.nodes()[-1]]["gpu_type"]  # on another, it would have to move
        job = service.submit("train", MANY, gpu_type=gpu_type, elastic=ONE_OR_TWO)
        scaled(service, job, 1)
        scaled(service, job, 2)
        scaled(service, job, 1)
        scaled(service, job, 2)
        shown = service.shown(job)
        assert (shown["attempt"], shown["failures"]) == (1, 0), "it was never restarted"
        assert shown["switches"] >= 3
        if service.tells:
            began = [note["worker"] for note in service.began(job)]
            assert len(began) in (3, 4), "who stayed was not started again"

    def test_a_job_of_workers_of_two_gpus_grows_and_shrinks_by_whole_workers(
        self, service: ServiceFixture
    ) -> None:
        """A job of workers of two GPUs grows and shrinks by whole workers, and each sees both its GPUs."""
        gpu_type, gpus = type_with_most_gpus(service)
        job = service.submit(
            "train",
            MANY,
            gpus=2,
            gpu_type=gpu_type,
            elastic={"min": 2, "max": gpus},
            resources={"accelerators": f"{gpu_type}:2", "gpus_per_worker": 2},
        )
        scaled(service, job, 2)
        assert workers_with_two(service, job) == 1
        with pytest.raises(InputError, match="whole workers of 2 GPUs, got 3"):
            service.change(job, "scale", min_gpus=3, max_gpus=4)
        scaled(service, job, 4)
        assert workers_with_two(service, job) == 2
        scaled(service, job, 2)
        assert workers_with_two(service, job) == 1
        shown = service.shown(job)
        assert (shown["attempt"], shown["failures"]) == (1, 0), "it was never restarted"
        if service.tells:
            began = service.began(job)
            assert [len(note["devices"]) for note in began] == [2, 2], "every worker sees all its GPUs"
            assert len({(note["node"], *note["devices"]) for note in began}) == 2, "and no others"

    def test_who_is_preempted_is_started_anew_from_where_it_was(self, service: ServiceFixture) -> None:
        """A job that is preempted is started anew from where it was."""
        job = service.submit("beat", MANY)
        service.until_works(job)
        service.until(lambda: not service.tells or service.count(job) > 2, "it counts")
        before = service.count(job)
        service.change(job, "requeue")
        assert service.until_works(job, attempt=2)["failures"] == 0
        assert not service.tells or service.until(lambda: service.count(job) > before, "it goes on")

    def test_a_drained_node_is_left_and_a_cordoned_one_takes_nobody_new(
        self, service: ServiceFixture
    ) -> None:
        """A drained node is left and a cordoned one takes no new worker."""
        job = service.submit("beat", MANY)
        (node,) = service.until_works(job)["nodes"]
        with service.client() as client:
            client.close_node(node, closed=True, drain=True)
            try:
                moved = service.until_works(job, attempt=2)
                assert node not in moved["nodes"]
                assert moved["failures"] == 0
                service.until(lambda: not service.nodes()[node]["jobs"], "nobody is there any more")
            finally:
                client.close_node(node, closed=False)

    def test_an_elastic_job_moves_to_another_node_in_place(self, service: ServiceFixture) -> None:
        """An elastic job moves to another node in place."""
        job = service.submit("train", MANY, elastic=ONE_OR_TWO)
        scaled(service, job, 1)
        (node,) = service.shown(job)["nodes"]
        with service.client() as client:
            client.close_node(node, closed=True, drain=True)
            try:
                service.until(
                    lambda: node not in service.shown(job)["nodes"] and trains_on(service, job) == 1,
                    "it has moved",
                )
                assert service.shown(job)["failures"] == 0
            finally:
                client.close_node(node, closed=False)

    def test_a_job_goes_on_elsewhere_when_its_node_dies_and_the_node_is_used_again(
        self, service: ServiceFixture
    ) -> None:
        """A job goes on elsewhere when its node dies and the node is used again."""
        job = service.submit("beat", MANY)
        (node,) = service.until_works(job)["nodes"]
        service.until(lambda: service.count(job) > 2, "it counts")
        before = service.count(job)
        asyncio.run(service.world.kill_node(node))
        try:
            service.until(lambda: not service.nodes()[node]["up"], "the node is seen to be down")
            elsewhere = service.until_works(job, attempt=2)
            assert node not in elsewhere["nodes"]
            assert elsewhere["failures"] == 0, "a lost node is nobody's fault"
            service.until(lambda: service.count(job) > before + 2, "it goes on")
        finally:
            asyncio.run(service.world.return_node(node))
        service.until(
            lambda: service.nodes()[node]["up"] and not service.nodes()[node]["closed"], "the node is back"
        )
        others = [other for other in service.nodes() if other != node]
        with service.client() as client:
            for other in others:
                client.close_node(other, closed=True)
            try:
                assert service.until_state(service.submit("sleep", 0.2), "COMPLETED")["attempt"] == 1
            finally:
                for other in others:
                    client.close_node(other, closed=False)


def type_with_most_gpus(service: ServiceFixture) -> tuple[str, int]:
    """The type that has most GPUs, and how many."""
    gpus: dict[str, int] = {}
    for node in service.nodes().values():
        gpus[node["gpu_type"]] = gpus.get(node["gpu_type"], 0) + node["gpus"]
    return max(gpus.items(), key=lambda item: item[1])


def workers_with_two(service: ServiceFixture, job: str) -> int:
    """Workers that a job has, where each has two GPUs of one node."""
    shown = service.shown(job)
    assert set(shown["gpus_per_worker"].values()) == {2}
    assert all(gpus % 2 == 0 for gpus in shown["nodes"].values()), shown["nodes"]
    return int(shown["gpus"]) // 2


def scaled(service: ServiceFixture, job: str, gpus: int) -> None:
    """A job is on so many GPUs, and trains there."""
    service.change(job, "scale", min_gpus=gpus, max_gpus=gpus)
    service.until(lambda: trains_on(service, job) == gpus, f"{job} trains on {gpus} GPUs")


def trains_on(service: ServiceFixture, job: str) -> int:
    """GPUs that train together, once nothing is on its way; 0 before."""
    shown = service.shown(job)
    return int(shown["training_gpus"]) if shown["state"] == "RUNNING" else 0
