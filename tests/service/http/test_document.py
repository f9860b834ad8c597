"""The OpenAPI document tells the truth: it is whole, and what it allows never breaks the service."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.http.rig import Rig, a_rig, play

pytestmark = pytest.mark.sqlite

TRACE = re.compile(r"Traceback|File \"|, line \d")
ODD = st.sampled_from(
    [
        "",
        "1.1.0",
        "0",
        "-1",
        "1",
        "..",
        "../../etc/passwd",
        "%00",
        "\x00",
        "1.1.0",
        "ü",
        "🎻",
        "a" * 300,
        "1e999",
        "nan",
        "null",
    ]
)
TEXT = st.one_of(ODD, st.text(max_size=30))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


def test_the_document_is_valid_and_complete(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            document = (await ada.get("/api/v1/openapi.json")).json()
            assert document["openapi"].startswith("3.1.")
            # Pages are for people: they are no part of the API.
            served = {route.path for route in _routes(rig) if getattr(route, "include_in_schema", False)}
            assert set(document["paths"]) == served
            operations = list(_operations(document))
            names = [operation["operationId"] for _, _, operation in operations]
            assert len(set(names)) == len(names)
            for method, path, operation in operations:
                assert operation.get("description") or operation.get("summary"), path
                declared = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
                assert declared == set(re.findall(r"{(\w+)}", path))
                assert any(status.startswith("2") for status in operation["responses"])
                for status, response in operation["responses"].items():
                    assert response["description"], (method, path, status)
                    if int(status) >= 400:
                        assert set(response["content"]) == {"application/problem+json"}
                open_to_all = path in ("/healthz", "/readyz", "/version")
                assert ("401" in operation["responses"]) != open_to_all
                assert bool(operation["security"]) != open_to_all
            for reference in _references(document):
                found: Any = document
                for part in reference.removeprefix("#/").split("/"):
                    found = found[part]
                assert isinstance(found, dict)

    play(story)


def _routes(rig: Rig) -> Iterator[Any]:
    """Every route that is served, those of its parts included."""
    waiting = list(rig.app.routes)
    while waiting:
        one = waiting.pop()
        inner = getattr(getattr(one, "original_router", None), "routes", None)
        if inner is not None:
            waiting.extend(inner)
        elif hasattr(one, "path"):
            yield one


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            yield method.upper(), path, operation


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for one in part.values():
            yield from _references(one)
    elif isinstance(part, list):
        for one in part:
            yield from _references(one)


def values_of(schema: dict[str, Any], document: dict[str, Any], depth: int = 4) -> st.SearchStrategy[Any]:
    """Values that a schema allows, or nearly."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return values_of(document["components"]["schemas"][name], document, depth)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*(values_of(one, document, depth) for one in schema["anyOf"]))
    match schema.get("type"):
        case "integer":
            low, high = schema.get("minimum", -5), schema.get("maximum", 2**53)
            return st.one_of(
                st.integers(low, min(high, low + 100)), st.sampled_from([low, high, low - 1, high + 1])
            )
        case "number":
            return st.floats(schema.get("minimum", 0), min(schema.get("maximum", 1e3), 0.01))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(values_of(schema.get("items", {}), document, depth - 1), max_size=2)
        case "object" if "properties" in schema and depth:
            needed = set(schema.get("required", ()))
            made = {key: values_of(one, document, depth - 1) for key, one in schema["properties"].items()}
            if "worker" in made:
                made["worker"] = st.one_of(st.just("1.1.0"), made["worker"])
            return st.fixed_dictionaries(
                {key: one for key, one in made.items() if key in needed},
                optional={key: one for key, one in made.items() if key not in needed},
            )
        case "string":
            return TEXT
    return JSON


