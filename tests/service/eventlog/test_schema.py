"""Opening: the schema is brought up to date, and what is not ours is left alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from stretto.model import InputError
from stretto.service.eventlog import Store, StoreError, Unrecorded, open_store
from stretto.service.eventlog.database import METADATA, VERSION_TABLE

pytestmark = pytest.mark.sqlite


def test_migrations_make_the_tables_that_queries_expect(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        found = compare_metadata(context, METADATA)
    assert [change for change in found if change[0] != "remove_index"] == []


def test_a_schema_of_a_newer_stretto_is_refused(source: str) -> None:
    with open_store(source) as opened, opened.engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"expected a schema up to version \d+, got '9999'") as refused:
        open_store(source)
    assert "\n" not in str(refused.value)


def test_a_mere_reader_makes_no_schema(source: str) -> None:
    with pytest.raises(StoreError, match=r"expected a schema of version \d+, got none"):
        open_store(source, upgrade=False)
    with open_store(source) as opened:
        assert opened.last() == 0


@pytest.mark.processes
def test_stores_that_are_opened_at_once_make_one_schema(source: str) -> None:
    program = (
        "import sys\n"
        "from stretto.service.eventlog import *\n"
        "sys.stdin.read()\n"  # all start when the pipe closes
        "open_store(sys.argv[1]).last()\n"
    )
    openers = [
        subprocess.Popen([sys.executable, "-c", program, source], stdin=subprocess.PIPE) for _ in range(3)
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.close()
    assert [opener.wait(60) for opener in openers] == [0, 0, 0]
    with open_store(source) as opened:
        assert opened.append([Unrecorded(0.0, "K", "", {})], after=0) == (1,)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        pytest.param("mysql://u@h/d", "sqlite or postgresql, got 'mysql'", id="another database"),
        pytest.param("sqlite://", "plain file", id="memory"),
        pytest.param("sqlite:///:memory:", "plain file", id="memory by name"),
        pytest.param("sqlite:///x.db?mode=ro", "plain file", id="options"),
        pytest.param("postgresql://h:port/d", "cannot be read", id="no number for a port"),
    ],
)
def test_an_address_is_refused(address: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_store(address)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("a letter to a friend, long enough to be looked at. " * 99)
    with pytest.raises(StoreError, match=r"log\.db: file is not a database"):
        open_store(tmp_path / "log.db")


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened: Is a directory"):
        open_store(tmp_path)


def test_nobody_at_the_address_is_said_at_once() -> None:
    with pytest.raises(StoreError, match="refused") as refused:
        open_store("postgresql://somebody:secret@127.0.0.1:1/stretto")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_url_and_path_name_the_same_file(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/log.db") as opened:
        opened.append([Unrecorded(0.0, "K", "", {})], after=0)
    with open_store(str(tmp_path / "log.db")) as opened:
        assert opened.last() == 1


@pytest.mark.processes
def test_an_older_schema_is_read_as_it_is_and_brought_up_to_date_by_whoever_writes(source: str) -> None:
    with open_store(source) as opened, opened.engine.begin() as connection:
        connection.execute(text("DROP TABLE stretto_ended_jobs"))
        connection.execute(text("DROP TABLE stretto_gaps"))
        connection.execute(text("DROP TABLE stretto_usage"))
        connection.execute(text("DROP TABLE stretto_secrets"))
        connection.execute(text("ALTER TABLE stretto_log DROP COLUMN chain"))
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    with open_store(source, upgrade=False) as reader:
        reader.append([Unrecorded(0.0, "K", "", {})], after=0)
        assert [one.kind for one in reader.read()] == ["K"]
    with open_store(source) as writer:
        assert (writer.last(), writer.ended.count()) == (1, 0)
        assert writer.append([Unrecorded(0.0, "K", "", {})], after=1) == (2,)
        assert len(list(writer.read(verify=True))) == 2
        assert writer.damage() == []
