"""A worker from its start to its end, over every backend."""

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import pytest

from stretto.backends.protocol import HandsSecrets, IdUsed, NoSuchWorker, StartRefused
from stretto.testing.backends.stage import Stage


class Lives:
    """A worker from its start to its end."""

    async def test_every_node_is_shown_with_its_gpus_and_their_type(self, stage: Stage) -> None:
        """Every node is shown with its gpus and their type."""
        for name in stage.world.nodes():

            async def is_free(name: str = name) -> bool:  # what ran there before may still be counted
                node = await stage.node(name)
                return (node.up, node.shut, node.others) == (True, "", 0)

            await stage.until(is_free, f"{name} is up, open and nobody else's")
            node = await stage.node(name)
            assert node.gpus >= 2
            assert node.gpu_type

    async def test_a_worker_goes_from_its_start_to_being_forgotten(self, stage: Stage) -> None:
        """A worker goes from its start to being forgotten."""
        worker = stage.worker("sleep", 600.0 if stage.tells else 2.0, gpus=(1,))
        begun = await stage.begin(worker)
        assert (begun.id, begun.node, begun.job, begun.holds_gpus) == (
            worker.id,
            worker.node,
            worker.job,
            True,
        )
        assert len(begun.gpus) == 1
        assert await stage.shown(worker) is not None, "what we started is listed at once"
        running = await stage.in_phase(worker, "running")
        assert (running.status, running.stopped, running.gpus) == (None, False, begun.gpus)
        stage.finish(worker)
        ended = await stage.ended(worker)
        assert (ended.status, ended.signal, ended.stopped, ended.holds_gpus) == (0, None, False, False)
        await stage.backend.forget(worker.id)
        await stage.backend.forget(worker.id)
        assert await stage.shown(worker) is None

    async def test_exit_statuses_and_signals_come_back_as_they_were(self, stage: Stage) -> None:
        """Exit statuses and signals come back as they were."""
        nodes = stage.world.nodes()
        ways = {
            0: await stage.start("sleep", 0.1, 0, node=nodes[0]),
            7: await stage.start("sleep", 0.1, 7, node=nodes[0], gpus=(1,)),
            143: await stage.start("signal", signal.SIGTERM, node=nodes[1]),
            137: await stage.start("signal", signal.SIGKILL, node=nodes[1], gpus=(1,)),
        }
        ended = {status: await stage.ended(worker) for status, worker in ways.items()}
        assert {status: listed.status for status, listed in ended.items()} == {
            status: status for status in ways
        }
        assert [listed.stopped for listed in ended.values()] == [False] * 4
        assert [ended[0].signal, ended[7].signal] == [None, None]
        assert ended[137].signal == signal.SIGKILL

    async def test_a_start_that_is_repeated_is_one_start(self, stage: Stage) -> None:
        """A start that is repeated is one start."""
        worker = stage.worker("sleep", 0.5)
        stage.started.append(worker)
        orders = [stage.insist(lambda: stage.backend.start(worker)) for _ in range(3)]
        assert {listed.id for listed in await asyncio.gather(*orders)} == {worker.id}
        assert (await stage.ended(worker)).status == 0
        again = await stage.backend.start(worker)
        assert (again.phase, again.status) == ("ended", 0)
        assert not stage.tells or len(stage.beginnings(worker)) == 1

    async def test_an_id_is_never_used_again(self, stage: Stage) -> None:
        """An id is never used again."""
        worker = await stage.start("sleep", 0.1)
        await stage.ended(worker)
        await stage.backend.forget(worker.id)
        with pytest.raises(IdUsed):
            await stage.backend.start(worker)
        assert len(stage.beginnings(worker)) == 1

    async def test_who_is_to_start_on_a_node_that_is_not_there_is_refused(self, stage: Stage) -> None:
        """A worker that is to start on a node that is not there is refused."""
        with pytest.raises(StartRefused, match="nowhere"):
            await stage.backend.start(stage.worker("sleep", 1.0, node="nowhere"))

    async def test_a_command_that_cannot_be_run_says_so(self, stage: Stage) -> None:
        """A command that cannot be run says so."""
        worker = replace(stage.worker("sleep", 1.0), command=("no-such-program-anywhere", "--now"))
        await stage.begin(worker)
        ended = await stage.ended(worker)
        assert ended.status == 127
        assert "no-such-program-anywhere" in ended.why

    async def test_a_secret_reaches_the_worker_and_stays_in_no_file_and_on_no_command_line(
        self, stage: Stage
    ) -> None:
        """A secret reaches the worker, and stays in no file and on no command line."""
        if not isinstance(stage.backend, HandsSecrets) or not stage.tells:
            pytest.skip("this cluster hands no secrets to workers")
        secret = f"conformance-{token_hex(16)}"
        asks = f"sha256(os.environ.get('SECRET', '').encode()).hexdigest() == '{_digest_of(secret)}'"
        lines = (
            f"import os, sys, time; from hashlib import sha256; time.sleep(1); sys.exit(7 if {asks} else 1)"
        )
        command = (sys.executable, "-I", "-S", "-c", lines)
        worker = replace(stage.worker("sleep", 1.0), command=command, secrets={"SECRET": secret})
        begun = await stage.begin(worker)
        assert secret not in f"{worker}{begun}"
        await stage.in_phase(worker, "running", "ended")
        assert _command_lines_with(secret) == []
        again = await stage.insist(lambda: stage.backend.start(replace(worker, secrets={"SECRET": "newer"})))
        assert again.id == worker.id, "the value may have changed between two attempts at one start"
        ended = await stage.ended(worker)
        assert ended.status == 7, "the worker has another value, or none"
        # Where the cluster itself keeps secrets, as Kubernetes does in etcd, the world says so.
        stores = set(getattr(stage.world, "secret_stores", ()))
        files = _files_with(secret, stage.world.folder)
        assert [file for file in files if stores.isdisjoint(file.parents)] == []

    async def test_a_log_is_read_from_an_offset_and_followed_to_its_end(self, stage: Stage) -> None:
        """A log is read from an offset and followed to its end."""
        worker = await stage.run("say", 40)
        whole, offset = b"", 0
        while True:
            piece = await stage.backend.log(worker.id, offset, wait_s=2.0)
            assert piece.offset == offset
            assert piece.next_offset == offset + len(piece.data)
            whole, offset = whole + piece.data, piece.next_offset
            if piece.complete:
                break
        assert whole.decode().splitlines() == ["say begins", *(f"line {index}" for index in range(40))]
        assert (await stage.backend.log(worker.id, offset=-8)).data == b"line 39\n"
        assert (await stage.backend.log(worker.id, offset=4, limit=6)).data == b"begins"
        await stage.ended(worker)
        await stage.backend.forget(worker.id)
        assert (await stage.backend.log(worker.id)).data == whole, "until the logs of its job are deleted"
        await stage.backend.delete_logs(worker.job)
        with pytest.raises(NoSuchWorker):
            await stage.backend.log(worker.id)

    async def test_of_a_worker_that_nobody_knows_nothing_can_be_asked(self, stage: Stage) -> None:
        """An unknown worker cannot be asked for anything."""
        for order in (
            stage.backend.stop("nobody.1.0", 1.0),
            stage.backend.signal("nobody.1.0", signal.SIGTERM),
            stage.backend.log("nobody.1.0"),
        ):
            with pytest.raises(NoSuchWorker):
                await order

    async def test_the_next_connection_finds_the_workers_and_goes_on_with_them(self, stage: Stage) -> None:
        """The next connection finds the workers and goes on with them."""
        goes_on = await stage.run("sleep", 600.0)
        ends = await stage.run("sleep", 1.0, gpus=(1,))
        before = await stage.in_phase(goes_on, "running")
        await stage.connection.drop()
        await asyncio.sleep(1.2)
        await stage.reconnect()
        after = await stage.in_phase(goes_on, "running")
        assert (after.gpus, after.job, after.status) == (before.gpus, before.job, None)
        assert (await stage.ended(ends)).status == 0, "it ended while nobody looked"
        assert not stage.tells or [len(stage.beginnings(worker)) for worker in (goes_on, ends)] == [1, 1]
        await stage.backend.stop(goes_on.id, 5.0)
        assert (await stage.ended(goes_on)).stopped


def _digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _command_lines_with(text: str) -> list[str]:
    """Processes of this machine whose command line has it."""
    processes = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if text.encode() in line.read_bytes():
                processes.append(line.parent.name)
    return processes


def _files_with(text: str, folder: Path) -> list[Path]:
    """Files in a folder that have it."""
    files: list[Path] = []
    for file in folder.rglob("*"):
        with suppress(OSError):
            if file.is_file() and text.encode() in file.read_bytes():
                files.append(file)
    return files
