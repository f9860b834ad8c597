"""`compare --ray` on a real Ray cluster, which all tests of a session share."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends.ray.cluster import RayCluster, command_of, release, shared
from tests.cli.ran import CLUSTER, TRACE
from tests.interrupts import heed_interrupts

pytestmark = [pytest.mark.ray, pytest.mark.large]

COMPARE = (sys.executable, "-m", "stretto.cli.app", "compare", "--json", "--out", "out", "-c", "tiny.yaml")
OF_THE_CLOCK = ("policy_ms_p50", "policy_ms_p95", "wall_s", "peak_rss_mb")
PATIENCE_S = 180.0
# Ray logs what it finds slow or lost: "[2026-11-22 10:00:00,123 E 7 8] (driver) client.cc:9: ..." in C++,
# "2026-11-22 10:00:00,123\tWARNING worker.py:9 -- ..." in Python.
RAYS_OWN = re.compile(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}( [IWEC] \d+ \d+\] |\t(INFO|WARNING|ERROR) )")
OWN = """
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import ClassVar

from stretto.policies.fifo import FirstInFirstOut


@dataclass(frozen=True)
class Own(FirstInFirstOut):
    'A policy in a file of its own, which no node has; it may take its time.'

    wait_s: float = 0.0
    name: ClassVar[str] = "own"

    def allocate(self, snapshot, speeds):
        if self.wait_s:
            Path(%r).touch()
            sleep(self.wait_s)
        return super().allocate(snapshot, speeds)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed; install stretto[ray]")
    found = shared()
    try:
        yield found
    finally:
        release()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a small cluster, a small trace and a policy."""
    (tmp_path / "tiny.yaml").write_text(CLUSTER)
    (tmp_path / "few.csv").write_text(TRACE)
    (tmp_path / "own.py").write_text(OWN % str(tmp_path / "asked"))
    return tmp_path


def began(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A comparison in a process of its own, which heeds interrupts."""
    return subprocess.Popen(
        [*COMPARE, "-t", "few.csv", "--seeds", "2", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )


def runs_of(folder: Path, *words: str) -> Any:
    """What a comparison gives, without the figures that a clock makes."""
    out, err = began(folder, *words).communicate(timeout=PATIENCE_S)
    assert out, err
    return [{name: one[name] for name in one if name not in OF_THE_CLOCK} for one in json.loads(out)["runs"]]


def test_what_ray_simulates_is_what_this_machine_does(cluster: RayCluster, folder: Path) -> None:
    words = ("--policies", "fifo,sia,own.py:Own", "--fairness")
    here = json.dumps(runs_of(folder, *words))
    assert json.dumps(runs_of(folder, *words, "--ray", cluster.address)) == here


@pytest.mark.long  # what differs from the test above is how Ray is reached, which its backend's tests try too
def test_so_is_what_ray_simulates_for_somebody_outside(cluster: RayCluster, folder: Path) -> None:
    here = json.dumps(runs_of(folder, "--policies", "fifo"))
    assert json.dumps(runs_of(folder, "--policies", "fifo", "--ray", cluster.client_address)) == here


@pytest.mark.parametrize(
    ("address", "says"),
    [
        pytest.param("nowhere", "expected auto, HOST:PORT or ray://HOST:PORT", id="no address"),
        pytest.param("127.0.0.1:9", "nothing answers at 127.0.0.1:9", id="nobody listens"),
        pytest.param("ray://127.0.0.1:9", "nothing answers at 127.0.0.1:9", id="nobody listens outside"),
    ],
)
def test_a_wrong_address_is_one_line(folder: Path, address: str, says: str) -> None:
    pytest.importorskip("ray", reason="ray is not installed; install stretto[ray]")
    running = began(folder, "--policies", "fifo", "--ray", address)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_a_comparison_that_is_interrupted_leaves_nothing(
    cluster: RayCluster, folder: Path, number: signal.Signals
) -> None:
    words = ("--policies", "own.py:Own", "--set", "policy.wait_s=600", "--ray", cluster.address)
    running = began(folder, *words)
    wait_until((folder / "asked").exists)
    assert tasks_of(cluster)
    os.killpg(running.pid, number)
    out, err = running.communicate(timeout=PATIENCE_S)
    if number == signal.SIGINT:
        ours = [line for line in err.splitlines(keepends=True) if not RAYS_OWN.match(line)]
        assert (running.returncode, out, ours) == (130, "", ["stretto: interrupted\n"])
    assert not (folder / "out").exists()
    wait_until(lambda: not tasks_of(cluster))


def tasks_of(cluster: RayCluster) -> list[int]:
    """Processes of the cluster that simulate."""
    nodes = (*cluster.nodes, cluster.head)
    return [one.pid for node in nodes for one in cluster.of_node(node) if b"run_there" in command_of(one.pid)]


def wait_until(is_so: Any) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s, "not in time"
        time.sleep(0.05)
