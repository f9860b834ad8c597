"""`stretto simulate --from-log` over the log of a service that really ran, on an emulated cluster."""

import json
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.service.running import Running

from stretto.cli.app import status_of
from stretto.demo.own_service import until

pytestmark = pytest.mark.sqlite

CLUSTER = "name: pair\ngpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 4, count: 2}]\n"
SIZES = (1, 2, 4, 1, 8, 2)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a service that has ended, with jobs resized, restarted and done."""
    folder = tmp_path_factory.mktemp("again")
    (folder / "cluster.yaml").write_text(CLUSTER)
    options = ["--backend", "emulated", "--cluster", str(folder / "cluster.yaml"), "--pace", "1000"]
    options += ["--keep-ended", "60s"]  # jobs leave the state while others run
    service = Running(folder, *options, "--policy", "sia", "--set", "sim.resize_s=5")
    try:
        service.begin()
        with service.client() as client:
            names = [client.submit(_job(gpus))["id"] for gpus in SIZES]
            service.kill(signal.SIGKILL)  # its memory of the policy is gone, too
            service.begin()
            names.append(client.submit(_job(2))["id"])
            until(lambda: all(client.describe(name)["ended_s"] for name in names), what="all jobs end")
            assert {client.describe(name)["state"] for name in names} == {"COMPLETED"}
            until(lambda: _left(service) == set(names), what="all jobs leave")
            assert [client.describe(name)["id"] for name in names] == names
            assert "".join(client.log(names[0])).startswith(f"emulated worker {names[0]}.")
            assert [one["id"] for one in client.jobs(ended=True, newest=True)] == names[::-1]
        assert service.kill(signal.SIGTERM) == 0
        yield folder / "state"
    finally:
        service.end()


def _left(service: Running) -> set[str]:
    """Jobs that have left the state."""
    return {job for _, _, kind, body in service.log_of_all() if kind == "Retired" for job in body["jobs"]}


def _job(gpus: int) -> str:
    said = {"name": "again", "run": "x", "resources": {"accelerators": str(gpus)}, "expected_time": "10m"}
    return json.dumps({**said, "elastic": {"min": 1, "max": 8}})


@pytest.fixture
def again(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """(status, output, remarks) of deciding again."""

    def run(*words: object) -> tuple[int, str, str]:
        status = status_of(["simulate", "--from-log", *map(str, words)])
        return status, *capsys.readouterr()

    return run


Again = Callable[..., tuple[int, str, str]]


@pytest.mark.slow
@pytest.mark.processes
def test_every_decision_of_a_service_comes_out_again(state: Path, again: Again) -> None:
    status, out, err = again(state)
    assert (status, err) == (0, "")
    assert re.fullmatch(r"[1-9]\d* decisions made again, 0 differ\n", out)


@pytest.mark.slow
def test_a_store_is_named_by_its_file_or_its_url_as_well(state: Path, again: Again) -> None:
    told = [
        json.loads(again(source, "--json")[1])
        for source in (state, state / "stretto.db", f"sqlite:///{state / 'stretto.db'}")
    ]
    assert told[0] == told[1] == told[2]
    assert (told[0]["policy"], told[0]["jobs"], told[0]["differences"]) == ("sia", len(SIZES) + 1, 0)
    assert told[0]["decisions"] > 2


def test_a_decision_that_was_tampered_with_is_named_and_the_status_says_so(
    state: Path, again: Again, tmp_path: Path
) -> None:
    shutil.copytree(state, tmp_path / "other")
    with sqlite3.connect(tmp_path / "other" / "stretto.db") as log:
        rows = log.execute("SELECT seq, body FROM stretto_log WHERE kind = 'Decided' ORDER BY seq").fetchall()
        seq, body = next((seq, json.loads(body)) for seq, body in rows if json.loads(body)["actions"])
        body["actions"][0]["before"], body["actions"] = None, body["actions"][:-1]
        log.execute("UPDATE stretto_log SET body = ? WHERE seq = ?", (json.dumps(body), seq))
    log.close()
    status, out, err = again(tmp_path / "other")
    assert status == 1
    assert re.search(r"made again, [1-9]\d* differ", out)
    assert err.startswith(f"decision {seq} at ")
    assert "actions was [" in err


def test_a_log_that_is_none_is_left_as_it_is_and_refused(again: Again, tmp_path: Path) -> None:
    status, out, err = again(tmp_path)
    assert (status, out) == (2, "")
    assert "expected the log of a run" in err
    (tmp_path / "stretto.db").write_text("")
    status, out, err = again(tmp_path)
    assert (status, out) == (1, "")
    assert "schema" in err
    with sqlite3.connect(tmp_path / "stretto.db") as log:
        assert log.execute("SELECT name FROM sqlite_master").fetchall() == []
    log.close()
