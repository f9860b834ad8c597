"""Budgets of a real service on an emulated cluster: over the end of a period, and over a crash."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.service.running import Running

from stretto.cli.app import status_of
from stretto.client import Client
from stretto.demo.own_service import until

pytestmark = [pytest.mark.slow, pytest.mark.processes]

CLUSTER = "name: pair\ngpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 4, count: 2}]\n"
PACE = 240.0  # so that an hour takes 15 s, and the day that ends soon does so within a minute


def zone_where_it_is(hour: int) -> str:
    """A zone of whole hours in which it is this hour now."""
    ahead = (hour - datetime.now(UTC).hour + 11) % 24 - 11
    return f"Etc/GMT{-ahead:+d}"  # which counts west of Greenwich as positive


def submitted(client: Client, user: str, name: str) -> str:
    client.http.headers["x-stretto-user"] = user
    text = f"run: x\nname: {name}\nexpected_time: 30d\nresources: {{accelerators: 'v100:2'}}\n"
    return str(client.submit(text)["id"])


def waits(client: Client, job: str) -> bool:
    shown = client.describe(job)
    return not shown["gpus"] and shown["reason"] == "BUDGET"


@pytest.mark.long
def test_jobs_wait_for_the_next_period_over_a_crash_and_the_log_repeats_every_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    options = ["--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--pace", f"{PACE:g}"]
    service = Running(tmp_path, *options, "--policy", "fifo")
    try:
        service.begin()
        with service.client() as client:
            little = {"gpu_hours": 0.5, "period": "day", "hold": 1.0, "warn": 0.5}
            client.set_budget("ends-soon", {**little, "user": "ada", "zone": zone_where_it_is(20)})
            later = {**little, "user": "bob", "zone": zone_where_it_is(0), "running": "stop"}
            client.set_budget("ends-late", later)
            long, bobs = submitted(client, "ada", "long"), submitted(client, "bob", "stopped")
            until(lambda: client.budgets()[1]["level"] == "hold", what="ada's budget is used up")
            other = submitted(client, "ada", "other")
            assert waits(client, other)
            explained = client.explain(other)
            assert explained["headline"].startswith("a budget is used up: budget ends-soon: 0.5")
            assert client.describe(long)["gpus"] == 2  # goes on
            until(lambda: waits(client, bobs), what="the job of the other budget is stopped")
            until(lambda: client.describe(other)["gpus"] == 2, what="the next day has begun")
        service.kill()
        service.begin()
        with service.client() as client:
            assert waits(client, bobs)
            client.delete_budget("ends-late")
            until(lambda: client.describe(bobs)["gpus"] == 2, what="nothing holds it any more")
        levels = [body["level"] for _, _, kind, body in service.log_of_all() if kind == "BudgetReached"]
        assert levels.count("hold") >= 2
        decisions, differences = service.differences()
        assert decisions >= 4
        assert differences == 0
    finally:
        service.end()
    capsys.readouterr()
    assert status_of(["simulate", "--from-log", str(tmp_path / "state")]) == 0
    assert re.fullmatch(r"[1-9]\d* decisions made again, 0 differ\n", capsys.readouterr().out)
