"""What the log promises to its one writer and to its readers."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.model import InputError
from stretto.service.eventlog import (
    LogMoved,
    Recorded,
    Store,
    StoredState,
    Unrecorded,
    log,
    open_store,
    recorded,
)

pytestmark = pytest.mark.sqlite

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def an_event(number: int = 0, kind: str = "Reported", subject: str = "j", **body: Any) -> Unrecorded:
    return Unrecorded(1_000.25 + number, kind, subject, {"number": number, **body})


def texts(events: Iterator[Recorded]) -> list[str]:
    """With every digit: 1.0 and 1 are equal in Python."""
    return [json.dumps([event.seq, event.at_s, event.kind, event.subject, event.body]) for event in events]


def test_what_is_appended_is_read_back(store: Store) -> None:
    bodies: list[dict[str, Any]] = [
        {"float": 1e2, "whole": 100, "zero": -0.0, "tenth": 0.1, "large": 2**70, "tiny": 5e-324},
        {"z": 1, "a": [[], {}, None, True, "", "\0", "\ud800", "ß漢🎼", "line\nbreak"]},
        {},
    ]
    events = [Unrecorded(1.7e9 + 1 / 3, "Sübmitted", "job 'x'; --", body) for body in bodies]
    assert store.append(events, after=0) == (1, 2, 3)
    assert texts(store.read()) == texts(iter(recorded(events, after=0)))
    assert [event.body for event in store.read()] == bodies


@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(st.dictionaries(st.text(), JSON, max_size=4), min_size=1, max_size=4))
def test_any_json_comes_back_to_the_last_digit(
    bodies: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_store(tmp_path_factory.getbasetemp() / "any.db") as opened:
        after = opened.last()
        events = [Unrecorded(0.5, "K", "", body) for body in bodies]
        opened.append(events, after)
        assert texts(opened.read(after)) == texts(iter(recorded(events, after)))


def test_numbers_go_on_without_gaps(store: Store) -> None:
    assert store.last() == 0
    assert store.append([an_event(1), an_event(2)], after=0) == (1, 2)
    assert store.append([], after=2) == ()
    assert store.append([an_event(3)], after=2) == (3,)
    assert store.last() == 3


@pytest.mark.parametrize("after", [0, 1, 3, 99])
def test_a_writer_that_missed_something_writes_nothing(store: Store, after: int) -> None:
    store.append([an_event(1), an_event(2)], after=0)
    with pytest.raises(LogMoved, match=f"ends at 2, not at {after}") as moved:
        store.append([an_event(3), an_event(4)], after=after)
    assert (moved.value.after, moved.value.last) == (after, 2)
    assert [event.body["number"] for event in store.read()] == [1, 2]


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        pytest.param({}, [1, 2, 3, 4, 5, 6], id="everything"),
        pytest.param({"after": 4}, [5, 6], id="behind a number"),
        pytest.param({"after": 6}, [], id="behind the end"),
        pytest.param({"kinds": ["A"]}, [1, 4], id="one kind"),
        pytest.param({"kinds": {"A", "B"}}, [1, 2, 4, 5], id="two kinds"),
        pytest.param({"kinds": []}, [], id="no kind"),
        pytest.param({"subjects": {"x"}}, [1, 3, 5], id="one subject"),
        pytest.param({"subjects": {""}}, [], id="the empty subject is one, too"),
        pytest.param({"kinds": ["A"], "subjects": {"y"}, "after": 1}, [4], id="all together"),
        pytest.param({"limit": 3}, [1, 2, 3], id="so many"),
        pytest.param({"limit": 4, "after": 1}, [2, 3, 4, 5], id="so many behind a number"),
        pytest.param({"limit": 0}, [], id="none"),
    ],
)
@pytest.mark.parametrize("at_once", [2, 3, 1_000])
def test_reading_finds(
    store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int, asked: dict[str, Any], numbers: list[int]
) -> None:
    monkeypatch.setattr(log, "READ_AT_ONCE", at_once)
    kinds, subjects = "ABCABC", "xyxyxy"
    store.append(
        [an_event(n, kind, about) for n, (kind, about) in enumerate(zip(kinds, subjects, strict=True))], 0
    )
    assert [event.seq for event in store.read(**asked)] == numbers


def test_a_reader_sees_what_is_appended_while_it_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "READ_AT_ONCE", 2)
    store.append([an_event(1), an_event(2)], after=0)
    reading = store.read()
    first = next(reading)
    store.append([an_event(3)], after=2)  # no lock of the reader's is in the way
    assert [first.seq, *(event.seq for event in reading)] == [1, 2, 3]


def test_many_threads_that_append_to_one_log_write_each_event_once(store: Store) -> None:
    def insist(thread: int) -> int:
        refused = 0
        for number in range(15):
            while True:
                try:
                    store.append([an_event(number, subject=f"t{thread}") for _ in range(2)], store.last())
                except LogMoved:
                    refused += 1
                else:
                    break
        return refused

    with ThreadPoolExecutor(4) as threads:
        refused = sum(threads.map(insist, range(4)))
    events = list(store.read())
    assert [event.seq for event in events] == list(range(1, 121))
    for thread in range(4):
        own = [event.body["number"] for event in events if event.subject == f"t{thread}"]
        assert own == [number for number in range(15) for _ in range(2)]
    assert refused > 0  # else this has shown nothing


@pytest.mark.processes
def test_two_processes_that_append_to_one_log_write_each_event_once(source: str) -> None:
    program = (
        "import sys\n"
        "from stretto.service.eventlog import *\n"
        "store = open_store(sys.argv[1])\n"
        "for number in range(40):\n"
        "    while True:\n"
        "        try: store.append([Unrecorded(0.0, 'K', sys.argv[2], {'n': number})], store.last())\n"
        "        except LogMoved: continue\n"
        "        break\n"
    )
    with open_store(source) as opened:
        writers = [subprocess.Popen([sys.executable, "-c", program, source, name]) for name in "ab"]
        assert [writer.wait(60) for writer in writers] == [0, 0]
        events = list(opened.read())
    assert [event.seq for event in events] == list(range(1, 81))
    for name in "ab":
        assert [event.body["n"] for event in events if event.subject == name] == list(range(40))


def test_the_newest_three_states_are_kept(store: Store) -> None:
    assert store.newest_state() is None
    store.append([an_event(number) for number in range(9)], after=0)
    for seq in (2, 4, 6, 8):
        store.keep_state(seq, bytes([seq, 0, 255]))
    store.keep_state(6, b"again")
    assert store.newest_state() == StoredState(8, b"\x08\x00\xff")
    assert store.newest_state(up_to=7) == StoredState(6, b"again")
    assert store.newest_state(up_to=4) == StoredState(4, b"\x04\x00\xff")
    assert store.newest_state(up_to=3) is None


@pytest.mark.parametrize("seq", [-1, 3])
def test_a_state_of_what_is_not_in_the_log_is_refused(store: Store, seq: int) -> None:
    store.append([an_event(1), an_event(2)], after=0)
    with pytest.raises(InputError, match="an event from 0 to 2"):
        store.keep_state(seq, b"")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param((math.nan, "K", "s", {}), "at_s", id="no time"),
        pytest.param((math.inf, "K", "s", {}), "at_s", id="endless time"),
        pytest.param((0.0, "K\0", "s", {}), "kind", id="a kind with NUL"),
        pytest.param((0.0, "K" * 65, "s", {}), "kind", id="a long kind"),
        pytest.param((0.0, "K", "\ud800", {}), "subject", id="a subject beyond UTF-8"),
        pytest.param((0.0, "K", "s" * 256, {}), "subject", id="a long subject"),
        pytest.param((0.0, "K", "s", {"x": math.nan}), "JSON", id="a body with NaN"),
        pytest.param((0.0, "K", "s", {"x": {1, 2}}), "JSON", id="a body with a set"),
        pytest.param((0.0, "K", "s", {(1, 2): 3}), "JSON", id="a body with a key that is no text"),
    ],
)
def test_an_event_is_refused_with(values: tuple[Any, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Unrecorded(*values)


def test_a_log_outlives_its_store(source: str) -> None:
    with open_store(source) as first:
        first.append([an_event(1)], after=0)
    with open_store(source) as second:
        second.append([an_event(2)], after=1)
    with open_store(source, upgrade=False) as third:
        assert [event.body["number"] for event in third.read()] == [1, 2]


def test_only_its_owner_may_read_a_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "state" / "log.db") as opened:
        opened.append([an_event(1)], after=0)
        opened.lead().release()
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert set(modes) >= {"log.db", "log.db-wal", "log.db.lock"}
    assert set(modes.values()) == {0o600}
