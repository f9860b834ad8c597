"""Two Unix users on one machine, whose jobs one service runs: what each may do to the other's is nothing."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from stretto.demo.own_service import OwnService, until

from .attacks import ATTACKS, NOT_OF_ROOT, harmless, script

ALICE, BOB = 61_001, 61_002  # without names on this machine
PATIENCE_S = 180.0


def can_become(uid: int) -> bool:
    """Whether this process may run others as this user."""
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run(["true"], user=uid, group=uid, extra_groups=[], check=False).returncode == 0
    except (OSError, ValueError):
        return False


pytestmark = [
    pytest.mark.sockets,
    pytest.mark.skipif(not can_become(ALICE), reason="only root can run jobs as other users"),
]


def submission(name: str, run: str, **more: Any) -> dict[str, str]:
    """The body of a request for a job."""
    return {"text": json.dumps({"name": name, "run": run, **more})}


class Guarded(OwnService):
    """A service that asks for tokens and runs jobs as other users."""

    def ask(self, user: str, method: str, path: str, **more: Any) -> httpx.Response:
        """One request of a user; "" is the first admin."""
        token = self.tokens[user] if user else (self.state / "admin-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
        return httpx.request(
            method, f"{self.url}/api/v1{path}", headers=headers, timeout=PATIENCE_S, trust_env=False, **more
        )

    def make_users(self, *names: str) -> None:
        """Tokens for these users."""
        self.tokens: dict[str, str] = {}
        for name in names:
            made = self.ask("", "POST", "/tokens", json={"name": name, "user": name, "role": "user"})
            self.tokens[name] = made.json()["token"]

    def submit(self, user: str, run: str, **more: Any) -> str:
        """A new job's id."""
        answer = self.ask(user, "POST", "/jobs", json=submission(user, run, **more))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def log_of(self, user: str, job: str) -> str:
        """What a job has written so far."""
        answer = self.ask(user, "GET", f"/jobs/{job}/log")
        return str(answer.json()["text"]) if answer.status_code == 200 else ""


@pytest.fixture(scope="module")
def service() -> Iterator[Guarded]:
    folder = Path(tempfile.mkdtemp(prefix="tenants-"))  # everybody may enter what is above it
    folder.chmod(0o711)
    options = ["--slots", "6", "--gpu-type", "cpu", "--policy", "fifo"]
    options += ["--run-as", f"alice={ALICE}", "--run-as", f"bob={BOB}"]
    one = Guarded(folder, options, ("-m", "stretto.cli.app"), host="localhost")
    try:
        one.begin()
        one.make_users("alice", "bob", "carol")
        yield one
    finally:
        one.end()
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Scene:
    """A job of alice's that goes on, and one of bob's that has tried everything."""

    service: Guarded
    job: str
    env: dict[str, str]
    said: str

    def run(self) -> dict[str, Any]:
        """What is noted of alice's worker."""
        return self.service.workers()[f"{self.job}.1.0"]


@pytest.fixture(scope="module")
def scene(service: Guarded) -> Scene:
    precious = ": precious\necho model >$STRETTO_CHECKPOINT_DIR/model\necho begun\nwhile :; do sleep 1; done"
    job = service.submit("alice", precious, envs={"PRECIOUS": "yes"})
    until(lambda: "begun" in service.log_of("alice", job), what="alice's job begins")
    worker, waiting = f"{job}.1.0", service.submit("bob", "sleep 600")
    until(lambda: f"{waiting}.1.0" in service.workers(), what="bob's job begins")
    victim, own = service.workers()[worker], service.workers()[f"{waiting}.1.0"]
    assert service.process is not None
    env = {
        "STATE": str(service.state),
        "RUN": str(service.state / "agent" / "runs" / worker),
        "CHECKPOINTS": str(service.state / "checkpoints" / job),
        "SCRIPT": str(service.state / "agent" / "setups" / f"{job}.1" / f"{worker}.sh"),
        "VICTIM": str(victim["pid"]),
        "VICTIM_SUPERVISOR": str(victim["keeper_pid"]),
        "OWN_SUPERVISOR": str(own["keeper_pid"]),
        "AGENT": str(service.agent()),
        "SERVICE": str(service.process.pid),
    }
    attacker = service.submit("bob", script(), envs=env)
    until(lambda: "all tried" in service.log_of("bob", attacker), what="bob has tried everything")
    return Scene(service, job, env, service.log_of("bob", attacker))


@pytest.mark.processes
@pytest.mark.parametrize("name", [*ATTACKS, *NOT_OF_ROOT])
def test_a_job_of_another_user_cannot(scene: Scene, name: str) -> None:
    assert f"refused: {name}" in scene.said.splitlines()


@pytest.mark.processes
@pytest.mark.parametrize("name", ATTACKS)
def test_root_can(scene: Scene, name: str) -> None:
    """Or the table above would say nothing."""
    command = ["/bin/sh", "-c", harmless(ATTACKS[name])]
    assert subprocess.run(command, env={**os.environ, **scene.env}, check=False).returncode == 0


