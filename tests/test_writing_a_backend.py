"""The backend of docs/writing-a-backend.md, taken from the page as it stands there, installed and run."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stretto.agent import supervisor
from stretto.demo.own_service import PATIENCE_S, OwnService, until
from stretto.testing.backends import BackendConformance
from stretto.testing.services import ServiceConformance

PAGE = Path(__file__).parents[1] / "docs" / "writing-a-backend.md"
FILES = (
    "toy_cluster/options.py",
    "toy_cluster/backend.py",
    "toy_cluster/runner.py",
    "test_toy.py",
    "test_toy_service.py",
)  # as they come on the page
LACKS = 3  # tests of each suite that need nodes which can be struck
# Further tests, of abilities that the toy lacks: it tells nobody whose a node is (2), hands no secrets (1),
# has nothing beside its workers reached (6, and 2 of services), and fetches no uploads (2 of services).
LACKS_ABILITIES = 9
LACKS_IN_SERVICES = 4

pytestmark = pytest.mark.processes


def code_on_the_page(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as an installer leaves it: the package, and beside it what says where its entry points are."""
    (tmp_path / "toy_cluster").mkdir()
    (tmp_path / "toy_cluster" / "__init__.py").touch()
    for name, code in zip(FILES, code_on_the_page("python"), strict=True):
        (tmp_path / name).write_text(code, encoding="utf-8")
    project = tomllib.loads(code_on_the_page("toml")[0])["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{named}", encoding="utf-8")
    ((group, entries),) = project["entry-points"].items()
    lines = "".join(f"{name} = {target}\n" for name, target in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}", encoding="utf-8")
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def service(installed: Path) -> Iterator[OwnService]:
    """A service with the toy backend, which has one node of two GPUs; none of its jobs outlives it."""
    words = ("--backend", "toy", "--set", "backend.nodes=1", "--set", "backend.gpu_type=plaything")
    env = {**os.environ, "PYTHONPATH": str(installed)}
    service = OwnService(
        installed / "service", [*words, "--policy", "fifo"], ("-m", "stretto.cli.app"), env=env
    )
    service.begin()
    try:
        yield service
        with service.client() as client:
            for job in client.jobs(everybody=True):
                client.change(job["id"], "cancel")
            until(lambda: not list(client.jobs(everybody=True)), what="all jobs have ended")
    finally:
        service.kill()


def a_job(folder: Path, name: str) -> dict[str, Any]:
    """A job on one GPU that says which, and runs until there is a file `NAME.enough`."""
    line = (
        f"echo on $CUDA_VISIBLE_DEVICES; until [ -e {folder}/{name}.enough ]; do sleep 0.1; done; echo done"
    )
    return {"name": name, "run": line, "resources": {"accelerators": 1}}


def until_job(service: OwnService, job: str, what: str, is_so: Callable[[dict[str, Any]], bool]) -> Any:
    with service.client() as client:
        until(lambda: is_so(client.describe(job)), PATIENCE_S, f"{job} {what}")
        return client.describe(job)


def processes_of(service: OwnService) -> list[int]:
    """Runners of the toy cluster, and their workers, which are told of folders in the service's state."""
    runs, state = str(service.state / "toy" / "workers").encode(), str(service.state).encode()
    return [
        process.pid
        for process in supervisor.processes()
        if runs in shown_of(process.pid, "cmdline") or state in shown_of(process.pid, "environ")
    ]


def shown_of(pid: int, name: str) -> bytes:
    """What the kernel shows of a process: its command line or its environment; b"" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def test_the_conformance_suite_passes_over_the_toy_cluster(installed: Path) -> None:
    counts = outcomes(installed, "test_toy.py")
    names = [name for name in dir(BackendConformance) if name.startswith("test_")]
    assert counts["skipped"] == LACKS + LACKS_ABILITIES
    assert counts["passed"] >= len(names) - LACKS - LACKS_ABILITIES


@pytest.mark.slow
def test_the_conformance_suite_of_services_passes_over_the_toy_cluster(installed: Path) -> None:
    counts = outcomes(installed, "test_toy_service.py")
    names = [name for name in dir(ServiceConformance) if name.startswith("test_")]
    lacks = LACKS + LACKS_IN_SERVICES
    assert counts == {"skipped": lacks, "passed": len(names) - lacks}


def outcomes(folder: Path, module: str) -> dict[str, int]:
    """How many tests of a module passed, and how many were skipped; none may fail."""
    done = python(folder, "-m", "pytest", "-p", "no:cacheprovider", module)
    assert done.returncode == 0, done.stdout
    last_line = done.stdout.splitlines()[-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped)", last_line)}


@pytest.mark.slow
def test_a_job_runs_on_an_installed_backend_and_is_adopted_by_the_next_service(
    service: OwnService, installed: Path
) -> None:
    with service.client() as client:
        (node,) = client.nodes()
        assert (node["name"], node["gpu_type"], node["gpus"]) == ("toy-0", "plaything", 2)
        job = str(client.submit(json.dumps(a_job(installed, "long")))["id"])
    until_job(service, job, "runs", lambda shown: shown["state"] == "RUNNING")
    service.kill()
    (installed / "long.enough").touch()  # it ends while no service runs, or under the next one
    service.begin()
    shown = until_job(service, job, "ends", lambda shown: shown["state"] in ("COMPLETED", "FAILED"))
    assert (shown["state"], shown["attempt"], shown["failures"]) == ("COMPLETED", 1, 0)
    with service.client() as client:
        assert "".join(client.log(job)) == "on 0\ndone\n"


def test_a_job_that_is_cancelled_leaves_no_process(service: OwnService, installed: Path) -> None:
    with service.client() as client:
        job = str(client.submit(json.dumps(a_job(installed, "endless")))["id"])
        until_job(service, job, "runs", lambda shown: shown["state"] == "RUNNING")
        until(lambda: len(processes_of(service)) >= 2, what="a runner and a shell are there")
        client.change(job, "cancel")
    until_job(service, job, "ends", lambda shown: shown["state"] == "CANCELLED")
    until(lambda: not processes_of(service), what="neither is left")


def test_a_setting_out_of_range_is_one_line_and_status_2(installed: Path) -> None:
    done = python(installed, "-m", "stretto.cli.app", "serve", "--backend", "toy", "--set", "backend.gpus=0")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == ["stretto: backend.gpus must be >= 1, got 0"]
