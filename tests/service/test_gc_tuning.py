"""A start looks for no cyclic garbage: it makes much that stays."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stretto.jobfile import JobSpec
from stretto.service.eventlog import Unrecorded, open_store
from stretto.service.gc_tuning import look_at_the_young, put_off
from stretto.service.recovery import Recovery
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state import events as happened
from stretto.service.state.events import body_of, subject_of

pytestmark = pytest.mark.sqlite

JOBS = 200


@pytest.fixture
def looks() -> Iterator[list[str]]:
    """Every look, where one is due after each object."""
    seen: list[str] = []

    def note(phase: str, _: dict[str, Any]) -> None:
        seen.append(phase)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        yield seen
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)


def test_the_young_are_looked_at_from_then_on_and_what_was_there_is_not() -> None:
    before = gc.get_threshold()
    try:
        with put_off():
            there: list[list[int]] = [[] for _ in range(JOBS)]
            look_at_the_young()
            assert gc.isenabled()
            assert gc.get_freeze_count() > len(there)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_nothing_is_looked_for_while_the_log_is_read(looks: list[str], tmp_path: Path) -> None:
    configured = happened.Configured("fifo")
    spec = JobSpec.from_json({"run": "true"}).to_json()
    events = [happened.Began(1.7e9), configured, happened.NodeSeen("n0", "a100", 4)]
    events += [happened.Submitted(str(number + 1), spec, "ada") for number in range(JOBS)]
    with open_store(tmp_path / "log.db") as store:
        rows = [Unrecorded(0.0, type(one).__name__, subject_of(one), body_of(one)) for one in events]
        store.append(rows, store.last())
        scheduler = scheduler_of(configured)
        looks.clear()
        recovery = Recovery(store, b"k" * 32, configured, scheduler)
        recovery.read_on()
        state, _ = recovery.finished()
        meanwhile = len(looks)
    assert len(state.jobs) == JOBS
    assert meanwhile < JOBS / 5, "only before, between and after its three steps"
    assert gc.isenabled()