@st.composite
def requests(draw: st.DrawFn, document: dict[str, Any]) -> tuple[dict[str, Any], httpx.Request]:
    """A request that the document describes, with values that it allows, or nearly, or not at all."""
    method, path, operation = draw(st.sampled_from(list(_operations(document))))
    query, headers = [], {}
    for one in operation.get("parameters", ()):
        if one["in"] == "path":
            value = draw(st.one_of(st.sampled_from(["1", "2", "n0", "ada"]), TEXT))
            path = path.replace("{" + one["name"] + "}", quote(value, safe="") or "-")
        elif one["name"] == "wait_s":  # always said: unsaid it is half a minute
            query.append(("wait_s", draw(st.sampled_from(["0", "0.01", "nan", "-1", "x"]))))
        elif draw(st.booleans()) or one.get("required"):
            value = draw(st.one_of(values_of(one["schema"], document), TEXT))
            if one["in"] == "query":
                query += [
                    (one["name"], str(each)) for each in (value if isinstance(value, list) else [value])
                ]
            elif isinstance(value, str):
                headers[one["name"]] = value.encode("latin-1", "ignore").translate(None, b"\0\r\n")
    if any(name == "follow" for name, _ in query):
        query = [(name, value) for name, value in query if name != "follow"]  # or it would never end
    content = None
    if "requestBody" in operation:
        # What takes bytes, as uploads do, is sent JSON all the same.
        schema = operation["requestBody"]["content"].get("application/json", {}).get("schema", {})
        body = draw(st.one_of(values_of(schema, document), JSON))
        content = draw(
            st.one_of(
                st.just(httpx.Request("POST", "http://x", json=_plain(body)).read()), st.binary(max_size=40)
            )
        )
        headers["content-type"] = b"application/json"
    asked = httpx.Request(method, f"http://127.0.0.1{path}", params=query, headers=headers, content=content)  # type: ignore[arg-type]
    return operation, asked


def _plain(value: Any) -> Any:
    """A value that JSON has: floats that are none become texts."""
    if isinstance(value, float) and not abs(value) < 1e308:
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "person", ["ada", "", *(pytest.param(name, marks=pytest.mark.long) for name in ("root", "worker"))]
)
def test_whatever_the_document_allows_is_answered_as_it_says_and_starts_nothing(
    tmp_path: Path, person: str
) -> None:
    loop = asyncio.new_event_loop()
    entered = a_rig(tmp_path, decides=person == "worker")
    rig = loop.run_until_complete(entered.__aenter__())
    document = rig.app.openapi()
    elastic = "run: sleep\nelastic: {min: 1, max: 2}"
    jobs = [loop.run_until_complete(rig.submit("ada", text=elastic)) for _ in range(2)]
    assert jobs == ["1", "2"]
    token = rig.service.context.token("1") if person == "worker" else ""
    if token:
        document = {**document, "paths": {p: o for p, o in document["paths"].items() if "/worker/" in p}}
        loop.run_until_complete(rig.until(lambda: len(rig.backend.started) == 2))
    counted: Counter[int] = Counter()

    @settings(
        max_examples=250,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(asked=requests(document))
    def holds(asked: tuple[dict[str, Any], httpx.Request]) -> None:
        operation, request = asked

        async def ask() -> httpx.Response:
            async with asyncio.timeout(60), rig.client("" if token else person, token) as client:
                request.headers.update(client.headers)
                return await client.send(request)

        answer = loop.run_until_complete(ask())
        counted[answer.status_code] += 1
        said = (operation["operationId"], request.url, request.content, answer.text)
        assert answer.status_code != 500, said
        # A value with a slash in it is another path, perhaps another route or none: 404 and 405 are right.
        elsewhere = {"404", "405"} if "404" in operation["responses"] else set()
        assert str(answer.status_code) in {*operation["responses"], *elsewhere}, said
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert not TRACE.search(answer.json()["detail"]), said
        if not person:
            assert answer.status_code == 401 or not operation["security"], said

    try:
        holds()
        assert counted.total() >= 200
        assert not any(task.done() for task in rig.loops)  # nothing that was said broke what runs beside it
        if not token:
            assert not rig.backend.started
    finally:
        loop.run_until_complete(entered.__aexit__(None, None, None))
        loop.close()
