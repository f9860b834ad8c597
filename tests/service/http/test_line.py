"""The line: which waiting job starts next, who is told, and when each would start and end."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import Rig, a_rig, play

from stretto.service.http import over_time_schemas

pytestmark = [pytest.mark.sqlite, pytest.mark.processes]


def job(gpus: int, name: str = "waits", minutes: int = 10) -> str:
    return f"{{run: 'true', name: {name}, resources: {{accelerators: '{gpus}'}}, expected_time: {minutes}m}}"


async def asked(client: httpx.AsyncClient, *jobs: str) -> dict[str, Any]:
    answer = (await client.get("/api/v1/line", params={"job": list(jobs)})).json()
    over_time_schemas.WaitingLine.model_validate(answer)
    return dict(answer)


async def full(rig: Rig) -> str:
    """A job that holds all eight GPUs."""
    name = await rig.submit("ada", text="{run: 'true', name: all, array: 0-7, expected_time: 1h}")
    await rig.until(lambda: sum(r.accounting.held_gpus for r in rig.service.state.open_jobs()) == 8)
    return name


def test_users_see_the_places_of_their_jobs_among_all_that_wait(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("olga") as olga:
            await full(rig)
            first = await rig.submit("ada", text=job(4))
            others = await rig.submit("bob", text=job(4))
            last = await rig.submit("ada", text=job(4))
            scheduling = rig.service.scheduling
            await rig.until(
                lambda: (
                    scheduling.latest_snapshot is not None
                    and scheduling.line.ids(scheduling.latest_snapshot, scheduling.scheduler)
                    == (first, others, last)
                )
            )
            rig.app.state.shared_forecast.failed = "as if there were none"
            rig.app.state.shared_forecast.made_s = 1e12  # none is made
            assert (await asked(olga))["line"] == [[first, 1], [others, 2], [last, 3]]
            shown = await asked(ada)
            assert shown["line"] == [[first, 1], [last, 3]], "another user's job has a place, and no name"
            async with rig.client("bob") as bob:
                assert (await asked(bob))["line"] == [[others, 2]]
            assert (shown["waiting"], shown["policy"], shown["forecast"]) == (3, "fifo", None)
            assert shown["order"] == "fair share, then submission"

    play(story)


@pytest.mark.slow
def test_the_next_to_start_comes_first_once_that_is_foreseen_and_has_its_times(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, policy="sjf") as rig, rig.client("ada") as ada:
            await full(rig)
            long = await rig.submit("ada", text=job(8, minutes=300))
            short = await rig.submit("bob", text=job(8, minutes=5))
            later = await rig.submit("ada", text=job(8, minutes=100))
            await rig.until(lambda: rig.service.scheduling.latest_snapshot is not None)
            while (shown := await asked(ada, long, later, short))["forecast"] is None:
                await rig.until(lambda: not rig.app.state.shared_forecast.is_working)
                assert shown["failed"] == ""
            assert shown["line"] == [[later, 2], [long, 3]], "the short job of another user comes first"
            forecast = shown["forecast"]
            assert set(forecast["jobs"]) == {long, later}, "of others nothing is told"
            starts = {name: told["start"]["middle"] for name, told in forecast["jobs"].items()}
            assert forecast["made_unix_s"] < starts[later] < starts[long]
            assert forecast["jobs"][later]["end"]["middle"] == pytest.approx(starts[long], abs=60.0)
            assert (forecast["started"], forecast["draws"]) == (3, 9)

    play(story)


@pytest.mark.slow
def test_all_who_look_share_one_forecast(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            await rig.until(lambda: rig.service.state.cluster is not None)
            shared = rig.app.state.shared_forecast
            for client in (ada, bob, ada):
                await asked(client)
            await rig.until(lambda: shared.latest is not None)
            made = shared.latest
            for client in (ada, bob, ada, bob):
                assert (await asked(client))["forecast"] is not None
            assert shared.latest is made
            assert not shared.is_working, "it is not old enough"

    play(story)
