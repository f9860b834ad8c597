"""A GPU is shown as free once nothing runs on it any more, and not as soon as no job is to hold it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.http.rig import Rig, a_rig, play

from stretto.cli.cluster import table_of_nodes
from stretto.cli.top import map_of
from stretto.service.http.auth import Caller, Role
from stretto.service.http.node_rows import NodeRows
from stretto.service.state.events import Event, WorkersEnded

pytestmark = pytest.mark.sqlite

TEXT = "run: x\nname: slow-to-end\nresources: {accelerators: '2'}"
OLGA = Caller("olga", Role.OPERATOR)


async def shown(rig: Rig, name: str) -> dict[str, Any]:
    """A node, as the interface shows it."""
    async with rig.client("olga") as olga:
        nodes: list[dict[str, Any]] = (await olga.get("/api/v1/nodes")).json()["nodes"]
    return next(node for node in nodes if node["name"] == name)


async def gpus_by_state(rig: Rig) -> dict[str, float]:
    """What the metrics say of all GPUs."""
    async with rig.client("olga") as olga:
        text = (await olga.get("/metrics")).text
    found = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "stretto_gpus" and sample.value
    ]
    return {sample.labels["state"]: sample.value for sample in found}


async def drained(rig: Rig) -> tuple[str, list[str]]:
    """A node that is drained while both workers of a job there do not end, and the two."""
    await rig.submit("ada", text=TEXT)
    await rig.until(lambda: len(rig.backend.started) == 2)
    node = rig.backend.started[0].node
    workers = [worker.id for worker in rig.backend.started if worker.node == node]
    rig.backend.stubborn |= {*workers}
    async with rig.client("olga") as olga:
        for other in {"n0", "n1"} - {node}:
            await olga.post(f"/api/v1/nodes/{other}/cordon")
        await olga.post(f"/api/v1/nodes/{node}/drain")
    await rig.until(lambda: {*workers} <= {*rig.backend.stopped})
    return node, workers


def test_a_drained_node_has_free_gpus_as_its_workers_end_and_no_sooner(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            node, workers = await drained(rig)
            assert len(workers) == 2
            one = await shown(rig, node)
            assert (one["gpus"], one["free"], one["ending"], one["jobs"]) == (4, 2, 2, {})
            assert await gpus_by_state(rig) == {"ending": 2.0, "closed": 6.0}
            header, (row,) = table_of_nodes([one])
            assert dict(zip(header, row, strict=True))["jobs"] == "ending (2)"
            assert map_of(one, {}) == "~~··"
            for left in (1, 0):
                await rig.backend.finish(workers[left], 143)
                await rig.until(lambda left=left: mask_count(rig) == left)  # type: ignore[misc]
                one = await shown(rig, node)
                assert (one["free"], one["ending"]) == (4 - left, left)

    play(story)


def mask_count(rig: Rig) -> int:
    return sum(mask.bit_count() for mask in rig.service.reconciler.ending_gpus().values())


def test_whoever_hears_that_a_worker_has_ended_sees_its_gpus_free(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            node, workers = await drained(rig)
            heard: list[int] = []

            def hear(told: Sequence[tuple[int, Event]]) -> None:
                if any(isinstance(event, WorkersEnded) for _, event in told):
                    heard.extend(
                        one["free"] for one in NodeRows(rig.service).seen_by(OLGA) if one["name"] == node
                    )

            rig.service.log_writer.listeners.append(hear)
            for count, worker in enumerate(workers, 1):
                await rig.backend.finish(worker, 143)
                await rig.until(lambda count=count: len(heard) == count)  # type: ignore[misc]
            assert heard == [3, 4]

    play(story)


def test_a_service_that_has_not_looked_yet_goes_by_its_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            node, _ = await drained(rig)
            log_writer = rig.service.log_writer
            for task in rig.loops[1:]:
                task.cancel()
            began = type(rig.service.reconciler)(
                log_writer, rig.backend, rig.service.clock, rig.service.reconciler.context
            )
            index = log_writer.state.node_index[node]
            assert began.ending_gpus() == {index: 0b11}

    play(story)
