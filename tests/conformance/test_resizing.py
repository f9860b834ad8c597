"""Jobs of a service that grow, shrink, move, and lose nodes, over every backend."""

import asyncio

import pytest
from tests.conformance.hall import Hall

pytestmark = [pytest.mark.processes, pytest.mark.alone]

MANY = 100_000
ONE_OR_TWO = {"min": 1, "max": 2}


def scaled(hall: Hall, job: str, gpus: int) -> None:
    """A job is on so many GPUs, and trains there."""
    hall.change(job, "scale", min_gpus=gpus, max_gpus=gpus)
    hall.until(lambda: trains_on(hall, job) == gpus, f"{job} trains on {gpus} GPUs")


def trains_on(hall: Hall, job: str) -> int:
    """GPUs that train together, once nothing is on its way; 0 before."""
    shown = hall.shown(job)
    return int(shown["training_gpus"]) if shown["state"] == "RUNNING" else 0


def test_an_elastic_job_grows_and_shrinks_and_keeps_its_other_workers(hall: Hall) -> None:
    gpu_type = hall.nodes()[hall.world.nodes()[-1]]["gpu_type"]  # on another, it would have to move
    job = hall.submit("train", MANY, gpu_type=gpu_type, elastic=ONE_OR_TWO)
    scaled(hall, job, 1)
    scaled(hall, job, 2)
    scaled(hall, job, 1)
    scaled(hall, job, 2)
    shown = hall.shown(job)
    assert (shown["attempt"], shown["failures"]) == (1, 0), "it was never restarted"
    assert shown["switches"] >= 3
    if hall.tells:
        began = [one["worker"] for one in hall.began(job)]
        assert len(began) in (3, 4), "who stayed was not started again"


def test_who_is_preempted_is_started_anew_from_where_it_was(hall: Hall) -> None:
    job = hall.submit("beat", MANY)
    hall.until_works(job)
    hall.until(lambda: not hall.tells or hall.count(job) > 2, "it counts")
    before = hall.count(job)
    hall.change(job, "requeue")
    assert hall.until_works(job, attempt=2)["failures"] == 0
    assert not hall.tells or hall.until(lambda: hall.count(job) > before, "it goes on")


def test_a_drained_node_is_left_and_a_cordoned_one_takes_nobody_new(hall: Hall) -> None:
    job = hall.submit("beat", MANY)
    (node,) = hall.until_works(job)["nodes"]
    with hall.client() as client:
        client.close_node(node, closed=True, drain=True)
        try:
            moved = hall.until_works(job, attempt=2)
            assert node not in moved["nodes"]
            assert moved["failures"] == 0
            hall.until(lambda: not hall.nodes()[node]["jobs"], "nobody is there any more")
        finally:
            client.close_node(node, closed=False)


def test_an_elastic_job_moves_to_another_node_in_place(hall: Hall) -> None:
    job = hall.submit("train", MANY, elastic=ONE_OR_TWO)
    scaled(hall, job, 1)
    (node,) = hall.shown(job)["nodes"]
    with hall.client() as client:
        client.close_node(node, closed=True, drain=True)
        try:
            hall.until(
                lambda: node not in hall.shown(job)["nodes"] and trains_on(hall, job) == 1, "it has moved"
            )
            assert hall.shown(job)["failures"] == 0
        finally:
            client.close_node(node, closed=False)


def test_a_job_goes_on_elsewhere_when_its_node_dies_and_the_node_is_used_again(hall: Hall) -> None:
    job = hall.submit("beat", MANY)
    (node,) = hall.until_works(job)["nodes"]
    hall.until(lambda: hall.count(job) > 2, "it counts")
    before = hall.count(job)
    asyncio.run(hall.world.kill_node(node))
    try:
        hall.until(lambda: not hall.nodes()[node]["up"], "the node is seen to be down")
        elsewhere = hall.until_works(job, attempt=2)
        assert node not in elsewhere["nodes"]
        assert elsewhere["failures"] == 0, "a lost node is nobody's fault"
        hall.until(lambda: hall.count(job) > before + 2, "it goes on")
    finally:
        asyncio.run(hall.world.return_node(node))
    hall.until(lambda: hall.nodes()[node]["up"] and not hall.nodes()[node]["closed"], "the node is back")
    others = [other for other in hall.nodes() if other != node]
    with hall.client() as client:
        for other in others:
            client.close_node(other, closed=True)
        try:
            assert hall.until_state(hall.submit("sleep", 0.2), "COMPLETED")["attempt"] == 1
        finally:
            for other in others:
                client.close_node(other, closed=False)
