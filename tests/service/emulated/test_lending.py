"""Lyra's testbed, four own servers and four of an inference service, accelerated: nodes go and come back.

Nothing is timed. What must hold is looked for in the log: no worker is ever on a node in its lender's hands.
"""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.lenders_log import settled, workers_with_lenders
from tests.service.running import Running

from stretto.cli.app import status_of
from stretto.demo.own_service import until

pytestmark = [pytest.mark.sqlite, pytest.mark.processes]

CLUSTER = """
name: testbed
gpu_types: {v100: {memory_gb: 32}, t4: {memory_gb: 16, speed: 0.3333333333333333, stand_ins: 3}}
nodes: [{type: v100, gpus: 8, count: 4}]
lenders: [{name: inference, type: t4, gpus: 8, count: 4, demand: load.csv}]
"""
LOAD = (0.25, 0.25, 0.9, 0.5, 0.25, 1.0, 0.5, 0.25)  # of the inference servers, for five minutes each
OPTIONS = ("--backend", "emulated", "--policy", "lyra", "--set", "lend.rule=lyra", "--set", "sim.resize_s=5")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    shares = "".join(f"{300 * period},{share}\n" for period, share in enumerate(LOAD))
    (tmp_path / "load.csv").write_text(f"timestamp_s,demand_fraction\n{shares}")
    service = Running(tmp_path, *OPTIONS, "--cluster", str(tmp_path / "testbed.yaml"), "--pace", "60")
    try:
        yield service
    finally:
        service.end()


def job(gpus: int, most: int, expected: str = "30m", **labels: str) -> str:
    """A job that accepts both types; elastic where it may have more GPUs than it asks for."""
    accelerators = [f"v100:{gpus}", f"t4:{gpus}"]
    spec: dict[str, Any] = {"name": "train", "run": "x", "expected_time": expected, "labels": labels}
    spec |= {"resources": {"accelerators": accelerators}, "grace_period": "10m"}
    return json.dumps(spec | ({"elastic": {"min": gpus, "max": most}} if most > gpus else {}))


@pytest.mark.long
def test_under_a_replayed_load_nodes_come_back_and_all_jobs_end(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "testbed.yaml").write_text(CLUSTER)
    running.begin()
    with running.client() as client:
        names = [client.submit(job(gpus, most))["id"] for gpus, most in 4 * ((4, 4), (2, 8), (8, 8), (1, 2))]
        until(lambda: client.lenders()[0]["need"] == 4 * LOAD[-1], 240.0, "the load is over")
        until(lambda: client.lenders()[0]["lacks"] == 0, what="it has what it needs")
        until(lambda: all(client.describe(name)["ended_s"] for name in names), 240.0, "all jobs end")
        assert {client.describe(name)["state"] for name in names} == {"COMPLETED"}
        lender = client.lenders()[0]
        assert (lender["waits_s"], lender["late"]) == (None, False)
    assert running.kill(signal.SIGTERM) == 0
    assert settled(running, "lent")
    assert settled(running, "returned")
    assert workers_with_lenders(running) == []
    assert status_of(["simulate", "--from-log", str(tmp_path / "state")]) == 0
    assert re.search(r"[1-9]\d* decisions made again, 0 differ", capsys.readouterr().out)


@pytest.mark.slow
def test_a_service_that_is_killed_between_asking_and_giving_back_loses_neither_node_nor_job(
    running: Running, tmp_path: Path
) -> None:
    (tmp_path / "testbed.yaml").write_text(CLUSTER.replace(", demand: load.csv", ""))
    running.begin()
    with running.client() as client:
        client.report_need("inference", nodes=1)
        slow = {"emulated.saving_s": "200"}
        names = [client.submit(job(8, 8, "3h", **slow))["id"] for _ in range(5)]
        until(lambda: client.lenders()[0]["on_loan"] == 3, what="nodes are on loan")
        # The fifth job needs 24 GPUs of the lender: three for each that it asks for.
        until(lambda: client.describe(names[4])["state"] == "RUNNING", what="a job trains there")
        asked = client.report_need("inference", nodes=4)
        assert asked["lacks"] == 3
        until(lambda: settled(running, "returned"), what="the nodes are called back")
        running.kill(signal.SIGKILL)
        assert len(settled(running, "returned")) == 3
        running.begin()
        until(lambda: client.lenders()[0]["lacks"] == 0, what="the nodes are back")
        lender = client.lenders()[0]
        assert (lender["in_its_hands"], lender["on_loan"], lender["waits"]) == (4, 0, 1)
        assert client.describe(names[4])["state"] == "PENDING"
        assert all(client.describe(name)["state"] == "RUNNING" for name in names[:4])
        client.report_need("inference", nodes=1)
        until(lambda: client.describe(names[4])["state"] == "RUNNING", what="it goes on there")
    assert workers_with_lenders(running) == []
    running.kill(signal.SIGTERM)
    decisions, differences = running.differences()
    assert decisions > 0
    assert differences == 0


@pytest.mark.slow
def test_inference_servers_of_the_cluster_lyra_are_not_the_services_own(tmp_path: Path) -> None:
    service = Running(
        tmp_path, "--backend", "emulated", "--cluster", "lyra", "--policy", "lyra", "--pace", "60"
    )
    service.begin()
    try:
        with service.client() as client:
            until(lambda: client.lenders()[0]["in_its_hands"] == 520, what="they are with their lender")
            lender = client.lenders()[0]
            assert (lender["on_loan"], lender["need"], lender["lacks"]) == (0, None, 0)
            nodes = client.nodes()
            lent = [node for node in nodes if node["gpu_type"] == "t4"]
            assert (len(nodes) - len(lent), len(lent)) == (443, 520)
            assert {node["why"] for node in lent} == {"belongs to lender inference, not on loan"}
            spec = {"name": "train", "run": "x", "resources": {"accelerators": "t4:8"}}
            waits = client.submit(json.dumps(spec))["id"]
            ours = client.submit(json.dumps({**spec, "resources": {"accelerators": "v100:8"}}))["id"]
            until(lambda: client.describe(ours)["state"] == "RUNNING", what="a job trains on our own")
            waiting = client.describe(waits)
            assert (waiting["state"], waiting["reason"]) == ("PENDING", "NODES_CLOSED")
            assert waiting["evidence"] == "520 belong to lender inference, not on loan"
    finally:
        service.end()


@pytest.mark.slow
def test_of_a_lender_that_the_file_names_no_more_the_next_service_has_the_nodes(tmp_path: Path) -> None:
    cluster, lenders = tmp_path / "cluster.yaml", tmp_path / "lenders.yaml"
    cluster.write_text("gpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 8, names: [a, b]}]\n")
    lenders.write_text("lenders: [{name: inference, nodes: [b]}]\n")
    options = ("--backend", "emulated", "--cluster", str(cluster), "--policy", "lyra", "--pace", "60")
    service = Running(tmp_path, *options, "--lenders", str(lenders))
    service.begin()
    try:
        with service.client() as client:
            until(lambda: client.lenders()[0]["in_its_hands"] == 1, what="it has its node")
            client.set_lender("by-hand", nodes=["a"])
        service.end()
        service = Running(tmp_path, *options)
        service.begin()
        with service.client() as client:
            assert [lender["name"] for lender in client.lenders()] == ["by-hand"]
            client.delete_lender("by-hand")
            whole = json.dumps({"name": "train", "run": "x", "resources": {"accelerators": "v100:16"}})
            number = client.submit(whole)["id"]
            until(lambda: client.describe(number)["state"] == "RUNNING", what="a job trains on both")
    finally:
        service.end()
