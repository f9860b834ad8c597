"""Hundreds of workers, whose logs are all followed, leave the API server free for commands."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, until
from tests.backends.kubernetes.memory_server import a_node
from tests.backends.kubernetes.test_faults import WORKER, bind, end, name_of, state_of

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

NODES, GPUS = 20, 8
PATIENCE_S = 120.0


async def test_a_worker_is_stopped_while_the_logs_of_many_others_are_followed(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), backend_in_memory(tmp_path) as (server, backend):
        for number in range(NODES):
            server.put("nodes", a_node(f"n{number}", gpus=GPUS))
        await until(lambda: len(backend.node_informer.items) == NODES + 2)
        workers = [
            replace(WORKER, id=f"{number}.1.{gpu}", job=str(number), node=f"n{number}", gpus=(gpu,))
            for number in range(NODES)
            for gpu in range(GPUS)
        ]
        for worker in workers:
            await backend.start(worker)
            bind(server, worker)
        await until(lambda: server.following == len(workers))
        async with asyncio.timeout(10.0):  # less than a call may take
            await backend.stop(workers[0].id, 5.0)
        assert len(server.of("DELETE", "pods")) == 1
        end(server, 143, workers[0])
        while (state := await state_of(backend, workers[0])) is None or state.phase != "ended":
            await asyncio.sleep(0.01)
        server.logs["jobs", name_of(workers[1])] = b"2026-11-20T10:00:30.5Z still here\n"
        while b"still here" not in (await backend.log(workers[1].id)).data:
            await asyncio.sleep(0.01)
