"""`stretto simulate --from-log … --decision N`: one decision of a service made again."""

from pathlib import Path

import pytest
from tests.cli.ran import Stretto
from tests.service.test_one_decision import a_busy_log
from tests.service.test_state_snapshots import written

from stretto.service.eventlog import open_store

pytestmark = pytest.mark.sqlite


def test_the_command_line_shows_it_and_ends_with_1_where_it_differs(tmp_path: Path, stretto: Stretto) -> None:
    log = a_busy_log("fifo")
    numbers = [one.seq for one in log if one.kind == "Decided"]
    with open_store(tmp_path / "stretto.db") as store:
        written(store, log)
    ran = stretto("simulate", "--from-log", tmp_path, "--decision", numbers[0])
    assert ran.status == 0
    assert f"decision {numbers[0]} by fifo, since a job was submitted or released" in ran.out
    assert "not enough GPUs that suit it are free" in ran.out
    assert ran.out.endswith("it comes out as it was written\n")
    shown = stretto("simulate", "--from-log", tmp_path / "stretto.db", "--decision", numbers[0], "--json")
    assert (shown.status, shown.json["seq"], shown.json["same"]) == (0, numbers[0], True)
    alone = stretto("simulate", "--decision", 7)
    assert alone.status == 2
    assert "--decision 7: expected --from-log" in alone.err
    elsewhere = stretto("simulate", "--from-log", tmp_path / "nowhere", "--decision", 7)
    assert elsewhere.status == 2
    assert "expected --from-log with the log of a service" in elsewhere.err
