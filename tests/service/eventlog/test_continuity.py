"""A log that has lost something, or was changed, is noticed; whoever goes on without it says so once."""

from pathlib import Path

import pytest
from sqlalchemy import text

from stretto.service.eventlog import Gap, LogDamaged, Mark, Reached, Store, Unrecorded, open_store, reached_in

pytestmark = pytest.mark.sqlite


def written(store: Store, count: int) -> Store:
    """A log of so many events, in transactions of two."""
    for after in range(0, count, 2):
        store.append([Unrecorded(0.1 * after, "K", "j", {"number": after}) for _ in range(2)], after)
    return store


def change(store: Store, statement: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(text(statement))


def numbers(store: Store) -> list[int]:
    return [one.seq for one in store.read(verify=True)]


@pytest.mark.processes
def test_a_whole_log_is_found_whole(store: Store) -> None:
    written(store, 6).check_whole(Reached(6, store.tip.chain.hex()))
    assert (numbers(store), store.damage()) == ([1, 2, 3, 4, 5, 6], [])
    assert [one.seq for one in store.read(after=3, verify=True)] == [4, 5, 6]


@pytest.mark.parametrize(
    ("damage", "said", "gaps"),
    [
        ("DELETE FROM stretto_log WHERE seq = 3", "event 3 missing", [Gap(3, 3)]),
        ("DELETE FROM stretto_log WHERE seq BETWEEN 2 AND 4", "events 2 to 4 missing", [Gap(2, 4)]),
        ("DELETE FROM stretto_log WHERE seq = 1", "event 1 missing", [Gap(1, 1)]),
    ],
)
def test_a_missing_event_is_named_at_once_and_when_it_is_read(
    store: Store, damage: str, said: str, gaps: list[Gap]
) -> None:
    change(written(store, 6), damage)
    with pytest.raises(LogDamaged, match=said):
        store.check_whole(None)
    with pytest.raises(LogDamaged, match=said):
        numbers(store)
    assert store.damage() == gaps


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE stretto_log SET body = '{' WHERE seq = 3", "the body of event 3 is no JSON object"),
        ("UPDATE stretto_log SET body = '[]' WHERE seq = 3", "the body of event 3 is no JSON object"),
        ("UPDATE stretto_log SET body = '{}' WHERE seq = 3", "event 3 is not what was written"),
        ("UPDATE stretto_log SET at_s = 7 WHERE seq = 3", "event 3 is not what was written"),
        ("UPDATE stretto_log SET subject = 'x' WHERE seq = 3", "event 3 is not what was written"),
    ],
)
def test_an_event_that_was_changed_is_named_when_it_is_read(store: Store, damage: str, said: str) -> None:
    change(written(store, 6), damage)
    with pytest.raises(LogDamaged, match="event 3") as found:
        numbers(store)
    if "JSON" in said:
        with pytest.raises(LogDamaged, match=said):
            list(store.read())
    else:
        assert said in str(found.value)
    assert "\n" not in str(found.value)
    assert store.damage() == [Gap(3, 3)]


def test_a_log_that_lost_its_end_or_is_another_one_is_told_by_the_mark(store: Store) -> None:
    reached = Reached(6, written(store, 6).tip.chain.hex())
    change(store, "DELETE FROM stretto_log WHERE seq > 4")
    with pytest.raises(LogDamaged, match="ends at event 4, and had come to event 6"):
        store.check_whole(reached)
    store.append([Unrecorded(9.0, "K", "j", {"another": number}) for number in range(4)], after=4)
    with pytest.raises(LogDamaged, match="event 6 is not the one that was written: it is another log"):
        store.check_whole(reached)
    store.check_whole(None)


def test_whoever_goes_on_without_what_is_lost_is_not_told_again(store: Store) -> None:
    change(written(store, 8), "DELETE FROM stretto_log WHERE seq IN (2, 3)")
    change(store, "UPDATE stretto_log SET body = '{' WHERE seq = 5")
    store.keep_state(1, b"before")
    store.keep_state(8, b"after")
    store.go_on_without(store.damage())
    assert store.gaps() == [Gap(2, 3), Gap(5, 5)]
    store.check_whole(None)
    assert numbers(store) == [1, 4, 6, 7, 8]
    kept = store.newest_state()
    assert kept is not None
    assert kept.seq == 1
    store.append([Unrecorded(9.0, "K", "j", {})], after=8)
    store.check_whole(Reached(9, store.tip.chain.hex()))
    change(store, "DELETE FROM stretto_log WHERE seq = 7")
    with pytest.raises(LogDamaged, match="event 7 missing"):
        store.check_whole(None)


def test_events_of_an_older_version_have_no_digest_and_are_read_all_the_same(store: Store) -> None:
    change(written(store, 4), "UPDATE stretto_log SET chain = NULL")
    store.append([Unrecorded(9.0, "K", "j", {}), Unrecorded(9.0, "K", "j", {})], after=4)
    assert (numbers(store), store.damage()) == ([1, 2, 3, 4, 5, 6], [])
    change(store, "UPDATE stretto_log SET kind = 'L' WHERE seq = 6")
    assert store.damage() == [Gap(6, 6)]


def test_a_log_that_is_gone_is_not_begun_anew_by_itself(source: str, tmp_path: Path) -> None:
    with pytest.raises(LogDamaged, match="it is gone"):
        open_store(source, begun=True)
    if "://" not in source:
        assert not Path(source).exists()
    written(open_store(source), 2).close()
    with open_store(source, begun=True) as store:
        assert store.last() == 2


def test_a_mark_says_what_was_noted_last(tmp_path: Path) -> None:
    path = tmp_path / "log.mark"
    assert reached_in(path) is None
    mark = Mark(path)
    assert reached_in(path) == Reached(0)
    for reached in (Reached(2**63 - 1, "ab" * 16, 2**63 - 1), Reached(7, "", 3)):
        mark.note(reached)
        assert reached_in(path) == reached
    mark.close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 256, b'{"seq": 9} 00000000\n'])
def test_a_mark_that_cannot_be_read_is_no_evidence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.mark").write_bytes(content)
    assert reached_in(tmp_path / "log.mark") is None
