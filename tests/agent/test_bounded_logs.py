"""What a job writes takes only so much of a machine's disk, and whoever reads it goes on where he was."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.agent import log_bounds, worker_table
from stretto.agent.agent import state_folder
from stretto.agent.log_bounds import LEAST_KEPT_BYTES, NOTICE, LogBound, attempts_of, taken_by
from stretto.agent.node import Node
from stretto.agent.server import read_piece
from stretto.agent.worker_table import WorkerTable

from .agents import Agent, until

MIB = 1 << 20
LINE = "%039d\n"  # of 40 bytes


def a_log(folder: Path, name: str, lines: int, at_s: float) -> Path:
    """A log of numbered lines that was last written to at a time."""
    path = folder / name / "log"
    path.parent.mkdir()
    path.write_text("".join(LINE % number for number in range(lines)))
    os.utime(path, (at_s, at_s))
    return path


def test_the_oldest_of_a_jobs_logs_is_cut_first_and_every_offset_stays(tmp_path: Path) -> None:
    old, new = a_log(tmp_path, "1.1.0", 20_000, 1.0), a_log(tmp_path, "1.2.0", 20_000, 2.0)
    before = old.read_bytes()
    LogBound(MIB + MIB // 2).keep([new, old])
    assert taken_by(old) + taken_by(new) <= MIB + MIB // 2
    assert taken_by(new) >= new.stat().st_size
    assert old.stat().st_size == len(before)
    begin, data, size = read_piece(old, 0, 10 * MIB)
    assert (begin > 0, size) == (True, len(before))
    assert data.startswith(NOTICE)
    assert data[len(NOTICE) :] == before[begin + len(NOTICE) :]
    middle = begin + 10_000
    assert read_piece(old, middle, 40) == (middle, before[middle : middle + 40], size)
    assert read_piece(old, -40, 100)[1] == before[-40:]
    assert read_piece(new, 0, 40)[1] == before[:40]


def test_logs_within_the_bound_and_the_end_of_each_are_kept(tmp_path: Path) -> None:
    logs = [a_log(tmp_path, f"1.{number}.0", 10_000, number) for number in range(1, 4)]
    LogBound(2 * MIB).keep(logs)
    LogBound(0).keep(logs)
    assert all(read_piece(path, 0, 1)[0] == 0 for path in logs)
    LogBound(1).keep([*logs, tmp_path / "missing" / "log"])
    for path in logs:
        assert LEAST_KEPT_BYTES <= taken_by(path) < 2 * LEAST_KEPT_BYTES
        assert path.read_bytes().endswith((LINE % 9_999).encode())
        assert path.read_bytes().count(NOTICE) == 1


def test_a_disk_that_cannot_drop_a_part_of_a_file_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(file: int, end: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(log_bounds, "punch", refuse)
    log = a_log(tmp_path, "1.1.0", 20_000, 1.0)
    bound = LogBound(1)
    for _ in range(3):
        bound.keep([log])
    assert capsys.readouterr().err.count("cannot drop a part of a log") == 1
    assert read_piece(log, 0, 40)[1] == (LINE % 0).encode()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Agent]:
    """An agent that keeps 1 MiB of a job, in a directory that lies elsewhere."""
    (tmp_path / "other-disk").mkdir(mode=0o700)
    (tmp_path / "agent").symlink_to(tmp_path / "other-disk")
    agent = Agent(tmp_path / "agent").begin("--max-log-bytes", str(MIB))
    try:
        yield agent
    finally:
        agent.end()


WRITE = "for i in $(seq 0 10000 190000); do seq -f %039g $i $((i + 9999)); sleep 0.1; done"


@pytest.mark.processes
def test_who_follows_a_log_that_is_cut_reads_on_and_to_its_end(small: Agent) -> None:
    small.start("1.1.0", f"{WRITE}; while [ ! -e ../../go ]; do sleep 0.02; done; echo end")
    log = small.state / "runs" / "1.1.0" / "log"
    offset, heard = 0, b""
    while not heard.endswith(b"end\n"):
        answer = small.ask("GET", "/v1/workers/1.1.0/log", offset=offset, wait_s=10)
        begin, offset_after = int(answer.headers["Stretto-Offset"]), int(answer.headers["Stretto-Next"])
        assert begin >= offset
        assert offset_after == begin + len(answer.content)
        offset, heard = offset_after, heard[-100:] + answer.content
        if offset >= 20 * 10_000 * 40 and not (small.state / "go").exists():
            until(lambda: taken_by(log) <= MIB)
            (small.state / "go").touch()
    assert (LINE % 199_999).encode() in heard
    assert small.ended("1.1.0")["status"] == 0
    late = small.ask("GET", "/v1/workers/1.1.0/log", offset=0)
    assert int(late.headers["Stretto-Offset"]) > 0
    assert late.content.startswith(NOTICE)


@pytest.mark.processes
def test_earlier_attempts_count_with_the_present_one(small: Agent) -> None:
    small.start("1.1.0", "seq -f %039g 0 19999")
    small.ended("1.1.0")
    small.ask("DELETE", "/v1/workers/1.1.0")
    small.start("1.2.0", "seq -f %039g 0 14999; exec sleep 600")
    small.start("12.1.0", "seq -f %039g 0 19999; exec sleep 600")  # of another job
    old, new, other = (
        small.state / where / "log" for where in ("forgotten/1.1.0", "runs/1.2.0", "runs/12.1.0")
    )
    until(lambda: new.exists() and new.stat().st_size == 600_000 and taken_by(old) + taken_by(new) <= MIB)
    until(lambda: other.exists() and other.stat().st_size == 800_000)
    assert small.log("1.1.0").startswith(NOTICE.decode())
    assert small.log("1.2.0").startswith(LINE % 0)
    assert small.log("12.1.0").startswith(LINE % 0)


@pytest.mark.processes
def test_a_worker_forgotten_while_its_jobs_logs_are_looked_for_is_found_with_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbounded = Node("n1", "t", 1, max_log_bytes=0)  # whose table looks for no logs of its own accord
    workers = WorkerTable(state_folder(tmp_path / "state"), unbounded, "life", apart=True)
    start = {"job": "j", "gpus": [0], "command": "true", "env": {}, "cwd": "", "grace_s": 1.0}
    try:
        for attempt in (2, 3):
            workers.start(f"j.{attempt}.0", start, {"PATH": os.defpath})
            until(lambda: all(each.ended for each in workers.known.values()))
        first, second = (workers.runs / f"j.{attempt}.0" / "log" for attempt in (2, 3))

        def look_and_forget(folder: Path, job: str) -> list[Path]:
            found = list(attempts_of(folder, job))
            workers.forget("j.2.0")
            return found

        monkeypatch.setattr(worker_table, "attempts_of", look_and_forget)
        assert workers.logs_of_jobs() == [[first, second]]
        monkeypatch.undo()
        assert workers.logs_of_jobs() == [[second, workers.forgotten / "j.2.0" / "log"]]
    finally:
        workers.close()
