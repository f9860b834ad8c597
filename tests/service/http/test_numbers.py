"""Numbers that no system can hold, wherever the interface takes one: they are refused, or do nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import Rig, a_rig, play

from stretto.agent.server import read_piece

HUGE = (2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 10**400)
NUMBERS = [number for each in HUGE for number in (each, -each)]
NUMERIC = {"integer", "number"}


def kinds_of(schema: dict[str, Any]) -> set[str]:
    """The types of JSON that a schema allows."""
    return {schema.get("type", "")} | {kind for one in schema.get("anyOf", ()) for kind in kinds_of(one)}


def asked_for(document: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(method, path, name of a number in the query, properties of the body) of each route."""
    schemas = document["components"]["schemas"]
    paths = sorted(document["paths"].items(), key=lambda one: one[0].endswith("/log/follow"))
    for path, operations in paths:
        for method, operation in operations.items():
            for one in operation.get("parameters", ()):
                if one["in"] == "query" and NUMERIC & kinds_of(one["schema"]):
                    yield method, path, one["name"], {}
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            reference = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            if reference:
                yield method, path, "", schemas[reference].get("properties", {})


async def all_of_them(rig: Rig, number: int) -> list[tuple[str, str, int]]:
    """What each route answers to a number, as the status."""
    job = await rig.submit("root", text="run: sleep\nelastic: {min: 1, max: 4}")
    await rig.until(lambda: rig.backend.started)
    worker, found = f"{job}.1.0", []
    for method, template, name, properties in asked_for(rig.app.openapi()):
        path = template.replace("{job}", job).replace("{node}", "n0")
        token = rig.service.context.token(job) if "/worker/" in path else ""
        query = {name: str(number)} if name else {}
        if template.endswith("/generation"):
            query |= {"worker": worker, "wait_s": "0"}  # longer ones are cut to a minute, and waited for
        if template.endswith("/log/follow"):
            await rig.backend.finish(worker, 143)  # or the stream would not end
        values = {key: number for key, one in properties.items() if NUMERIC & kinds_of(one)}
        bodies: list[dict[str, Any] | None] = [None]
        if properties:
            bodies = [*({"worker": worker, key: value} for key, value in values.items()), {**values}]
        if template.endswith("/report"):
            bodies = [{"worker": worker, "step": number, "points": [[number] * 6], "loss": number}]
        async with rig.client("" if token else "root", token=token) as client:
            for body in bodies:
                content = None if body is None else json.dumps(body)
                headers = {"content-type": "application/json"}
                answer = await client.request(
                    method, path, params=query, content=content, headers=headers, timeout=30
                )
                found.append((method, template, answer.status_code))
    return found


@pytest.mark.sqlite
@pytest.mark.parametrize("number", NUMBERS, ids=lambda one: f"{one:.0e}" if abs(one) < 1e300 else "e400")
def test_a_number_that_nothing_can_hold_is_no_fault_of_the_service(tmp_path: Path, number: int) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            found = await all_of_them(rig, number)
            assert len(found) > 20
            assert [one for one in found if one[2] >= 500] == []

    play(story)


@pytest.mark.parametrize("offset", [5, 6, 2**31, 2**53 - 1, 2**63, 2**70])
def test_behind_the_end_of_a_log_there_is_nothing(tmp_path: Path, offset: int) -> None:
    (tmp_path / "log").write_bytes(b"hello")
    assert read_piece(tmp_path / "log", offset, 10) == (offset, b"", 5)
    assert read_piece(tmp_path / "log", -offset, 10) == (0, b"hello", 5)
