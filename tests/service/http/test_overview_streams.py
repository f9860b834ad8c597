"""Streams of the overview: pages that see the same are told the same, which is worked out once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import PATIENCE_S, Rig, a_rig, play

from stretto.service.http import overview_streams
from stretto.service.http.auth import Caller, Role
from stretto.service.http.overview import Overview
from stretto.service.http.overview_streams import OverviewStreams
from stretto.service.http.sse import Feed

pytestmark = [pytest.mark.sqlite, pytest.mark.sockets]

ADA, OLGA = Caller("ada", Role.USER, None), Caller("olga", Role.OPERATOR, None)
HELD = "run: 'true'\nhold: true"


def played(path: Path, story: Callable[[Rig, OverviewStreams], Awaitable[None]]) -> None:
    """A story over a service whose jobs stay as they are."""

    async def run() -> None:
        async with a_rig(path, decides=False) as rig:
            await story(rig, OverviewStreams(rig.service, Feed(rig.service.log_writer)))

    play(run)


class Page:
    """What a page knows by what its stream has told it."""

    def __init__(self, texts: AsyncIterator[str]) -> None:
        self.texts, self.jobs, self.kinds = texts, dict[str, str](), list[str]()

    async def hear(self, until: Callable[["Page"], Any]) -> "Page":
        """Listen until something holds."""
        while not self.kinds or not until(self):
            async with asyncio.timeout(PATIENCE_S):
                text = await anext(self.texts)
            kind, data = text.removesuffix("\n\n").split("\n", 1)
            self.kinds.append(kind.removeprefix("event: "))
            told = json.loads(data.removeprefix("data: "))
            if self.kinds[-1] == "whole":
                self.jobs = {}
            self.jobs |= {job["id"]: job["state"] for job in told["jobs"]}
        return self


@contextlib.asynccontextmanager
async def opened(streams: OverviewStreams, caller: Caller, pages: int = 1) -> AsyncIterator[list[Page]]:
    """Pages that have been told everything."""
    texts = [streams.stream(caller, follow=True) for _ in range(pages)]
    try:
        yield [await Page(each).hear(lambda page: True) for each in texts]
    finally:
        for each in texts:
            await each.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("pages", [1, 12])
def test_what_changed_is_worked_out_once_for_all_pages(
    tmp_path: Path, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out: list[int] = []
    changed = Overview.changed

    async def counted(self: Overview, entries: Any) -> dict[str, Any]:
        worked_out.append(1)
        return await changed(self, entries)

    monkeypatch.setattr(Overview, "changed", counted)

    async def story(rig: Rig, streams: OverviewStreams) -> None:
        await rig.submit("ada", text=HELD)
        async with opened(streams, OLGA, pages) as all_pages:
            later = await rig.submit("ada", text=HELD)
            for page in all_pages:
                await page.hear(lambda page: later in page.jobs)
            assert all(page.jobs == all_pages[0].jobs for page in all_pages)
        assert len(worked_out) <= 2  # events of one submission may come in two parts

    played(tmp_path, story)


def test_who_sees_other_jobs_is_told_other_things(tmp_path: Path) -> None:
    async def story(rig: Rig, streams: OverviewStreams) -> None:
        of_ada = await rig.submit("ada", text=HELD)
        async with opened(streams, ADA) as (of_user,), opened(streams, OLGA) as (of_operator,):
            of_bob = await rig.submit("bob", text=HELD)
            second = await rig.submit("ada", text=HELD)
            await of_user.hear(lambda page: second in page.jobs)
            await of_operator.hear(lambda page: second in page.jobs)
            assert set(of_user.jobs) == {of_ada, second}
            assert set(of_operator.jobs) == {of_ada, of_bob, second}

    played(tmp_path, story)


@pytest.mark.parametrize("fresh_s", [0.0, 1_000.0])
def test_a_page_that_comes_later_knows_what_those_before_it_know(
    tmp_path: Path, fresh_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_streams, "FRESH_S", fresh_s)

    async def story(rig: Rig, streams: OverviewStreams) -> None:
        first, second = [await rig.submit("ada", text=HELD) for _ in range(2)]
        async with opened(streams, OLGA) as (early,):
            third = await rig.submit("ada", text=HELD)
            await early.hear(lambda page: third in page.jobs)
            async with rig.client("ada") as ada:
                await ada.post(f"/api/v1/jobs/{first}/cancel", json={})
            async with opened(streams, OLGA) as (late,):
                # The cancelled one is told to those who knew it, also where everything was written anew.
                for page in (early, late):
                    await page.hear(lambda page: page.jobs.get(first, "CANCELLED") == "CANCELLED")
                    assert {name: page.jobs[name] for name in (second, third)} == {
                        second: "PENDING",
                        third: "PENDING",
                    }

    played(tmp_path, story)


def test_what_is_written_anew_says_also_what_is_no_more(tmp_path: Path) -> None:
    async def story(rig: Rig, streams: OverviewStreams) -> None:
        overview = Overview(rig.service, Feed(rig.service.log_writer), OLGA)
        first, second = [await rig.submit("ada", text=HELD) for _ in range(2)]
        await overview.whole()
        async with rig.client("ada") as ada:
            await ada.post(f"/api/v1/jobs/{first}/cancel", json={})
        third = await rig.submit("ada", text=HELD)
        await rig.until(lambda: rig.service.state.jobs[first].has_ended)
        whole, change = await overview.renewed()
        assert [job["id"] for job in whole["jobs"]] == [second, third]
        assert {job["id"]: job["state"] for job in change["jobs"]} == {first: "CANCELLED", third: "PENDING"}

    played(tmp_path, story)


def test_a_page_that_reads_too_slowly_is_told_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_streams, "MOST_BEHIND", 1)
    monkeypatch.setattr(overview_streams, "FRESH_S", 0.0)

    async def story(rig: Rig, streams: OverviewStreams) -> None:
        async with opened(streams, OLGA, 2) as (slow, quick):
            for _ in range(3):
                newest = await rig.submit("ada", text=HELD)
                await quick.hear(lambda page: newest in page.jobs)  # noqa: B023  (heard at once)
            await slow.hear(lambda page: newest in page.jobs)
            assert slow.jobs == quick.jobs
            assert slow.kinds.count("whole") == 2
            assert quick.kinds.count("whole") == 1

    played(tmp_path, story)


def test_nothing_is_kept_up_to_date_once_nobody_looks(tmp_path: Path) -> None:
    async def story(rig: Rig, streams: OverviewStreams) -> None:
        async with opened(streams, ADA), opened(streams, OLGA, 2):
            assert streams.followers == 3
            assert len(kept_up()) == 2, "a view of ada's jobs, and one of all"
        await rig.until(lambda: not kept_up())
        assert streams.followers == 0

    played(tmp_path, story)


def kept_up() -> list[str]:
    """Tasks that keep a view up to date."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("overview of")]
