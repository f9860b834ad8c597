"""Real trainings on nodes of a real inference server: each sample once, and its nodes back in time.

Three nodes belong to the server, which needs one while its load is low, and all when it is high. A training
that may be resized grows onto them. One of a single size runs there, is stopped, and goes on from what it
saved.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds.local import LocalWorld
from tests.examples.inference import inference_server
from tests.service.lenders_log import returns, settled, workers_with_lenders

from stretto.client import Client
from stretto.demo.own_service import until

from ..running import Running

pytestmark = [
    pytest.mark.processes,
    pytest.mark.sqlite,
    pytest.mark.torch,
    pytest.mark.large,
    pytest.mark.long,
]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
LENT = ("lent-0", "lent-1", "lent-2")
TYPES = {"own-0": "cpu", **dict.fromkeys(LENT, "cpu")}
OPTIONS = ("--policy", "lyra", "--set", "lend.rule=lyra", "--set", "lend.period_s=5")
GUARANTEE_S = 90.0  # longer than the grace period of any job here
EPOCHS, SAMPLES = 80, 1437  # minutes of slow steps, also where a load comes late; the digits to train on
LOAD = "timestamp_s,demand_fraction\n" + "".join(
    f"{5 * period},{share}\n" for period, share in enumerate((0.2, 0.6, 1.0, 1.0, 0.6, 0.2))
)


def submit(client: Client, name: str, folder: Path, **more: Any) -> str:
    """A training that is slow until the file `enough` is there."""
    script = f"digits_cnn.py --channels 4 --target 0 --epochs {EPOCHS} --seen {folder / name}"
    job = {
        "name": name,
        "run": f"{sys.executable} {HERE / 'unhurried.py'} {folder / 'enough'} {script}",
        "workdir": str(EXAMPLES),
        "resources": {"accelerators": 2},
        "checkpoint": {"every": "10m"},
        "expected_time": "10m",
        "grace_period": "60s",
        "envs": {"OMP_NUM_THREADS": "1"},
    }
    return str(client.submit(json.dumps(job | more))["id"])


def gpu_s_on_lent_nodes(running: Running) -> float:
    """GPU time that workers had on nodes of the lender; each has one GPU."""
    began_s: dict[str, float] = {}
    lent: set[str] = set()
    total_s = 0.0
    for _, at_s, kind, body in running.log_of_all():
        if kind == "WorkersWanted":
            lent |= {worker["id"] for worker in body["workers"] if worker["node"] in LENT}
        elif kind == "WorkersRan":
            began_s |= {name: at_s for name in body["workers"] if name in lent}
        elif kind == "WorkersEnded":
            total_s += sum(at_s - began_s.pop(worker["id"], at_s) for worker in body["workers"])
    return total_s


def test_trainings_on_nodes_of_an_inference_server_make_room_in_time_and_lose_no_sample(
    tmp_path: Path,
) -> None:
    world = LocalWorld(tmp_path / "nodes", types=TYPES, owners=("service",))
    world.start()
    running = Running(tmp_path, *OPTIONS, program=world.program, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (tmp_path / "load.csv").write_text(LOAD)
    load = ("--trace", str(tmp_path / "load.csv"), "--pace", "2", "--peak", "60")
    try:
        running.begin()
        with (
            running.client() as client,
            inference_server(tmp_path, running.url, [*LENT], ["inference"]) as server,
        ):
            client.set_lender("inference", nodes=[*LENT], guarantee_s=GUARANTEE_S)
            elastic = submit(client, "elastic", tmp_path, elastic={"min": 2, "max": 6})
            until(lambda: client.describe(elastic)["training_gpus"] == 6, what="it grows onto lent nodes")
            rigid = submit(client, "rigid", tmp_path)
            until(lambda: client.describe(rigid)["training_gpus"] == 2, what="another trains there too")
            assert client.describe(elastic)["training_gpus"] == 4
            until(lambda: client.lenders()[0]["need"] == 1, what="the server needs one node")
            figures = server.replay(*load)
            while server.scale()["most_running"] < len(LENT):  # the machine was slow: another load like it
                figures = server.replay(*load)
            until(lambda: client.lenders()[0]["need"] == 1, what="the load is over")
            until(lambda: client.describe(rigid)["training_gpus"] == 2, what="it goes on")
            (tmp_path / "enough").touch()
            for name in (elastic, rigid):
                assert client.wait(name)["state"] == "COMPLETED"
            (lender,) = client.lenders()
            attempts = [client.describe(name)["attempt"] for name in (elastic, rigid)]
    finally:
        running.end()
        asyncio.run(world.close())
    counted = subprocess.run(
        [sys.executable, "seen.py", str(tmp_path / "elastic"), str(tmp_path / "rigid")],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert counted.stdout == f"{SAMPLES * EPOCHS} samples in {EPOCHS} epochs: each once\n"
    assert workers_with_lenders(running) == []
    assert lender["waits"] > 0
    assert (lender["waits_missed"], lender["lacks"]) == (0, 0)
    assert lender["longest_wait_s"] <= GUARANTEE_S
    assert set(settled(running, "scaled_in")) == {elastic}
    assert set(settled(running, "preempted")) == {rigid}
    assert attempts[0] == 1  # it was never stopped
    assert attempts[1] > 1
    back = returns(running.log_of_all())
    assert len(back) >= lender["waits"]
    assert max(each.took_s for each in back) <= GUARANTEE_S
    lent_s = gpu_s_on_lent_nodes(running)
    assert lent_s > 0
    print(
        f"{lent_s:.0f} GPU-seconds on lent nodes; {len(settled(running, 'scaled_in'))} times smaller, "
        f"{len(settled(running, 'preempted'))} times stopped; {lender['waits']} waits, the longest "
        f"{lender['longest_wait_s']:.1f} s; {len(back)} nodes back, the slowest in "
        f"{max(each.took_s for each in back):.2f} s, of which the hand-over was at most "
        f"{max(each.hand_over_s for each in back):.2f} s; {figures.strip()}"
    )
    decisions, differences = running.differences()
    assert decisions > 0
    assert differences == 0
