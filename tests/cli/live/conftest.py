"""One real service for all tests of the verbs: four slots, first come first served, open on loopback."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stretto.client import Client
from stretto.demo.own_service import OwnService, until
from stretto.model import InputError
from stretto.model.queue import DEFAULT_QUEUE

from ..ran import Stretto


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnService]:
    folder = tmp_path_factory.mktemp("verbs")
    options = ["--slots", "4", "--gpu-type", "cpu", "--policy", "fifo"]
    one = OwnService(folder, options, ("-m", "stretto.cli.app"), {**os.environ, "OMP_NUM_THREADS": "1"})
    one.begin()
    yield one
    one.end()


@pytest.fixture
def verbs(
    service: OwnService, stretto: Stretto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stretto]:
    """Commands that speak with it, in a folder of their own; what they submit and set is undone."""
    monkeypatch.setenv("STRETTO_URL", service.url)
    monkeypatch.delenv("STRETTO_TOKEN", raising=False)
    monkeypatch.setenv("USER", "ada")
    monkeypatch.chdir(tmp_path)
    yield stretto
    with service.client() as client:
        names = [one["id"] for one in client.jobs(everybody=True)]
        for name in names:
            with suppress(InputError):  # it may end in between
                client.change(name, "cancel")
        for name in names:
            client.wait(name)
        delete_queues(client)


def delete_queues(client: Client) -> None:
    """Quotas of one test must not keep the jobs of the next one waiting. Parts go before what they are in."""
    while queues := [one["name"] for one in client.queues() if one["name"] != DEFAULT_QUEUE]:
        parents = {one["parent"] for one in client.queues()}
        for name in queues:
            if name not in parents:
                client.delete_queue(name)
    with suppress(InputError):  # there is none as long as nobody has set a queue
        client.delete_queue(DEFAULT_QUEUE)


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """A job file with these lines."""

    def write(name: str, *lines: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text("\n".join((f"name: {name}", *lines)) + "\n")
        return path

    return write


def reaches(client: Client, job: str, *states: str) -> None:
    """Wait until a job is in one of these states."""
    until(lambda: client.describe(job)["state"] in states, what=f"job {job} is {' or '.join(states)}")


def waits_for(client: Client, job: str, reason: str) -> None:
    """Wait until a decision has seen a job and left it waiting for this reason."""
    until(lambda: client.describe(job)["reason"] == reason, what=f"job {job} waits: {reason}")
