"""Budgets over the interface: set, used, told of, held to and given up, by those who may."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.http.rig import Rig, a_rig, play
from tests.service.webhooks.test_delivery import listening

from stretto.service.webhooks import Targets

pytestmark = [pytest.mark.sockets, pytest.mark.sqlite]

LITTLE = 1.0 / 3600  # GPU-hours: a second of one GPU


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[Rig]:
    """A service whose budgets are looked at, and whose webhooks may go to this machine."""
    async with a_rig(path) as rig:
        rig.service.targets = rig.service.webhooks.targets = Targets.of(["127.0.0.0/8"])
        tasks = [asyncio.create_task(one.run()) for one in (rig.service.budgets, rig.service.webhooks)]
        try:
            yield rig
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)


async def set_budget(client: httpx.AsyncClient, name: str = "b", **asked: Any) -> dict[str, Any]:
    answer = await client.put(f"/api/v1/budgets/{name}", json={"period": "month"} | asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_budget_warns_then_holds_and_its_owner_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, watched(tmp_path) as rig, rig.client("root") as root:
            asked: dict[str, Any] = {"gpu_hours": 2 * LITTLE, "user": "ada", "warn": 0.5, "hold": 1.0}
            shown = await set_budget(root, **asked, notify=[f"{listener.url}/budget"])
            assert (shown["level"], shown["used"], shown["unit"]) == ("", 0.0, "gpu_hours")
            first = await rig.submit("ada")
            await rig.until(lambda: "budget_warn" in listener.moments("/budget"))
            await rig.until(lambda: "budget_hold" in listener.moments("/budget"))
            assert listener.moments("/budget") == ["budget_warn", "budget_hold"]
            body = listener.heard[-1][1]
            assert (body["budget"], body["user"], body["amount"]) == ("b", "ada", 2 * LITTLE)
            headers, sent = listener.requests[-1]
            unix_s = float(headers["webhook-timestamp"])
            signed = rig.service.secrets.headers("root", headers["webhook-id"], sent, unix_s)
            assert headers["webhook-signature"] == signed["webhook-signature"]  # of who has set it
            # A level was told as soon as so much was used, not a look later.
            levels = {
                each.body["level"]: each.body["used"]
                for each in rig.store.read()
                if each.kind == "BudgetReached"
            }
            assert set(levels) == {"warn", "hold"}
            assert LITTLE <= levels["warn"] < levels["hold"]
            second, third = await rig.submit("ada"), await rig.submit("bob")
            await rig.until(lambda: len(rig.backend.started) == 2)
            assert [start.job for start in rig.backend.started] == [first, third]
            described = (await root.get(f"/api/v1/jobs/{second}")).json()
            assert (described["state"], described["reason"]) == ("PENDING", "BUDGET")
            assert described["evidence"].startswith("budget b: ")
            assert described["evidence"].endswith("-01 00:00 UTC")
            (row,) = (await root.get("/api/v1/budgets")).json()["budgets"]
            assert (row["level"], row["waiting"], row["running"]) == ("hold", 1, "go-on")
            text = (await root.get("/metrics")).text
            found = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert found["stretto_budget_used_ratio", "b"] >= 1.0
            assert found["stretto_budget_level", "b", "hold"] == 1.0
            assert found["stretto_budget_level", "b", "warn"] == 0.0
            assert (await root.delete("/api/v1/budgets/b")).status_code == 204
            await rig.until(lambda: len(rig.backend.started) == 3)
            assert rig.backend.started[-1].job == second

    play(story)


def test_what_was_used_before_counts_from_the_moment_on_at_which_a_budget_is_set(tmp_path: Path) -> None:
    async def story() -> None:
        async with watched(tmp_path) as rig, rig.client("root") as root, rig.client("ada") as ada:
            job = await rig.submit("ada")
            await rig.until(lambda: rig.backend.started)
            await asyncio.sleep(0.2)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: rig.service.state.ended)
            shown = await set_budget(root, gpu_hours=LITTLE / 100, hold=1.0, warn=None)
            assert shown["level"] == "hold"
            kinds = [each.kind for each in rig.store.read()]
            assert (
                kinds.index("BudgetReached") == kinds.index("BudgetSet") + 1
            )  # together: no job slips through
            waits = await rig.submit("ada")
            assert (await ada.get(f"/api/v1/jobs/{waits}")).json()["reason"] == "BUDGET"
            (row,) = (await root.get("/api/v1/usage")).json()["usage"]
            assert shown["used"] * 3600 == pytest.approx(row["charged_gpu_seconds"], abs=4e-3)
            await set_budget(root, gpu_hours=1000.0, hold=1.0, warn=None)
            await rig.until(lambda: len(rig.backend.started) == 2)

    play(story)


def test_a_budget_of_cost_goes_by_prices_and_may_stop_jobs(tmp_path: Path) -> None:
    async def story() -> None:
        async with watched(tmp_path) as rig, rig.client("root") as root:
            await set_budget(root, cost=1.0, warn=None, hold=0.5, running="stop")
            await rig.submit("ada")
            await rig.until(lambda: rig.backend.started)
            assert not rig.backend.stopped
            (row,) = (await root.get("/api/v1/budgets")).json()["budgets"]
            assert (row["used"], row["unit"]) == (0.0, "cost")  # there is no price
            price = {"price": 3600.0, "start": "2023-11-01"}  # of a second: 1
            assert (await root.put("/api/v1/gpu-prices/a100", json=price)).status_code == 200
            await rig.until(lambda: rig.backend.stopped)

    play(story)


def test_who_may_see_and_set_budgets_and_what_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with watched(tmp_path) as rig, rig.client("root") as root, rig.client("ada") as ada:
            await root.put("/api/v1/queues/closed", json={"users": ["bob"]})
            for name, of in (
                ("ada", {"user": "ada"}),
                ("bob", {"user": "bob"}),
                ("every", {}),
                ("closed", {"queue": "closed"}),
            ):
                await set_budget(root, name, gpu_hours=5.0, **of)

            async def names(person: str) -> list[str]:
                async with rig.client(person) as client:
                    rows = (await client.get("/api/v1/budgets")).json()["budgets"]
                    return [row["name"] for row in rows]

            assert await names("ada") == ["ada", "every"]
            assert await names("bob") == ["bob", "closed", "every"]
            assert await names("olga") == ["ada", "bob", "closed", "every"]
            asked = {"gpu_hours": 1.0, "period": "day"}
            assert (await ada.put("/api/v1/budgets/mine", json=asked)).status_code == 403
            assert (await ada.delete("/api/v1/budgets/ada")).status_code == 403
            assert (await root.delete("/api/v1/budgets/none")).status_code == 404
            for wrong, said in (
                ({"cost": 1.0}, "expected one of gpu_hours and cost, got both"),
                ({"gpu_hours": None}, "expected one of gpu_hours and cost, got neither"),
                ({"warn": None}, "expected warn, hold or both, got neither"),
                ({"warn": 0.9, "hold": 0.5}, "hold: expected at least warn, which is 0.9, got 0.5"),
                ({"zone": "Mars/Olympus"}, "zone: expected a time zone like Europe/Berlin, got"),
                ({"queue": "none"}, "queue: expected one of closed, default, got 'none'"),
                ({"notify": ["ftp://x"]}, "notify: expected http://HOST or https://HOST"),
            ):
                answer = await root.put("/api/v1/budgets/wrong", json=asked | wrong)
                assert answer.status_code == 422, wrong
                assert said in answer.json()["detail"], answer.json()
            assert "wrong" not in await names("root")

    play(story)
