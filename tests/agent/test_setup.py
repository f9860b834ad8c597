"""A job's setup runs once on each node of an attempt, whatever lies in directories that everybody shares."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.scene import Scene

from stretto.service.reconcile.worker_env import WorkerContext, start_of

from .agents import Agent, until

pytestmark = pytest.mark.processes


@pytest.fixture
def other_agent(tmp_path: Path) -> Iterator[Agent]:
    """The agent of another service on the same machine."""
    other = Agent(tmp_path / "other").begin()
    try:
        yield other
    finally:
        other.end()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What all jobs take for the directory of temporary files."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def requests(shared: Path, setup: str, gpus: int = 1, attempts: int = 1) -> dict[str, dict[str, Any]]:
    """What a service asks its agent for, of the first job that it has: by worker, of its last attempt."""
    scene = Scene()
    context = WorkerContext("http://127.0.0.1:1", b"key", shared.parent / "checkpoints", shared.parent)
    record = scene.submit("1", gpus, setup=setup, run="echo RUN", envs={"TMPDIR": str(shared)})
    for _ in range(attempts):
        for name in list(scene.running):
            scene.end(name, 143)
        scene.give(_1=None)
        scene.reconcile()
        scene.give(_1={"n0": (1 << gpus) - 1})
        scene.reconcile()
    last = [each for each in record.workers.values() if each.id.startswith(f"1.{record.attempt}.")]
    return {each.id: start_of(scene.state, record, each, context).request() for each in last}


def said(agent: Agent, asked: dict[str, dict[str, Any]]) -> list[str]:
    """All that these workers have written, once they have ended."""
    for name, request in asked.items():
        assert agent.ask("PUT", f"/v1/workers/{name}", request).status_code == 200
    assert {agent.ended(name)["status"] for name in asked} == {0}
    return sorted("".join(map(agent.log, asked)).split())


@pytest.mark.processes
def test_jobs_of_two_services_that_are_called_alike_both_have_their_setup(
    agent: Agent, other_agent: Agent, shared: Path
) -> None:
    asked = requests(shared, "echo SETUP")
    assert [said(each, asked) for each in (agent, other_agent)] == [["RUN", "SETUP"]] * 2


def test_workers_of_an_attempt_share_one_setup_and_the_next_attempt_has_its_own(
    agent: Agent, shared: Path
) -> None:
    assert said(agent, requests(shared, "echo SETUP", gpus=3)) == ["RUN", "RUN", "RUN", "SETUP"]
    second = requests(shared, "echo SETUP", gpus=3, attempts=2)
    assert all(name.startswith("1.2.") for name in second)
    assert said(agent, second) == ["RUN", "RUN", "RUN", "SETUP"]


def test_what_others_put_into_shared_directories_neither_skips_a_setup_nor_is_written_to(
    agent: Agent, shared: Path
) -> None:
    victim = shared / "victim"
    victim.write_text("precious")
    for name in ("stretto-setup-1.1", "setup-1.1.0", "1.1"):
        (shared / name).symlink_to(victim)
        (shared / f"{name}.done").touch()
    before = sorted(shared.iterdir())
    assert said(agent, requests(shared, "echo SETUP")) == ["RUN", "SETUP"]
    assert victim.read_text() == "precious"
    assert sorted(shared.iterdir()) == before


def test_a_setup_that_leaves_a_process_behind_holds_nobody_up(agent: Agent, shared: Path) -> None:
    asked = requests(shared, "sleep 600 >/dev/null 2>&1 &", gpus=2)
    for name, request in asked.items():
        agent.ask("PUT", f"/v1/workers/{name}", request)
    until(lambda: all("RUN" in agent.log(name) for name in asked))


def test_what_an_attempt_noted_of_its_setup_goes_with_the_logs_of_its_job(agent: Agent, shared: Path) -> None:
    asked = requests(shared, "true")
    said(agent, asked)
    notes = agent.state / "setups" / "1.1"
    assert [path.name for path in notes.glob("*.done")] == ["setup-1.1.0.done"]
    for name in asked:
        agent.ask("DELETE", f"/v1/workers/{name}")
    agent.ask("DELETE", "/v1/jobs/1/logs")
    assert not notes.exists()
