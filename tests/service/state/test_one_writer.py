"""The state has one writer, the fold: whatever the service does between two events leaves it as it is."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import Rig, a_rig, play
from tests.service.one_writer import watched

from stretto.service.retention.job_retention import RetentionPolicy, retire_periodically
from stretto.service.state.events import Joined, NodeCordoned, Reported, WorkerReady

pytestmark = pytest.mark.processes

ELASTIC = "run: x\nname: grows\nmodel: m\nelastic: {min: 1, max: 4}"
ARRAY = "run: x\nname: tasks\narray: 0-3%2"
PAGES = ("jobs", "nodes", "queues", "shares", "jobs/1/explain")


async def a_life(rig: Rig) -> None:
    """Jobs come, start, train, report, move, are held, cancelled and retired; people look at everything."""
    service, backend = rig.service, rig.backend
    loops: list[Any] = [
        service.watch_times(),
        service.webhooks.run(),
        service.autoscaler.run(),
    ]
    keep = RetentionPolicy(most_ended=1)
    loops.append(retire_periodically(service.log_writer, service.clock, keep, service.reconciler.dirty))
    rig.loops += [asyncio.create_task(one) for one in loops]
    grows = await rig.submit(text=ELASTIC)
    record = service.state.jobs[grows]
    await rig.until(lambda: len(record.alive) == 1 and grows in {one.job for one in backend.started})
    first = f"{grows}.1.0"
    await service.record(WorkerReady(grows, first))
    await rig.until(lambda: record.members.number == 1)
    await service.record(Joined(grows, first, 1))
    await service.record(Reported(grows, {"step": 3, "init_batch": 8, "points": [[1, 1, 8, 1, 0.1, 0.2]]}))
    await rig.submit(text=ARRAY)
    others = [await rig.submit("bob"), await rig.submit("bob")]
    async with rig.client("root") as client:
        for page in PAGES:
            assert (await client.get(f"/api/v1/{page}")).status_code == 200, page
        for job, call in ((others[0], "hold"), (others[0], "release"), (others[1], "cancel")):
            assert (await client.post(f"/api/v1/jobs/{job}/{call}", json={})).status_code == 200
    await service.record(NodeCordoned("n1", closed=True, drain=True))
    await backend.set_up("n1", False)
    await backend.finish(first, 1)
    await rig.until(lambda: record.failures == 1)
    await rig.until(lambda: others[1] not in service.state.jobs or service.state.jobs[others[1]].has_ended)
    await service.record(NodeCordoned("n1", closed=False))


def test_nothing_but_an_event_changes_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch)

    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            await a_life(rig)

    play(story)
    assert watch.changed == []
    kinds = {"Submitted", "ArraySubmitted", "Decided", "WorkersWanted", "Generation", "Held", "Cancelled"}
    assert kinds | {"AttemptClosed", "NodeLost", "NodeCordoned", "Ended"} <= set(watch.folded)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda state: setattr(state, "wake_s", 7.0), id="a field"),
        pytest.param(lambda state: setattr(state.nodes[0], "remark", "x"), id="a field of a record"),
        pytest.param(lambda state: state.ends.update({"COMPLETED": 9}), id="what a field holds"),
    ],
)
def test_a_second_writer_is_found_out(
    write: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watched(monkeypatch)

    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            write(rig.service.state)
            await rig.service.record(NodeCordoned("n1", closed=True))

    play(story)
    assert watch.changed == ["NodeCordoned"]
