"""Figures and words about the service itself: metrics, health, decisions, logs."""

import asyncio
import json
import logging
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import SMALL, a_rig, play, token_of

from stretto.service.http import over_time_schemas
from stretto.service.http.rate_limits import RateLimiter
from stretto.service.state.state import State
from stretto.service.structured_logs import structured_logs

pytestmark = pytest.mark.sqlite


def figures(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened_and_name_no_job_user_or_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            key = {"idempotency-key": "k"}
            runs = (await ada.post("/api/v1/jobs", json=SMALL, headers=key)).json()["id"]
            await ada.post("/api/v1/jobs", json=SMALL, headers=key)
            await ada.post("/api/v1/jobs", json={"text": "name: only"})
            await ada.post("/api/v1/tokens", json={"name": "x", "user": "x"})
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{runs}.1.0", 143)  # others stopped it: a second attempt
            await rig.until(lambda: len(rig.backend.started) == 2)
            answer = await ada.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            found = figures(answer.text)

            def value(name: str, **labels: str) -> float:
                return found[f"stretto_{name}", frozenset(labels.items())]

            assert all(name.startswith("stretto_") for name, _ in found)
            assert value("submits_total", result="accepted") == 1
            assert value("submits_total", result="again") == 1
            assert value("submits_total", result="refused") == 1
            assert value("refused_requests_total", status="403") == 1
            assert value("refused_requests_total", status="422") == 1
            assert value("events_total", kind="Submitted") == 1
            assert value("restarts_total") == 1
            assert value("queue_wait_seconds_count", kind="batch") == 1
            assert value("decisions_total") == value("decision_seconds_count") >= 1
            assert value("store_up") == 1
            assert value("gpus", type="a100", state="held") == 1
            assert value("gpus", type="a100", state="free") == 7
            assert sum(count for (name, _), count in found.items() if name == "stretto_jobs") == 1
            assert value("resizes_total", kind="grow") == 0
            names = {label for _, labels in found for label, _ in labels}
            assert names <= {"result", "status", "kind", "method", "route", "le", "type", "state", "why"}

    play(story)


def test_nothing_that_a_caller_invents_becomes_a_label(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:

            async def ask(number: int) -> None:
                for path in ("/api/v1/jobs", f"/api/v1/jobs/{number}", f"/nowhere/{number}", "/metrics"):
                    await ada.request(f"M{number}", path, headers={"x-stretto-user": f"u{number}"})
                await ada.get(f"/api/v1/jobs/{number}?queue={number}&kind={number}")
                asked = {"text": f"run: x\nqueue: q{number}\nmodel: m{number}\nname: n{number}"}
                await ada.post("/api/v1/jobs", json=asked)

            await ask(0)
            await ada.get("/metrics")
            before = {labels for _, labels in figures((await ada.get("/metrics")).text)}
            for number in range(1, 50):
                await ask(number)
            after = {labels for _, labels in figures((await ada.get("/metrics")).text)}
            assert after == before
            assert any(("method", "other") in labels for labels in after)

    play(story)


def test_a_service_is_ready_once_it_knows_a_node_and_while_its_store_answers(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client() as anybody:
            assert (await anybody.get("/readyz")).status_code == 200
            rig.service.log_writer.healthy = False
            assert (await anybody.get("/readyz")).status_code == 503
            rig.service.log_writer.healthy = True
            with patch.object(State, "cluster", None):
                assert (await anybody.get("/readyz")).status_code == 503
            assert (await anybody.get("/readyz")).status_code == 200
            assert (await anybody.get("/healthz")).status_code == 200

    play(story)


def test_a_service_over_a_cluster_that_is_scaled_to_zero_is_ready(tmp_path: Path) -> None:
    async def story() -> None:
        backend = FakeBackend(nodes_count=0)
        async with a_rig(tmp_path, backend=backend) as rig, rig.client("ada") as ada:
            while (await ada.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.01)
            refusal = await ada.post("/api/v1/jobs", json={"text": "run: x"})
            assert (refusal.status_code, "no node has shown itself yet" in refusal.text) == (422, True)

    play(story)


class LacksSomething(FakeBackend):
    """Over a cluster that refuses something which no job needs."""

    remark = "the cluster refuses its Lease"


def test_what_a_cluster_lacks_leaves_the_service_ready_and_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        for number, backend in enumerate((FakeBackend(), LacksSomething())):
            folder = tmp_path / str(number)
            folder.mkdir()
            async with a_rig(folder, backend=backend, decides=False) as rig, rig.client() as anybody:
                answer = await anybody.get("/readyz")
                said = "the cluster refuses its Lease" if number else ""
                assert (answer.status_code, answer.json()["remark"]) == (200, said)

    play(story)


def test_a_probe_of_a_service_that_is_not_ready_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client() as anybody:
            rig.service.log_writer.healthy = False
            with caplog.at_level(logging.DEBUG, "stretto.api"):
                assert (await anybody.get("/readyz")).status_code == 503
                assert (await anybody.get("/healthz")).status_code == 200

    play(story)
    requests = [record for record in caplog.records if record.message == "request"]
    assert {vars(record)["path"]: record.levelno for record in requests} == {
        "/readyz": logging.DEBUG,
        "/healthz": logging.DEBUG,
    }


def test_decisions_show_their_times_and_to_operators_their_actions(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("olga") as olga:
            job = await rig.submit("ada")
            await rig.until(lambda: rig.backend.started)
            for client, whole in ((ada, False), (olga, True)):
                answer = await client.get("/api/v1/decisions?limit=200")
                shown = over_time_schemas.Decisions.model_validate(answer.json())
                assert shown.policy == "fifo"
                started = [one for one in shown.decisions if one.changes.get("start")]
                assert len(started) == 1
                assert started[0].took_ms > 0
                assert (started[0].actions is not None) == whole
                assert (job in str(started[0].actions)) == whole
                assert [one.seq for one in shown.decisions] == sorted(
                    (one.seq for one in shown.decisions), reverse=True
                )

    play(story)


def test_logs_are_lines_of_json_with_a_request_id_and_never_hold_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with (
            a_rig(tmp_path) as rig,
            rig.client("ada") as ada,
            rig.client(token="wrong-token") as nobody,
        ):
            given = {"x-request-id": "mine-1"}
            assert (await ada.post("/api/v1/jobs", json=SMALL, headers=given)).headers[
                "x-request-id"
            ] == "mine-1"
            odd = await ada.get("/api/v1/jobs/9?token=in-a-query", headers={"x-request-id": 'a"b c'})
            assert re.fullmatch("[0-9a-f]{16}", odd.headers["x-request-id"])
            await nobody.get("/api/v1/jobs")
            made = await _root_makes(rig)
            monkeypatch.setattr(rig.service, "status_of", lambda record: 1 / 0)
            await ada.get("/api/v1/jobs/1")
            secrets.append(made)

    async def _root_makes(rig: object) -> str:
        async with rig.client("root") as root:  # type: ignore[attr-defined]
            answer = await root.post("/api/v1/tokens", json={"name": "x", "user": "x"})
            made: str = answer.json()["token"]
            return made

    secrets: list[str] = []
    with structured_logs(tmp_path / "service.log"):
        play(story)
    text = (tmp_path / "service.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(one.get("path"), one.get("status")) for one in lines if one["message"] == "request"] == [
        ("/api/v1/jobs", 201),
        ("/api/v1/jobs/9", 404),
        ("/api/v1/jobs", 401),
        ("/api/v1/tokens", 201),
        ("/api/v1/jobs/1", 500),
    ]
    assert lines[0]["request_id"] == "mine-1"
    assert any("ZeroDivisionError" in one.get("trace", "") for one in lines)
    for secret in (token_of("ada"), "wrong-token", "in-a-query", *secrets):
        assert secret not in text
    assert "ZeroDivisionError" in capfd.readouterr().err  # what is an error is on stderr too
    assert not logging.getLogger("stretto").handlers


def test_a_bucket_refills_with_time_and_forgets_who_is_full() -> None:
    now_s = 0.0
    buckets = RateLimiter(2.0, 3, lambda: now_s)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now_s = 0.5
    assert (buckets.take("a"), buckets.take("b")) == (0.0, 0.0)
    assert buckets.take("a") == 0.5
    for number in range(1_000):
        buckets.take(f"c{number}")
    now_s = 10.0
    buckets.take("d")
    assert list(buckets.names) == ["d"]
