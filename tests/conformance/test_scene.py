"""Four kinds of real jobs share a cluster, over every backend; a node is killed or drained, and returns."""

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conformance.service import DEAD_AFTER_S
from tests.conformance.world import World
from tests.conformance.worlds.kubelets import KubeletsWorld
from tests.conformance.worlds.kubernetes import KubernetesWorld

from stretto.client import Client
from stretto.demo.display import SUMMARY_HEADER, findings, rows_of, timeline
from stretto.demo.outcome import Outcome
from stretto.demo.play import Play, play
from stretto.demo.scene import QUICK, SCENE, Entry

pytestmark = [pytest.mark.processes, pytest.mark.large]

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_GPUS = 6  # that the scene is to have: so few that jobs compete for them, and two cores can bear it
AWAY_S = 20.0
NOISE = {"digits": 0.02, "transformer": 0.1}  # of seven digits in 360; of a twentieth of a bit up or down


@dataclass
class Striking:
    """Watches the jobs, and takes a node away from the first of them once three have come."""

    world: World
    struck: str = ""
    at_s: float = 0.0
    empty_after_s: float | None = None
    is_back: bool = False
    lines: list[str] = field(default_factory=list)
    word = "killed"

    def watch(self, at_s: float, jobs: Sequence[dict[str, Any]]) -> None:
        """One look."""
        running = [one for one in jobs if one["state"] == "RUNNING" and one["training_gpus"]]
        if not self.struck and len(jobs) >= 3 and running and at_s > 15:
            self.struck, self.at_s = next(iter(running[0]["nodes"])), at_s
            self.strike()
            self.say(at_s, f"is {self.word}, where {running[0]['name']} trains")
        if self.struck and self.empty_after_s is None and self.is_empty():
            self.empty_after_s = at_s - self.at_s
            self.say(at_s, "is empty")
        if self.empty_after_s is not None and not self.is_back and at_s > self.at_s + AWAY_S:
            self.bring_back(at_s)

    def say(self, at_s: float, what: str) -> None:
        """A line for people."""
        self.lines.append(f"{at_s:6.1f} s  node {self.struck} {what}")

    def strike(self) -> None:
        """What befalls the node."""
        asyncio.run(self.world.kill_node(self.struck))

    def is_empty(self) -> bool:
        """Whether nothing of ours runs there any more."""
        return True

    def restore(self) -> None:
        """Undo it."""
        asyncio.run(self.world.return_node(self.struck))

    def bring_back(self, at_s: float) -> None:
        """The node returns."""
        self.restore()
        self.is_back = True
        self.say(at_s, "is back")


@dataclass
class Draining(Striking):
    """Drains it, as `stretto nodes drain` does."""

    service: Client | None = None
    word = "drained"

    def strike(self) -> None:
        """Jobs move away, in place where they can."""
        assert self.service is not None
        self.service.close_node(self.struck, closed=True, drain=True)

    def is_empty(self) -> bool:
        """The service wants nothing there; on Kubernetes no pod is left either, which comes later."""
        assert self.service is not None
        if next(one["jobs"] for one in self.service.nodes() if one["name"] == self.struck):
            return False
        return not (isinstance(self.world, KubernetesWorld) and self.world.pods(self.struck))

    def restore(self) -> None:
        """It takes jobs again."""
        assert self.service is not None
        self.service.close_node(self.struck, closed=False)


@dataclass
class Evicting(Striking):
    """Drains it, as `kubectl drain` does: no new pods, and an eviction of each that is there."""

    emptied: threading.Event = field(default_factory=threading.Event)
    word = "drained by evictions"

    @property
    def cluster(self) -> KubernetesWorld:
        """The cluster."""
        assert isinstance(self.world, KubernetesWorld)
        return self.world

    def strike(self) -> None:
        """Once there is none left, the drain is done."""
        self.cluster.cordon(self.struck)
        threading.Thread(target=self._evict, daemon=True).start()

    def _evict(self) -> None:
        asked: set[tuple[str, str]] = set()
        while pods := self.cluster.pods(self.struck):
            for pod in {*pods} - asked:
                with suppress(httpx2.HTTPError):
                    asked |= {pod} if self.cluster.evict(*pod) else set()
            time.sleep(0.5)
        self.emptied.set()

    def is_empty(self) -> bool:
        """As the API server has it."""
        return self.emptied.is_set()

    def restore(self) -> None:
        """It takes pods again."""
        self.cluster.cordon(self.struck, closed=False)


