"""Two hundred jobs through every backend among random blows, of the cluster, the service, clocks and disks.

STRETTO_BLOWS=N strikes N times instead, among as many jobs as that needs. STRETTO_SEED=N gives another order,
and STRETTO_JOBS=N submits no more jobs than that, or than there are blows.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conformance.service import BEAT_S, DEAD_AFTER_S, LOOK_S, StruckService
from tests.conformance.world import World
from tests.conformance.worlds.kubelets import KubeletsWorld
from tests.conformance.worlds.kubernetes import KubernetesWorld
from tests.conformance.worlds.slurm import SlurmWorld
from tests.service.crash.conftest import mount_small, unmount
from tests.service.crash.verdict import check_log

from stretto.agent import supervisor
from stretto.model import StrettoError
from stretto.service.emulated.truth import DURATION
from stretto.testing.backends import pid_of

pytestmark = [pytest.mark.processes, pytest.mark.alone]

JOBS, OPEN = 200, 10
BLOWS = {
    "cancel": 18,
    "requeue": 7,
    "worker": 20,
    "node": 4,
    "service": 3,
    "graceful": 2,
    "clock": 4,
    "disk": 2,
}
EMULATED = {"cancel": 40, "requeue": 20, "service": 3, "graceful": 3, "clock": 4}
SEED = 7
SOON_S = 3.0  # chosen
KUBELET_AWAY_S = 60.0  # after which a node counts as dead, there; chosen
JUMPS_S = (7200.0, 40 * 86_400.0)  # by how much somebody sets the time of day wrong, either way


@dataclass
class Asked:
    """A job as it was asked for."""

    id: str
    manner: str
    count: int
    status: int = 0
    cancelled: bool = False
    killed: bool = False  # one of its workers, by us


@dataclass
class Storm:
    """Jobs and blows in an order that the seed gives."""

    service: StruckService
    seed: int
    disk: Path  # a small one
    asked: dict[str, Asked] = field(default_factory=dict)
    fell: Counter[str] = field(default_factory=Counter)
    down: tuple[str, float] = ("", 0.0)  # a node that was killed, and when it returns
    away: tuple[str, float] = ("", 0.0)  # a node whose kubelet was killed, and when that returns

    def __post_init__(self) -> None:
        """Decide when which blow falls."""
        self.chance = random.Random(self.seed)
        blows: dict[str, int] = {**(BLOWS if self.service.tells else EMULATED)}
        if isinstance(self.service.world, KubernetesWorld):
            blows |= self.service.world.blows
        wanted = int(os.environ.get("STRETTO_BLOWS", sum(blows.values())))
        each = wanted / sum(blows.values())
        self.due = [kind for kind, times in blows.items() for _ in range(max(round(each * times), 1))]
        self.due += [""] * (int(os.environ.get("STRETTO_JOBS", JOBS)) - len(self.due))
        self.chance.shuffle(self.due)

    def rage(self) -> None:
        """Submit all jobs, with a blow after each where one is due; one that hits nothing falls later."""
        for kind in self.due:
            self.submit(len(self.asked))
            self.service.until(lambda: self.open_jobs() < OPEN, "some job ends", 300)
            if not kind:
                continue
            time.sleep(self.chance.uniform(0.0, 0.3))
            if self.strike(kind):
                self.fell[kind] += 1
            else:
                assert len(self.asked) < 10 * JOBS, f"no blow of kind {kind} ever hits anything"
                self.due.append(kind)
        while self.open_jobs():
            for one in self.asked.values():
                if one.manner in ("polite", "stubborn") and not one.cancelled:
                    self._cancel_one(one)
            time.sleep(0.2)
        self._return_node(at_once=True)

    def strike(self, kind: str) -> bool:
        """Whether it fell, at once or soon: what it is aimed at may be about to begin."""
        until_s = time.monotonic() + SOON_S
        while not (fell := bool(getattr(self, f"_{kind}")())) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        return fell

    def submit(self, number: int, manner: str = "") -> str:
        """One job, with a key: a service that is killed meanwhile takes it once."""
        manners = ["beat"] * 6 + ["train"] * 2 + ["polite", "stubborn", "fails"]
        manner, count = manner or self.chance.choice(manners), self.chance.randint(10, 30)
        gpus = self.chance.choice([1, 1, 2]) if manner == "beat" else 1
        given: dict[str, Any] = {"grace_period": "1s"}
        if manner == "train":
            given["elastic"] = {"min": 1, "max": 3}
            given["labels"] = {DURATION: f"{count * BEAT_S:g}"}
        if manner == "saves":
            given["restart"] = {"max": 1000}
        if manner == "fails" and not self.service.tells:
            manner = "beat"  # an emulated job cannot
        if manner == "fails":
            text = self.service.job("sleep", 0.2, 3, restart={"max": 0}, **given)
        else:
            arguments = {"polite": (0.3,), "stubborn": ()}.get(manner, (count,))
            text = self.service.job(manner, *arguments, gpus=gpus, **given)

        def acknowledged() -> str:
            with self.service.client() as client:
                return str(client.submit(text, key=f"job-{number}")["id"])

        name = self.service.until(acknowledged, f"job {number} is taken")
        self.asked[name] = Asked(name, manner, count, 3 if manner == "fails" else 0)
        return name

    def open_jobs(self) -> int:
        """How many have not ended; those that end only when cancelled are, now and then."""
        self._return_node()
        waiting = [self.asked[one["id"]] for one in self.service.open() if one["id"] in self.asked]
        endless = [one for one in waiting if one.manner in ("polite", "stubborn") and not one.cancelled]
        if len(endless) > 3:
            self._cancel_one(endless[0])
        return len(waiting)

    # ── blows: whether they fell ──────────────────────────────────────────────────────────────────

    def _cancel(self) -> bool:
        names = [one["id"] for one in self.service.open()]
        return bool(names) and self._cancel_one(self.asked[self.chance.choice(names)])

    def _cancel_one(self, job: Asked) -> bool:
        with suppress(StrettoError):  # it has just ended
            self.service.change(job.id, "cancel")
            job.cancelled = True
        return job.cancelled

    def _requeue(self) -> bool:
        names = [one["id"] for one in self.service.open() if one["state"] == "RUNNING"]
        with suppress(StrettoError):
            self.service.change(self.chance.choice(names), "requeue") if names else None
        return bool(names)

    def _running(self) -> list[dict[str, Any]]:
        """What workers have noted at their beginning that may run now, in some order; none was killed before.

        No job meets it twice, or it would count as out of memory.
        """
        over = {one["worker"] for one in self.service.notes("ended")}
        found = [one for one in self.service.notes("began") if one["worker"] not in over]
        self.chance.shuffle(found)
        return [one for one in found if not self._job_of(one).killed]

    def _job_of(self, note: dict[str, Any]) -> Asked:
        return self.asked[note["worker"].split(".")[0]]

    def _worker(self) -> bool:
        """SIGKILL to one."""
        for one in self._running():
            pid = pid_of(self.service.world, one)
            process = supervisor.process_at(pid)
            if process is not None and one["worker"].encode() in environment(pid):
                self._job_of(one).killed = True
                supervisor.send_to(process, 9)
                return True
        return False

    def _node(self) -> bool:
        names = [name for name in self.service.world.nodes() if name != self.away[0]]
        if self.down[0]:
            return False
        name = self.chance.choice(names)
        asyncio.run(self.service.world.kill_node(name))
        self.down = (name, time.monotonic() + self.chance.uniform(1.0, 8.0))
        return True

    def _return_node(self, at_once: bool = False) -> None:
        self._return_kubelet(at_once)
        name, at_s = self.down
        if name and (at_once or time.monotonic() > at_s):
            asyncio.run(self.service.world.return_node(name))
            self.down = ("", 0.0)
            self.service.until(lambda: self.service.nodes()[name]["up"], f"{name} is back")

    def _service(self) -> bool:
        self.service.running.kill()
        time.sleep(self.chance.uniform(0.0, 2.0))
        self.service.begin()
        return True

    def _graceful(self) -> bool:
        """As who updates the service does."""
        assert self.service.running.kill(signal.SIGTERM) == 0, self.service.running.last_words()
        self.service.begin()
        return True

    def _clock(self) -> bool:
        """The time of day is set by hours or weeks, while the service runs or between two of its lives."""
        by_s = self.chance.choice([-1, 1]) * self.chance.choice(JUMPS_S)
        self.service.set_clock(by_s)
        if self.chance.random() < 0.5:
            self._service()
        return True

    def _disk(self) -> bool:
        """The disk to which a job saves is full: its attempt fails, and a later one goes on."""
        filler = self.disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 65536):
                pass
        name = self.submit(len(self.asked), "saves")
        self.service.until(lambda: self.service.shown(name)["failures"] > 0, "a job meets the full disk", 300)
        filler.unlink()
        return True

    # ── blows that only Kubernetes knows ──────────────────────────────────────────────────────────

    @property
    def _kubernetes(self) -> KubernetesWorld:
        assert isinstance(self.service.world, KubernetesWorld)
        return self.service.world

    def _api_server(self) -> bool:
        """It is killed, and comes back after a while; there is none again until it is ready."""
        self._kubernetes.kill_api_server()
        time.sleep(self.chance.uniform(0.0, 4.0))
        self._kubernetes.begin_api_server()
        return True

    def _watch(self) -> bool:
        """All connections of the service to the API server are cut."""
        return bool(self._kubernetes.wire.cut())

    def _silence(self) -> bool:
        """They stay open, but carry nothing any more."""
        return bool(self._kubernetes.wire.fall_silent())

    def _container(self) -> bool:
        """SIGKILL to a container, supervisor and all."""
        for one in self._running():
            if self._kubernetes.kill_container(one["worker"]):
                self._job_of(one).killed = True
                return True
        return False

    def _eviction(self) -> bool:
        """A pod is evicted by somebody who knows nothing of us."""
        with suppress(httpx2.HTTPError, ValueError, KeyError):  # the API server is just away
            pods = self._kubernetes.pods()
            return bool(pods) and self._kubernetes.evict(*self.chance.choice(pods))
        return False

    def _kubelet(self) -> bool:
        """SIGKILL to a kubelet: containers go on, and for a while nobody knows of them."""
        world = self._kubernetes
        assert isinstance(world, KubeletsWorld)
        names = [name for name in world.nodes() if name not in (self.down[0], self.away[0])]
        if self.away[0] or not names:
            return False
        name = self.chance.choice(names)
        with suppress(ProcessLookupError):
            world.kill_kubelet(name)
            self.away = (name, time.monotonic() + self.chance.choice([1.0, 3.0, 15.0]))
        return bool(self.away[0])

    def _return_kubelet(self, at_once: bool) -> None:
        name, at_s = self.away
        if name and (at_once or time.monotonic() > at_s):
            assert isinstance(self._kubernetes, KubeletsWorld)
            self._kubernetes.bring_kubelet_back(name)
            self.away = ("", 0.0)

    # ── afterwards ────────────────────────────────────────────────────────────────────────────────

    def check(self) -> str:
        """Nothing lost, nothing twice, nothing left; in words."""
        service = self.service
        with service.client() as client:
            shown = {one["id"]: one for one in client.jobs(everybody=True, ended=True)}
        assert set(shown) == set(self.asked), "each was taken once"
        assert len(self.asked) == len(self.due) + self.fell["disk"]
        for job in self.asked.values():
            self._check_job(job, shown[job.id]["state"], shown[job.id]["status"])
        service.check()
        service.until(lambda: not service.left(), "nothing is left of any worker")
        check_log(list(service.running.log_of_all()))
        decisions, differences = service.running.differences()
        assert differences == 0
        if isinstance(service.world, KubernetesWorld):
            assert len(service.world.kept()) == 1, service.world.kept()
        if isinstance(service.world, SlurmWorld):
            asyncio.run(service.world.repair())
        service.until(lambda: not self._held(), "all GPUs are free")
        states = Counter(one["state"] for one in shown.values())
        attempts = sum(one["attempt"] for one in shown.values())
        return f"{dict(states)}, {attempts} attempts, {decisions} decisions"

    def _held(self) -> list[dict[str, Any]]:
        """Nodes that are not as before the first job."""
        found = self.service.nodes().values()
        return [one for one in found if (one["up"], one["free"], one["jobs"]) != (True, one["gpus"], {})]

    def _check_job(self, job: Asked, state: str, status: int | None) -> None:
        usual = "FAILED" if job.status else "COMPLETED"
        if job.manner in ("polite", "stubborn"):
            usual = "CANCELLED"
        assert state in ({usual, "CANCELLED"} if job.cancelled else {usual}), (job, state, status)
        if state == "FAILED":
            assert status == job.status, (job, status)
        if state == "COMPLETED" and self.service.tells:
            assert self.service.count(job.id) == job.count, job


def environment(pid: int) -> bytes:
    """With what a process was started; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


@pytest.mark.long
def test_two_hundred_jobs_among_random_blows_are_all_done_once_and_nothing_is_left(
    cluster: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A kubelet that is away for a while is not to be given up: its containers go on.
    patience_s = KUBELET_AWAY_S if isinstance(cluster, KubeletsWorld) else DEAD_AFTER_S
    service = StruckService(cluster, tmp_path, patience_s)
    disk = service.notes_folder / "disk"
    storm = Storm(service, int(os.environ.get("STRETTO_SEED", SEED)), disk)
    mount_small(disk, "1m")
    began_s, said = time.monotonic(), "FAILED"
    try:
        service.begin()
        storm.rage()
        said = storm.check()
    finally:
        with capsys.disabled():
            took = f"{time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}"
            blows = f"{storm.fell.total()} blows: {dict(storm.fell)}"
            print(f"\n{cluster.name}, seed {storm.seed}: {len(storm.asked)} jobs: {said}; {blows}; {took}")
        with suppress(StrettoError):
            service.cancel_all()
        service.end()
        unmount(disk)
