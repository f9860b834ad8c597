"""What was acknowledged is there, whoever dies; and nothing is there twice."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event

from stretto.service.eventlog import LogMoved, Store, StoreError, Unrecorded, open_store
from stretto.service.eventlog import database as engine

from .proxy import Cut, wire_to
from .servers import PostgreSQL, free_port

pytestmark = pytest.mark.sqlite


def a_group(first: int, size: int = 2) -> list[Unrecorded]:
    return [Unrecorded(0.0, "K", "", {"n": number}) for number in range(first, first + size)]


def numbers(store: Store) -> list[int]:
    return [event.body["n"] for event in store.read()]


@pytest.mark.processes
def test_what_was_acknowledged_survives_the_kill_of_its_writer(source: str) -> None:
    program = (
        "import sys\n"
        "from stretto.service.eventlog import *\n"
        "store, last = open_store(sys.argv[1]), 0\n"
        "while True:\n"
        "    seqs = store.append([Unrecorded(0.0, 'K', '', {'n': last + i}) for i in (0, 1, 2)], last)\n"
        "    last = seqs[-1]\n"
        "    print(last, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, source], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= 60:
                break
        os.kill(writer.pid, signal.SIGKILL)
        said = int([line, *writer.stdout][-1])  # it went on until the signal came
    with open_store(source) as store:
        assert store.last() in {said, said + 3}  # the last group may have been written but not acknowledged
        assert numbers(store) == list(range(store.last()))


@pytest.mark.postgres
@pytest.mark.processes
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_appending_goes_on_over_a_restart_of_the_server(server: PostgreSQL, database: str, mode: str) -> None:
    with open_store(server.url_of(database)) as store:
        store.append(a_group(0), after=0)
        restarts: list[BaseException] = []

        def restart() -> None:
            try:
                server.stop(mode)
                server.start()
            except BaseException as error:  # reported below: a thread's own end would be silent
                restarts.append(error)

        restarting = threading.Thread(target=restart)
        restarting.start()
        last, through = 2, 0
        while restarting.is_alive() or through < 5:
            last = store.append(a_group(last), after=last)[-1]
            through += not restarting.is_alive()
        restarting.join()
        assert restarts == []
        assert numbers(store) == list(range(last))


@pytest.mark.postgres
@pytest.mark.sockets
@pytest.mark.parametrize("cut", Cut)
def test_a_group_whose_commit_is_cut_off_is_written_once(server: PostgreSQL, database: str, cut: Cut) -> None:
    with wire_to(server.port) as wire, open_store(server.url_of(database, wire.port)) as store:
        store.append(a_group(0), after=0)
        wire.cut = cut
        assert store.append(a_group(2), after=2) == (3, 4)
        assert wire.cuts == 1
        assert store.append(a_group(4), after=4) == (5, 6)
        assert numbers(store) == list(range(6))


@pytest.mark.postgres
@pytest.mark.sockets
@pytest.mark.parametrize("cut", Cut)
def test_equal_events_of_another_writer_are_not_taken_for_ours(
    server: PostgreSQL, database: str, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the cut, and before we are back, somebody else has written the very same events."""
    with (
        wire_to(server.port) as wire,
        open_store(server.url_of(database)) as other,
        open_store(server.url_of(database, wire.port)) as store,
    ):
        answers: list[str] = []

        def meanwhile(_: float) -> None:
            try:
                other.append(a_group(0), after=0)
                answers.append("written")
            except LogMoved:
                answers.append("moved")

        monkeypatch.setattr("stretto.service.eventlog.database.time.sleep", meanwhile)
        wire.cut = cut
        if cut is Cut.AFTER:  # ours is there, and the other is refused
            assert store.append(a_group(0), after=0) == (1, 2)
        else:
            with pytest.raises(LogMoved):
                store.append(a_group(0), after=0)
        assert answers[0] == ("moved" if cut is Cut.AFTER else "written")
        assert numbers(store) == [0, 1]


@pytest.mark.postgres
def test_connections_that_are_ended_are_replaced(server: PostgreSQL, database: str) -> None:
    with open_store(server.url_of(database)) as store, psycopg.connect(server.url, autocommit=True) as other:
        for last in (0, 2, 4):
            store.append(a_group(last), after=last)
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,)
            )
        assert numbers(store) == list(range(6))


@pytest.mark.postgres
def test_a_reader_goes_on_where_its_connection_was_ended(
    server: PostgreSQL, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.service.eventlog.log.READ_AT_ONCE", 2)
    with open_store(server.url_of(database)) as store, psycopg.connect(server.url, autocommit=True) as other:
        store.append(a_group(0, size=6), after=0)
        read = []
        for one in store.read():
            read.append(one.seq)
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,)
            )
        assert read == [1, 2, 3, 4, 5, 6]


@pytest.mark.postgres
@pytest.mark.sockets
def test_a_server_that_stays_away_is_given_up(server: PostgreSQL, database: str) -> None:
    with open_store(server.url_of(database), patience_s=0.3) as store:
        store.append(a_group(0), after=0)
        away = store.engine.url.set(port=free_port())
        with (
            Store(engine.engine_of(away), patience_s=0.3) as lost,
            pytest.raises(StoreError, match="refused"),
        ):
            lost.append(a_group(2), after=2)


def test_a_lock_that_stays_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_S", 0.05)
    with open_store(tmp_path / "log.db", patience_s=0.2) as store:
        other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="locked"):
                store.append(a_group(0), after=0)
            assert store.last() == 0  # readers are not in its way
            other.execute("ROLLBACK")
        finally:
            other.close()
        assert store.append(a_group(0), after=0) == (1, 2)


def test_a_full_disk_is_said_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    with open_store(tmp_path / "log.db") as store:
        store.append(a_group(0), after=0)
        store.engine.dispose()
        event.listen(store.engine, "connect", lambda made, _: made.execute("PRAGMA max_page_count = 20"))
        large = [Unrecorded(0.0, "K", "", {"n": number, "x": "x" * 4096}) for number in range(2, 40)]
        with pytest.raises(StoreError, match="disk is full"):
            store.append(large, after=2)
        assert numbers(store) == [0, 1]
        assert store.append(a_group(2), after=2) == (3, 4)


def test_every_commit_of_sqlite_waits_for_the_disk(tmp_path: Path) -> None:
    with open_store(tmp_path / "log.db") as store, store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.postgres
def test_a_database_that_does_not_wait_for_the_disk_does_so_for_us(server: PostgreSQL, database: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{database}" SET synchronous_commit = off')
    with open_store(server.url_of(database)) as store, store.engine.connect() as connected:
        assert connected.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_reading_a_long_log_takes_little_memory(store: Store) -> None:
    many = 30_000
    store.append(
        [Unrecorded(0.0, "K", "j", {"n": number, "x": "x" * 200}) for number in range(many)], after=0
    )
    list(store.read(limit=5_000))  # whatever is made once
    tracemalloc.start()
    try:
        assert sum(1 for _ in store.read()) == many
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6_000_000  # all rows at once would be above 30 MB
