"""There is one writer, and its lead ends with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from stretto.service.eventlog import LedByOther, Store, open_store

from .servers import PostgreSQL

pytestmark = pytest.mark.sqlite

LEADER = (
    "import sys\n"
    "from stretto.service.eventlog import *\n"
    "lead = open_store(sys.argv[1]).lead()\n"
    "print('leads', flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def another_leader(source: str) -> Iterator[subprocess.Popen[str]]:
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "leads\n"
        try:
            yield leader
        finally:
            leader.kill()


@pytest.mark.processes
def test_a_second_service_is_told_who_leads(source: str, store: Store) -> None:
    with another_leader(source) as leader, pytest.raises(LedByOther, match=f"stretto {leader.pid} on"):
        store.lead()


@pytest.mark.processes
def test_a_lead_ends_with_its_process(source: str, store: Store) -> None:
    with another_leader(source) as leader:
        os.kill(leader.pid, signal.SIGKILL)
        with store.lead(wait_s=60) as lead:
            assert lead.holds()


def test_a_lead_can_be_given_back(source: str, store: Store) -> None:
    with store.lead() as first, open_store(source) as other:
        with pytest.raises(LedByOther):
            other.lead()
        first.release()
        assert not first.holds()
        with other.lead() as second:
            assert second.holds()
            with pytest.raises(LedByOther):
                store.lead()


def test_a_lead_is_lost_with_its_file(tmp_path: Path) -> None:
    with open_store(tmp_path / "log.db") as opened, opened.lead() as lead:
        (tmp_path / "log.db.lock").unlink()
        assert not lead.holds()


def end_other_connections(server: PostgreSQL) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'stretto %' AND pid <> pg_backend_pid()"
        )


@pytest.mark.postgres
def test_a_lead_whose_connection_is_ended_is_taken_again(server: PostgreSQL, database: str) -> None:
    with open_store(server.url_of(database)) as opened, opened.lead() as lead:
        end_other_connections(server)
        assert lead.holds()
        with open_store(server.url_of(database)) as other, pytest.raises(LedByOther):
            other.lead()


@pytest.mark.postgres
def test_a_lead_that_somebody_took_meanwhile_is_lost(server: PostgreSQL, database: str) -> None:
    url = server.url_of(database)
    with open_store(url) as opened, open_store(url) as other, opened.lead() as lead:
        end_other_connections(server)
        with other.lead(wait_s=60) as others:
            assert not lead.holds()
            others.release()
        assert lead.holds()


@pytest.mark.postgres
def test_stores_in_two_databases_have_leads_of_their_own(server: PostgreSQL, database: str) -> None:
    with (
        open_store(server.url_of(database)) as one,
        open_store(server.url) as two,
        one.lead(),
        two.lead() as lead,
    ):
        assert lead.holds()
