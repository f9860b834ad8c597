"""What an allocation is for stays with it when a placer makes it smaller or moves it."""

from dataclasses import replace

import numpy as np

from stretto.model import Adaptivity, Cluster, GpuType, JobId, Node, NodeId
from stretto.place import Relaxed
from stretto.place.draft import Draft
from stretto.place.evict import ask_again
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, shares_of

A = JobId("a")


def test_a_profiling_run_that_gets_smaller_is_still_one_and_has_the_cores_of_its_share() -> None:
    held = replace(grant(0, n0=4), profiling=True, cpus=8.0)
    snapshot = a_snapshot(a_job("a", gpus=4), cluster=a_cluster(4), allocations={"a": held})
    shares = shares_of(snapshot, {"a": 2})
    less = replace(shares, profiling=np.array([True]), cpus=np.array([6.0]))
    after = Relaxed().place(snapshot, less)[A]
    assert (after.gpus, after.profiling, after.cpus) == (2, True, 6.0)
    trains = replace(shares, profiling=np.array([False]))
    assert Relaxed().place(snapshot, trains)[A] == grant(0, n0=2)


def test_what_is_left_of_a_job_on_two_types_is_of_the_type_of_its_first_node() -> None:
    types = (GpuType("own"), GpuType("lent"))
    both = Cluster("both", types, (Node(NodeId("own-0"), "own", 4), Node(NodeId("lent-0"), "lent", 4)))
    mixing = a_job(
        "a", gpus=2, min_gpus=1, max_gpus=4, adaptivity=Adaptivity.STRONG_SCALING, heterogeneous=True
    )
    snapshot = a_snapshot(mixing, cluster=both, allocations={"a": grant(0, n0=1, n1=3)})
    assert Relaxed().place(snapshot, shares_of(snapshot, {"a": 3}))[A] == grant(1, n1=3)


def test_a_job_moved_out_of_the_way_is_still_profiled_on_its_cores() -> None:
    held = replace(grant(0, n0=2), profiling=True, cpus=3.0)
    draft = Draft(a_snapshot(a_job("a", gpus=2), cluster=a_cluster(4), allocations={"a": held}))
    elsewhere = ask_again(draft, A, held)
    assert (elsewhere.profiling, elsewhere.cpus) == (True, 3.0)
