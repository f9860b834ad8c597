"""All objects of one kind are known, whatever becomes of lists and watches."""

from pathlib import Path

import pytest
from tests.backends.kubernetes.in_memory import Seen, api_in_memory, following, until
from tests.backends.kubernetes.memory_server import a_pod

from stretto.backends.kubernetes import api as api_module
from stretto.backends.kubernetes.api import PODS

pytestmark = pytest.mark.sockets


async def test_what_comes_changes_and_goes_is_told_in_order(tmp_path: Path) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        server.put("pods", a_pod("a", "n"))
        async with following(Seen(api)) as seen:
            server.put("pods", a_pod("b", "n"))
            server.change("pods", "a", {"status": {"phase": "Failed"}}, "others")
            server.remove("pods", "b", "others")
            await until(lambda: len(seen.changes) == 4)
        assert seen.changes == ["+a", "+b", "~a", "-b"]
        assert seen.informer.items[("others", "a")].status.phase == "Failed"


async def test_a_long_list_is_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "PAGE", 2)
    async with api_in_memory(tmp_path) as (server, api):
        for name in "abcde":
            server.put("pods", a_pod(name, "n"))
        items, version = await api.list(PODS)
    assert [item.metadata.name for item in items] == [*"abcde"]
    assert version == str(server.version)
    assert len(server.of("GET", "pods")) == 3


async def test_a_page_that_has_expired_begins_the_list_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "PAGE", 2)
    async with api_in_memory(tmp_path) as (server, api):
        for name in "abc":
            server.put("pods", a_pod(name, "n"))
        answer = server.answer

        def answer_late(call):  # type: ignore[no-untyped-def]
            """Versions are forgotten just before the second page is asked for."""
            if "continue" in call.query and not server.oldest:
                server.forget_versions()
            return answer(call)

        monkeypatch.setattr(server, "answer", answer_late)
        async with following(Seen(api)) as seen:
            assert seen.names == [*"abc"]
            assert seen.informer.lists == 2


async def test_a_version_that_is_forgotten_is_a_new_list_that_tells_what_vanished(tmp_path: Path) -> None:
    """Watches of servers end; the one that follows may be refused with 410, as a status or as an event."""
    async with api_in_memory(tmp_path) as (server, api):
        for name in "abc":
            server.put("pods", a_pod(name, "n"))
        async with following(Seen(api)) as seen:
            await until(lambda: server.watching.get("pods"))
            server.remove("pods", "b", "others", told=False)
            server.put("pods", a_pod("d", "n"), told=False)
            server.forget_versions()
            server.cut()
            await until(lambda: "+d" in seen.changes)
            assert seen.changes[3:] == ["-b", "+d"]
            server.remove("pods", "c", "others", told=False)
            server.fail("WATCH", "pods", 410)
            server.cut()
            await until(lambda: "-c" in seen.changes)
        assert seen.names == ["a", "d"]
        assert seen.informer.lists == 3


async def test_an_object_that_was_made_anew_by_the_same_name_is_another(tmp_path: Path) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        server.put("pods", a_pod("a", "n"))
        async with following(Seen(api)) as seen:
            first = seen.informer.items[("others", "a")].metadata.uid
            server.remove("pods", "a", "others")
            server.put("pods", a_pod("a", "n"))
            await until(lambda: len(seen.changes) == 3)
            assert seen.informer.items[("others", "a")].metadata.uid != first


async def test_one_that_was_made_anew_while_nobody_watched_is_told_as_gone_and_new(tmp_path: Path) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        server.put("pods", a_pod("a", "n"))
        async with following(Seen(api)) as seen:
            await until(lambda: server.watching.get("pods"))
            server.remove("pods", "a", "others", told=False)
            server.put("pods", a_pod("a", "m"), told=False)
            server.forget_versions()
            server.cut()
            await until(lambda: len(seen.changes) > 1)
            assert seen.changes == ["+a", "-a", "+a"]


async def test_bookmarks_keep_the_version_fresh_so_that_no_new_list_is_needed(tmp_path: Path) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        server.bookmark_s = 0.05
        async with following(Seen(api)) as seen:
            server.put("nodes", {"metadata": {"name": "n"}})  # versions count all kinds of objects
            await until(lambda: seen.informer.version == str(server.version))
            server.forget_versions()
            server.cut()
            await until(lambda: seen.informer.watches == 2 and server.watching.get("pods"))
            server.put("pods", a_pod("a", "n"))
            await until(lambda: seen.changes)
        assert seen.informer.lists == 1
        assert all(
            call.query["allowWatchBookmarks"] == "true" for call in server.calls if "watch" in call.query
        )


async def test_a_watch_that_dies_in_silence_is_given_up_and_what_was_missed_is_told(tmp_path: Path) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        server.put("pods", a_pod("a", "n"))
        async with following(Seen(api, silence_s=0.3)) as seen:
            await until(lambda: server.watching.get("pods"))
            server.is_silent = True
            server.remove("pods", "a", "others")
            await until(lambda: seen.informer.watches >= 2)
            assert seen.changes == ["+a"]
            server.is_silent = False
            await until(lambda: seen.changes == ["+a", "-a"])
        assert seen.informer.lists == 1


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_watch_that_a_busy_server_refuses_goes_on_where_it_was(tmp_path: Path, code: int) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        async with following(Seen(api)) as seen:
            await until(lambda: server.watching.get("pods"))
            server.fail("WATCH", "pods", code, times=2)
            server.cut()
            server.put("pods", a_pod("a", "n"))
            await until(lambda: seen.changes == ["+a"])
        assert seen.informer.lists == 1
        assert not server.faults


async def test_an_answer_that_is_not_of_kubernetes_is_no_answer(tmp_path: Path) -> None:
    """A proxy on the way shows a page of its own."""
    async with api_in_memory(tmp_path) as (server, api):
        server.put("pods", a_pod("a", "n"))
        server.answer_with("GET", "pods", b"<html>sign in</html>")
        async with following(Seen(api)) as seen:
            assert seen.names == ["a"]
            assert seen.informer.lists == 2


async def test_what_a_call_has_shown_already_is_not_undone_by_an_older_event(tmp_path: Path) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        server.put("pods", a_pod("a", "n"))
        async with following(Seen(api)) as seen:
            await until(lambda: server.watching.get("pods"))
            newer = await api.patch(PODS, "others", "a", {"metadata": {"annotations": {"k": "2"}}})
            older = seen.informer.items[("others", "a")]
            seen.informer.put(newer)
            seen.informer.put(older)
            assert seen.informer.items[("others", "a")].metadata.annotations == {"k": "2"}


async def test_a_failure_is_known_and_counts_as_stale_once_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_in_memory(tmp_path) as (server, api), following(Seen(api)) as seen:
        server.fail("WATCH", "pods", 500, "etcd is away", times=10**6)
        server.cut()
        await until(lambda: "etcd is away" in seen.informer.failure)
        assert not seen.informer.is_stale
        monkeypatch.setattr("stretto.backends.kubernetes.informer.STALE_S", 0.0)
        assert seen.informer.is_stale
        server.faults.clear()
        await until(lambda: server.watching.get("pods"))
        await until(lambda: not seen.informer.failure)  # though nothing has changed meanwhile