def leave_few(client: Client) -> None:
    """Keep all but a few GPUs for somebody who never comes, a part of every node's type."""
    until_s = time.monotonic() + 60
    while not (nodes := [one for one in client.nodes() if one["up"]]) and time.monotonic() < until_s:
        time.sleep(0.1)
    by_type: dict[str, int] = {}
    for one in nodes:
        by_type[one["gpu_type"]] = by_type.get(one["gpu_type"], 0) + one["gpus"]
    total = sum(by_type.values())
    for gpu_type, gpus in by_type.items():
        spared = gpus - max(round(MOST_GPUS * gpus / total), 1)
        if spared > 0 and total > MOST_GPUS:
            now_s = time.time()
            asks = {"gpu_type": gpu_type, "gpus": spared, "user": "somebody-else"}
            client.reserve(f"spare-{gpu_type}".lower(), start=now_s, end=now_s + 3600, **asks)


@pytest.mark.long
@pytest.mark.parametrize("entries", [pytest.param(QUICK, id="quick"), pytest.param(SCENE, id="full")])
def test_four_kinds_of_real_jobs_share_a_cluster_that_loses_a_node(
    world: World, entries: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        play_with(Striking(world), entries)


@pytest.mark.long
@pytest.mark.parametrize("drain", [Draining, Evicting])
def test_four_kinds_of_real_jobs_share_a_cluster_of_which_a_node_is_drained(
    world: World, drain: type[Striking], capsys: pytest.CaptureFixture[str]
) -> None:
    if drain is Evicting and not isinstance(world, KubernetesWorld):
        pytest.skip("nobody but Kubernetes evicts what runs on a node that is to be drained")
    with capsys.disabled():
        play_with(drain(world), SCENE)


def play_with(striking: Striking, entries: Sequence[Entry]) -> None:
    """Play the scene, with a blow in its middle; say what became of the jobs, and see that it is right."""
    world = striking.world
    serve = [*world.serve, "--dead-after", f"{DEAD_AFTER_S:g}s"]

    def before(client: Client) -> None:
        leave_few(client)
        if isinstance(striking, Draining):
            striking.service = client

    how = Play(
        *(entries, EXAMPLES, world.program, "sia", MOST_GPUS),
        serve=serve,
        shared=world.shared if isinstance(world, KubeletsWorld) else None,
        before=before,
        watch=striking.watch,
    )
    try:
        outcomes = play(how, striking.lines.append)
    finally:
        if striking.struck and not striking.is_back and not isinstance(striking, Draining):
            striking.bring_back(0.0)
    print(f"\n{world.name}, load {os.getloadavg()[0]:.1f}")
    print("\n".join([*striking.lines, *table(outcomes), *timeline(outcomes, 110), *findings(outcomes)]))
    assert striking.struck, "no node was struck in the middle"
    assert striking.empty_after_s is not None, "the node never became empty"
    assert {one.name: one.state for one in outcomes} == dict.fromkeys(
        [one.name for one in outcomes], "COMPLETED"
    )
    for one in outcomes:
        if one.name in NOISE:
            assert one.is_exact, one.samples
            assert one.reached == pytest.approx(one.undisturbed, abs=NOISE[one.name])
    assert list(asyncio.run(world.left())) == []


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """As the demo shows it."""
    rows = [list(SUMMARY_HEADER), *rows_of(outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(SUMMARY_HEADER))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