def test_after_all_that_the_other_one_trains_on(scene: Scene) -> None:
    shown = scene.service.ask("alice", "GET", f"/jobs/{scene.job}").json()
    assert (shown["state"], shown["attempt"], shown["restarts"]) == ("RUNNING", 1, 0)
    assert str(scene.run()["pid"]) == scene.env["VICTIM"]
    assert scene.service.agent() == int(scene.env["AGENT"])


REQUESTS = [
    ("GET", "", None),
    ("GET", "/wait?wait_s=0", None),
    ("GET", "/log", None),
    ("GET", "/log/follow", None),
    ("GET", "/events", None),
    ("GET", "/explain", None),
    ("POST", "/hold", {}),
    ("POST", "/scale", {"min_gpus": 1, "max_gpus": 1}),
    ("POST", "/priority", {"priority": 0}),
    ("POST", "/requeue", {}),
    ("POST", "/release", {}),
    ("POST", "/cancel", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_the_interface_knows_no_job_of_another_user(
    scene: Scene, method: str, path: str, body: dict[str, Any] | None
) -> None:
    url = f"/jobs/{scene.job}{path}"
    assert scene.service.ask("bob", method, url, json=body).status_code == 404
    if method == "GET" and "follow" not in path:  # or the row would say nothing
        assert scene.service.ask("alice", method, url).status_code == 200


def test_a_workers_token_speaks_for_its_own_job_only(scene: Scene) -> None:
    job = scene.service.submit("bob", "echo token=$STRETTO_TOKEN; sleep 600")
    until(lambda: "token=" in scene.service.log_of("bob", job), what="bob's job has said its token")
    token = scene.service.log_of("bob", job).split("token=")[1].strip()
    said = {"worker": f"{scene.job}.1.0", "step": 1, "path": "x"}
    for path in ("/worker/report", "/worker/checkpoint", "/worker/ready"):
        answer = scene.service.ask(
            "bob", "POST", path, json=said, headers={"authorization": f"Bearer {token}"}
        )
        assert answer.status_code == 403


@pytest.mark.processes
def test_a_user_of_the_machine_decides_nothing_in_the_store_of_anothers_training() -> None:
    distributed = pytest.importorskip("torch.distributed")
    from stretto.sdk.process_group import host_store

    store, place = host_store("127.0.0.1", "secret")
    store.set("verdict", "now")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(BOB, BOB, BOB)
            os.setresuid(BOB, BOB, BOB)
            stranger = distributed.TCPStore("127.0.0.1", int(place.split(":")[1]), wait_for_workers=False)
            stranger.set("verdict", "over")
            stranger.set("leaving", "")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # anybody may connect, and is ignored
    assert store.get("verdict") == b"now"
    assert not store.check(["leaving"])


def test_a_job_runs_as_its_owner_with_directories_of_its_own(service: Guarded) -> None:
    look = "id -u; id -g; id -G; umask; echo $USER $HOME; pwd"
    look += "\nstat -c %u:%a . $STRETTO_CHECKPOINT_DIR; echo seen"
    job = service.submit("bob", look)
    until(lambda: "seen" in service.log_of("bob", job), what="bob's job has looked")
    uid, gid, groups, umask, names, folder, work, checkpoints = service.log_of("bob", job).splitlines()[:8]
    assert (uid, gid, groups, umask, names) == (str(BOB), str(BOB), str(BOB), "0077", f"{BOB} /")
    assert folder == str(service.state / "agent" / "runs" / f"{job}.1.0" / "work")
    assert (work, checkpoints) == (f"{BOB}:700", f"{BOB}:700")


def test_a_user_without_a_unix_user_is_refused_in_a_line(service: Guarded) -> None:
    answer = service.ask("carol", "POST", "/jobs", json=submission("carol", "true"))
    assert answer.status_code == 422
    assert answer.json()["detail"] == "user 'carol' has no Unix user here to run jobs as: see serve --run-as"


def test_checkpoints_that_another_user_has_are_not_shared(service: Guarded) -> None:
    named = {"checkpoint": {"dir": "ours"}}
    first = service.submit("alice", "echo begun; sleep 600", **named)
    until(lambda: "begun" in service.log_of("alice", first), what="alice's job begins")
    second = service.submit("bob", "echo begun; sleep 600", **named)
    ended = until(
        lambda: (found := service.ask("bob", "GET", f"/jobs/{second}").json())["state"] == "FAILED" and found,
        what="bob's job is refused",
    )
    assert f"ours belongs to user {ALICE}, expected {BOB}" in json.dumps(ended)


@pytest.mark.slow
@pytest.mark.processes
def test_a_restarted_service_finds_its_jobs_and_runs_more(service: Guarded, scene: Scene) -> None:
    service.kill()
    service.begin()
    shown: Callable[[], Any] = lambda: service.ask("alice", "GET", f"/jobs/{scene.job}").json()  # noqa: E731
    until(lambda: shown()["state"] == "RUNNING", what="alice's job goes on")
    job = service.submit("bob", "id -u; echo seen")
    until(lambda: f"{BOB}\nseen" in service.log_of("bob", job), what="bob's next job runs")
    assert shown()["restarts"] == 0
