"""Four kinds of real jobs share a cluster, over every backend; a node is killed amid, and returns."""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.service import DEAD_AFTER_S
from tests.conformance.world import World

from stretto.client import Client
from stretto.demo.display import SUMMARY_HEADER, findings, rows_of, timeline
from stretto.demo.outcome import Outcome
from stretto.demo.play import Play, play
from stretto.demo.scene import QUICK, SCENE

pytestmark = [pytest.mark.processes, pytest.mark.alone]

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_GPUS = 6  # that the scene is to have: so few that jobs compete for them, and two cores can bear it
AWAY_S = 20.0
NOISE = {"digits": 0.02, "transformer": 0.1}  # of seven digits in 360; of a twentieth of a bit up or down


@dataclass
class Killing:
    """Watches the jobs, and kills a node of the first of them once three are running."""

    world: World
    killed: str = ""
    at_s: float = 0.0
    is_back: bool = False
    lines: list[str] = field(default_factory=list)

    def watch(self, at_s: float, jobs: Sequence[dict[str, Any]]) -> None:
        """One look."""
        running = [one for one in jobs if one["state"] == "RUNNING" and one["training_gpus"]]
        if not self.killed and len(jobs) >= 3 and running and at_s > 15:
            self.killed, self.at_s = next(iter(running[0]["nodes"])), at_s
            asyncio.run(self.world.kill_node(self.killed))
            self.lines.append(
                f"{at_s:6.1f} s  node {self.killed} is killed, where {running[0]['name']} trains"
            )
        if self.killed and not self.is_back and at_s > self.at_s + AWAY_S:
            self.bring_back(at_s)

    def bring_back(self, at_s: float) -> None:
        """The node returns."""
        asyncio.run(self.world.return_node(self.killed))
        self.is_back = True
        self.lines.append(f"{at_s:6.1f} s  node {self.killed} is back")


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
    killing = Killing(world)
    serve = [*world.serve, "--dead-after", f"{DEAD_AFTER_S:g}s"]
    how = Play(
        entries, EXAMPLES, world.program, "sia", MOST_GPUS, serve=serve, before=leave_few, watch=killing.watch
    )
    try:
        outcomes = play(how, killing.lines.append)
    finally:
        if killing.killed and not killing.is_back:
            killing.bring_back(0.0)
    with capsys.disabled():
        print(f"\n{world.name}, load {os.getloadavg()[0]:.1f}")
        print("\n".join([*killing.lines, *table(outcomes), *timeline(outcomes, 110), *findings(outcomes)]))
    assert killing.killed, "no node was killed in the middle"
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
