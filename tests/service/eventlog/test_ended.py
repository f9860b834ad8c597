"""The table of ended jobs, on both databases: written with the log, found by whatever people know."""

from dataclasses import replace

import pytest

from stretto.service.eventlog import EndedJob, LogMoved, Store, Unrecorded

pytestmark = pytest.mark.sqlite

EVENT = Unrecorded(0.0, "K", "", {})


def a_row(number: int, **more: object) -> EndedJob:
    row = EndedJob(number, str(number), "ada", "train", "q", "", "", "COMPLETED", 10.0 * number, '{"a":"ä"}')
    return replace(row, **more)  # type: ignore[arg-type]


def numbers(rows: list[EndedJob]) -> list[int]:
    return [row.number for row in rows]


def test_rows_come_with_their_events_or_not_at_all(store: Store) -> None:
    store.append([EVENT], 0, [a_row(1)])
    with pytest.raises(LogMoved):
        store.append([EVENT], 0, [a_row(2)])
    assert store.ended.of(["1", "2"]) == [a_row(1)]
    assert store.ended.count() == 1


def test_a_row_that_comes_again_replaces_the_one_before(store: Store) -> None:
    store.ended.add([a_row(1), a_row(2)])
    store.ended.add([a_row(2, state="FAILED")])
    assert {row.number: row.state for row in store.ended.of(["1", "2"])} == {1: "COMPLETED", 2: "FAILED"}
    store.ended.drop(["1"])
    assert store.ended.count() == 1
    store.ended.clear()
    assert store.ended.count() == 0


def test_jobs_are_found_by_id_array_name_and_key(store: Store) -> None:
    table = store.ended
    table.add([a_row(1, key="k"), a_row(2, owner="bob", key="k"), a_row(3), a_row(4, name="other")])
    table.add([a_row(number, job=f"7_{number}", array="7") for number in (7, 5, 6)])
    assert numbers(table.tasks_of("7")) == [5, 6, 7]
    assert table.tasks_of("") == []
    assert (table.by_key("ada", "k"), table.by_key("ada", "")) == (a_row(1, key="k"), None)
    newest = table.newest_named("ada", "train")
    assert newest is not None
    assert newest.number == 7
    assert table.newest_named("bob", "other") is None
    assert table.owners_of(["1", "2", "99"]) == {"1": "ada", "2": "bob"}
    assert len(table.of([str(number) for number in range(2_000)])) == 4


def test_pages_go_on_behind_a_number_in_either_order_and_hold_what_was_asked_for(store: Store) -> None:
    table = store.ended
    table.add([a_row(number, owner="ada" if number % 2 else "bob") for number in range(1, 8)])
    table.add([a_row(8, queue="", state="FAILED")])
    assert numbers(table.page(3)) == [1, 2, 3]
    assert numbers(table.page(3, after=3)) == [4, 5, 6]
    assert numbers(table.page(3, newest_first=True)) == [8, 7, 6]
    assert numbers(table.page(9, after=6, newest_first=True)) == [5, 4, 3, 2, 1]
    assert numbers(table.page(9, owner="bob")) == [2, 4, 6]
    assert numbers(table.page(9, queue="")) == numbers(table.page(9, states={"FAILED"})) == [8]
    assert table.page(9, states={"CANCELLED"}) == []


def test_jobs_whose_logs_are_there_come_by_their_ends(store: Store) -> None:
    table = store.ended
    table.add(
        [a_row(1, ended_s=50.0), a_row(2, ended_s=20.0), a_row(3, ended_s=20.0), a_row(4, ended_s=90.0)]
    )
    assert table.with_logs(60.0, (-1.0, -1), 9) == [(20.0, 2, "2"), (20.0, 3, "3"), (50.0, 1, "1")]
    assert table.with_logs(60.0, (20.0, 2), 1) == [(20.0, 3, "3")]
    table.note_logs_deleted(["2", "3"], 99.5)
    assert table.with_logs(60.0, (-1.0, -1), 9) == [(50.0, 1, "1")]
    assert {row.logs_deleted_s for row in table.of(["1", "2", "3"])} == {None, 99.5}
