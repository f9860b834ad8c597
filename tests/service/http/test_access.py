"""Who may do what, and what everybody is refused."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import SMALL, Rig, a_rig, play, token_of
from tests.service.http.websockets import WEBSOCKETS, websockets

from stretto.client.upload_manifest import manifest_in
from stretto.model import InputError
from stretto.service.config import Config
from stretto.service.http import schemas
from stretto.service.http.auth import Caller, Role, digest_of
from stretto.service.http.rate_limits import Limits
from stretto.service.state.events import Audited, TokenUsed

pytestmark = pytest.mark.sqlite

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
ROUTES_OF_THE_PAGE = "*own*: of one's own things; those of others are not there (404).\n\n"

# Every route with what a request for it needs, and the least role that may ask it of others' things.
TREE: dict[str, Any] = {"entries": [{"path": "empty", "folder": True}]}
ROUTES: list[tuple[str, str, Any, str]] = [
    ("GET", "/api/v1/session", None, "user"),
    ("GET", "/api/v1/overview", None, "user"),
    ("GET", "/api/v1/jobs", None, "user"),
    ("POST", "/api/v1/jobs", SMALL, "user"),
    ("POST", "/api/v1/jobs/batch", {"jobs": [SMALL]}, "user"),
    ("POST", "/api/v1/jobs/dry-run", SMALL, "user"),
    ("GET", "/api/v1/job-schema", None, "user"),
    ("GET", "/api/v1/jobs/{job}", None, "owner"),
    ("GET", "/api/v1/jobs/{job}/wait?wait_s=0", None, "owner"),
    ("GET", "/api/v1/jobs/{job}/explain", None, "owner"),
    ("GET", "/api/v1/jobs/{job}/log", None, "owner"),
    ("GET", "/api/v1/jobs/{job}/log/follow", None, "owner"),
    ("GET", "/api/v1/jobs/{job}/events", None, "owner"),
    ("GET", "/api/v1/jobs/{job}/training", None, "owner"),
    ("POST", "/api/v1/jobs/{job}/hold", None, "owner"),
    ("POST", "/api/v1/jobs/{job}/release", None, "owner"),
    ("POST", "/api/v1/jobs/{job}/priority", {"priority": -1}, "owner"),
    ("POST", "/api/v1/jobs/{job}/scale", {"min_gpus": 1, "max_gpus": 2}, "owner"),
    ("POST", "/api/v1/jobs/{job}/requeue", None, "owner"),
    ("GET", "/api/v1/events", None, "user"),
    ("GET", "/api/v1/nodes", None, "user"),
    ("POST", "/api/v1/nodes/n1/cordon", {"why": "fan"}, "operator"),
    ("POST", "/api/v1/nodes/n1/drain", None, "operator"),
    ("POST", "/api/v1/nodes/n1/uncordon", None, "operator"),
    ("GET", "/api/v1/queues", None, "user"),
    ("PUT", "/api/v1/queues/long", {"quota_gpus": 4}, "admin"),
    ("DELETE", "/api/v1/queues/long", None, "admin"),
    ("GET", "/api/v1/reservations", None, "user"),
    ("PUT", "/api/v1/reservations/r", {"end": 4e9, "gpu_type": "a100", "gpus": 1, "user": "bob"}, "operator"),
    ("DELETE", "/api/v1/reservations/r", None, "operator"),
    ("GET", "/api/v1/lenders", None, "user"),
    ("PUT", "/api/v1/lenders/l", {"nodes": ["n0"]}, "operator"),
    ("POST", "/api/v1/lenders/l/need", {"nodes": 1}, "operator"),
    ("DELETE", "/api/v1/lenders/l", None, "operator"),
    ("GET", "/api/v1/usage", None, "user"),
    ("GET", "/api/v1/webhook-secrets", None, "user"),
    ("GET", "/api/v1/secrets", None, "user"),
    ("PUT", "/api/v1/secrets/HF_TOKEN", {"value": "hf_x"}, "user"),
    ("DELETE", "/api/v1/secrets/HF_TOKEN", None, "user"),
    ("GET", "/api/v1/uploads", None, "user"),
    ("POST", "/api/v1/uploads", TREE, "user"),
    ("POST", f"/api/v1/uploads/{manifest_in(TREE).digest}/parts", None, "user"),
    ("GET", "/api/v1/gpu-prices", None, "user"),
    ("PUT", "/api/v1/gpu-prices/a100", {"price": 2.5}, "admin"),
    ("GET", "/api/v1/budgets", None, "user"),
    ("GET", "/api/v1/usage/idle", None, "user"),
    ("PUT", "/api/v1/budgets/b", {"gpu_hours": 5.0, "period": "day"}, "admin"),
    ("DELETE", "/api/v1/budgets/b", None, "admin"),
    ("GET", "/api/v1/priority-classes", None, "user"),
    ("PUT", "/api/v1/priority-classes/urgent", {"value": 10}, "operator"),
    ("DELETE", "/api/v1/priority-classes/urgent", None, "operator"),
    ("GET", "/api/v1/shares", None, "user"),
    ("PUT", "/api/v1/shares/users/ada", {"shares": 2}, "admin"),
    ("GET", "/api/v1/decisions", None, "user"),
    ("GET", "/api/v1/decisions/{seq}/again", None, "operator"),
    ("GET", "/api/v1/prices", None, "user"),
    ("GET", "/api/v1/line", None, "user"),
    ("POST", "/api/v1/whatif", {}, "user"),
    ("GET", "/api/v1/policies", None, "user"),
    ("GET", "/api/v1/timeline", None, "user"),
    ("GET", "/api/v1/timeline/forecast", None, "user"),
    ("GET", "/api/v1/tokens", None, "admin"),
    ("POST", "/api/v1/tokens", {"name": "new", "user": "eve"}, "admin"),
    ("DELETE", "/api/v1/tokens/new", None, "admin"),
    ("GET", "/api/v1/openapi.json", None, "user"),
    ("GET", "/metrics", None, "user"),
    ("POST", "/api/v1/jobs/{job}/cancel", None, "owner"),
]
LEAST = {"user": {"ada", "bob", "olga", "root"}, "owner": {"ada", "olga", "root"}}
LEAST |= {"operator": {"olga", "root"}, "admin": {"root"}}


async def ada_s_job(rig: Rig) -> str:
    """A job with a worker that has written something."""
    job = await rig.submit("ada", text="run: sleep\nelastic: {min: 1, max: 4}")
    await rig.until(lambda: rig.backend.started)
    await rig.backend.write(f"{job}.1.0", b"hello")
    return job


async def filled(rig: Rig, path: str, job: str) -> str:
    """A path of the table, of this job and of the newest decision."""
    if "{seq}" in path:
        async with rig.client("root") as root:
            (newest,) = (await root.get("/api/v1/decisions")).json()["decisions"]
        path = path.replace("{seq}", str(newest["seq"]))
    return path.replace("{job}", job)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "person", ["ada", "root", *(pytest.param(name, marks=pytest.mark.long) for name in ("bob", "olga"))]
)
def test_each_role_may_ask_exactly_what_is_its_own(tmp_path: Path, person: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client(person) as client:
            job = await ada_s_job(rig)
            for method, path, body, least in ROUTES:
                if path.endswith("/log/follow"):
                    await rig.backend.finish(f"{job}.1.0", 143)  # or the stream would not end
                answer = await client.request(method, await filled(rig, path, job), json=body)
                if person in LEAST[least]:
                    assert answer.is_success, (method, path, answer.text)
                else:
                    expected = 404 if least == "owner" else 403
                    assert answer.status_code == expected, (method, path, answer.text)
                    schemas.ProblemShown.model_validate(answer.json())
                    assert answer.headers["content-type"] == "application/problem+json"

    play(story)


# What stands in the paths above for a parameter of the document's.
PARAMETERS = {
    "/nodes/n1": "/nodes/{node}",
    "/queues/long": "/queues/{queue}",
    "/users/ada": "/users/{user}",
    "/priority-classes/urgent": "/priority-classes/{name}",
    "/gpu-prices/a100": "/gpu-prices/{gpu_type}",
    "/budgets/b": "/budgets/{budget}",
    "/secrets/HF_TOKEN": "/secrets/{name}",
    f"/uploads/{manifest_in(TREE).digest}": "/uploads/{digest}",
    "/tokens/new": "/tokens/{name}",
    "/reservations/r": "/reservations/{name}",
    "/lenders/l": "/lenders/{name}",
}
OPEN_TO_ALL = ("/healthz", "/readyz", "/version")


def as_in_the_document(path: str) -> str:
    """A path of the table as the OpenAPI document has it."""
    path = path.partition("?")[0]
    for given, shown in PARAMETERS.items():
        if path.endswith(given) or f"{given}/" in path:
            path = path.replace(given, shown)
    return path


def least_roles() -> dict[tuple[str, str], str]:
    """Of each (method, path), the least role that may ask it of others' things."""
    return {(method, as_in_the_document(path)): least for method, path, _, least in ROUTES}


def operations_of(document: dict[str, Any]) -> dict[tuple[str, str], str]:
    """What each (method, path) of the document is for, but for the channel of workers."""
    return {
        (method.upper(), path): operation["description"].partition("\n")[0]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if not path.startswith("/api/v1/worker/")
    }


def test_the_table_of_routes_is_complete(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            there = {*operations_of(rig.app.openapi())}
            assert there - {("GET", path) for path in OPEN_TO_ALL} == {*least_roles()} - {
                ("GET", "/api/v1/openapi.json")
            }
            assert {*websockets()} == {*WEBSOCKETS}

    play(story)


def test_the_page_shows_which_role_may_ask_what(tmp_path: Path) -> None:
    """Rows follow from the document and the table above."""
    marks = {
        "": ("yes", "yes", "yes", "yes"),
        "user": ("", "yes", "yes", "yes"),
        "owner": ("", "own", "yes", "yes"),
        "operator": ("", "", "yes", "yes"),
        "admin": ("", "", "", "yes"),
    }

    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            operations = operations_of(rig.app.openapi()) | websockets()
        least = {**dict.fromkeys((("GET", path) for path in OPEN_TO_ALL), ""), **least_roles(), **WEBSOCKETS}
        rows = [
            f"| `{method} {path}` | {' | '.join(marks[least[method, path]])} | {summary} |".replace("  ", " ")
            for (method, path), summary in sorted(operations.items(), key=lambda row: (row[0][1], row[0][0]))
        ]
        heading = ["| request | anybody | user | operator | admin | what for |", "|---|---|---|---|---|---|"]
        made = "\n".join([*heading, *rows])
        text = PAGE.read_text(encoding="utf-8")
        before, mark, rest = text.partition(ROUTES_OF_THE_PAGE)
        assert mark, "the page has the section"
        shown, end, after = rest.partition("\n\n##")
        if os.environ.get("STRETTO_UPDATE_GOLDEN") == "1":
            PAGE.write_text(f"{before}{mark}{made}{end}{after}", encoding="utf-8")
            shown = made
        assert shown == made, "if the change is meant, run again with STRETTO_UPDATE_GOLDEN=1"

    play(story)


READS = {("POST", "/api/v1/jobs/dry-run"), ("POST", "/api/v1/whatif")}  # although one posts to them
SECRET = ("GET", "/api/v1/webhook-secrets")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("scope", ["read", pytest.param("jobs", marks=pytest.mark.long)])
def test_a_token_opens_no_more_than_its_scope_whatever_its_role(tmp_path: Path, scope: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            async with rig.client("root") as root:
                asked = {"name": "scoped", "user": "root", "role": "admin", "scope": scope}
                made = (await root.post("/api/v1/tokens", json=asked)).json()
                (shown,) = [
                    one
                    for one in (await root.get("/api/v1/tokens")).json()["tokens"]
                    if one["name"] == "scoped"
                ]
            assert made["scope"] == shown["scope"] == scope
            job = await ada_s_job(rig)
            async with rig.client("root") as root:  # or the stream of its log would not end
                assert (await root.post(f"/api/v1/jobs/{job}/cancel")).is_success
            await rig.backend.finish(f"{job}.1.0", 143)
            await rig.until(lambda: rig.service.state.jobs[job].has_ended)
            async with rig.client(token=made["token"]) as client:
                for method, path, body, _ in ROUTES:
                    answer = await client.request(method, await filled(rig, path, job), json=body)
                    route = (method, path.partition("?")[0])
                    opens = (method == "GET" and route != SECRET) or route in READS
                    if opens or (scope == "jobs" and path.startswith(("/api/v1/jobs", "/api/v1/uploads"))):
                        assert answer.status_code != 403, (route, answer.text)
                    else:
                        assert answer.status_code == 403, (route, answer.text)
                        assert "the token is for" in answer.json()["detail"]

    play(story)


def test_a_token_of_a_scope_is_no_admin_s_last_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            asked = {"name": "scoped", "user": "root", "role": "admin", "scope": "read"}
            assert (await root.post("/api/v1/tokens", json=asked)).is_success
            answer = await root.delete("/api/v1/tokens/root")
            assert answer.status_code == 409
            assert "the last token of an admin" in answer.json()["detail"]
            wrong = await root.post("/api/v1/tokens", json={**asked, "name": "b", "scope": "write"})
            assert wrong.status_code == 422

    play(story)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="no token"),
        pytest.param({"authorization": "Bearer nobody-has-this"}, id="an unknown token"),
        pytest.param({"authorization": "Bearer "}, id="an empty token"),
        pytest.param({"authorization": "Basic YWRhOmFkYQ=="}, id="a password"),
        pytest.param({"authorization": token_of("root")}, id="a token without its scheme"),
        pytest.param({"x-stretto-user": "ada"}, id="a name alone"),
        pytest.param(
            {"authorization": "Bearer \u00fc\u00df".encode("latin-1").decode("latin-1")}, id="no ASCII"
        ),
    ],
)
def test_nobody_comes_in_without_a_good_token(tmp_path: Path, headers: dict[str, str]) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client() as client:
            given = {key: value.encode("latin-1") for key, value in headers.items()}
            for method, path, body, _ in [*ROUTES, ("GET", "/nowhere", None, "")]:
                answer = await client.request(method, path, json=body, headers=given)  # type: ignore[arg-type]
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"].startswith("Bearer")
            for path, status in (("/healthz", 200), ("/readyz", 200), ("/version", 200)):
                assert (await client.get(path)).status_code == status
            assert not rig.service.state.jobs
            assert not rig.backend.started

    play(story)


@pytest.mark.parametrize(
    ("headers", "base_url", "status"),
    [
        pytest.param({}, "http://127.0.0.1:8700", 200, id="this machine"),
        pytest.param({}, "http://localhost:8700", 200, id="this machine by its name"),
        pytest.param({}, "http://[::1]:8700", 200, id="this machine, version 6"),
        pytest.param({}, "http://evil.example:8700", 401, id="a name that was made to lead here"),
        pytest.param({"origin": "http://evil.example"}, "http://127.0.0.1:8700", 401, id="a page of others"),
        pytest.param({"origin": "http://127.0.0.1:8700"}, "http://127.0.0.1:8700", 200, id="our own page"),
        pytest.param(
            {"sec-fetch-site": "cross-site"}, "http://127.0.0.1:8700", 401, id="a picture in a page"
        ),
        *(
            pytest.param({name: "10.0.0.1"}, "http://127.0.0.1:8700", 401, id=f"through a proxy: {name}")
            for name in (
                "forwarded",
                "via",
                "x-real-ip",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto",
                "x-forwarded-anything",
            )
        ),
        pytest.param({"x-stretto-user": "a\u00fcb"}, "http://127.0.0.1:8700", 400, id="a name that is none"),
        pytest.param({"authorization": "Bearer no"}, "http://127.0.0.1:8700", 401, id="a wrong token"),
    ],
)
def test_the_open_door_lets_in_who_means_this_machine(
    tmp_path: Path, headers: dict[str, str], base_url: str, status: int
) -> None:
    async def story() -> None:
        given = {key: value.encode("latin-1") for key, value in headers.items()}
        async with (
            a_rig(tmp_path, open_on_loopback=True) as rig,
            rig.client(base_url=base_url) as client,
        ):
            assert (await client.get("/api/v1/tokens", headers=given)).status_code == status  # type: ignore[arg-type]

    play(story)


def test_a_token_is_shown_once_kept_as_a_digest_and_revoked(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            asked = {"name": "laptop", "user": "eve", "role": "user"}
            made = schemas.TokenMade.model_validate((await root.post("/api/v1/tokens", json=asked)).json())
            assert (await root.post("/api/v1/tokens", json=asked)).status_code == 409
            shown = await root.get("/api/v1/tokens")
            (listed,) = (one for one in shown.json()["tokens"] if one["name"] == "laptop")
            assert listed == {**asked, "scope": "all", "expires": None, "last_used": None}
            log = json.dumps([one.body for one in rig.store.read()])
            stream = (await root.get("/api/v1/events")).text
            assert made.token not in log + shown.text + stream
            assert "sha256" not in stream
            async with rig.client(token=made.token) as eve:
                assert (await eve.post("/api/v1/jobs", json=SMALL)).json()["user"] == "eve"
                assert (await root.delete("/api/v1/tokens/laptop")).status_code == 204
                assert (await eve.get("/api/v1/jobs")).status_code == 401
            assert (await root.delete("/api/v1/tokens/laptop")).status_code == 404

    play(story)


def test_the_audit_holds_changes_of_others_things_and_refusals_but_not_endlessly(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("olga") as olga, rig.client("bob") as bob:
            job = await rig.submit("ada")
            await olga.post(f"/api/v1/jobs/{job}/hold")
            await olga.post("/api/v1/nodes/n0/cordon")
            for _ in range(50):
                assert (await bob.post(f"/api/v1/jobs/{job}/cancel")).status_code == 404
            await rig.submit("bob")
            noted = [
                (one.body["who"], one.body["what"], one.body["about"], one.body["refused"])
                for one in rig.store.read(kinds=[Audited.__name__])
            ]
            assert noted[:2] == [
                ("olga", "hold", f"job {job} of ada", ""),
                ("olga", "cordon", "node n0", ""),
            ]
            refusal = ("bob", "job of ada", f"/api/v1/jobs/{job}/cancel", "refused")
            assert noted[2:] == [refusal] * 20

    play(story)


def test_users_see_events_of_their_own_jobs_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("bob") as bob, rig.client("olga") as olga:
            mine, others = await rig.submit("bob"), await rig.submit("ada")
            await rig.until(lambda: len(rig.backend.started) == 2)

            def jobs_in(text: str) -> set[str]:
                said = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
                assert (
                    not {"Decided", "Audited", "TokenMade"} & {one["kind"] for one in said}
                    or "Decided" in text
                )
                return {one["job"] for one in said if "job" in one}

            seen = (await bob.get("/api/v1/events")).text
            assert jobs_in(seen) == {mine}
            assert "TokenMade" not in seen
            assert "Decided" not in seen
            assert jobs_in((await olga.get("/api/v1/events")).text) == {mine, others}
            chosen = (await olga.get("/api/v1/events?kind=NodeSeen")).text
            assert chosen.count("event: ") == 2

    play(story)


def test_submissions_of_one_user_are_limited_and_of_another_are_not(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(submits_per_s=0.001, submit_burst=3)
        async with a_rig(tmp_path, limits=limits) as rig, rig.client("ada") as ada:
            statuses = [(await ada.post("/api/v1/jobs", json=SMALL)).status_code for _ in range(4)]
            assert statuses == [201, 201, 201, 429]
            refused = await ada.post("/api/v1/jobs", json=SMALL)
            assert 900 <= int(refused.headers["retry-after"]) <= 1000
            await rig.submit("bob")
            assert (await ada.get("/api/v1/jobs")).status_code == 200

    play(story)


def test_the_channel_opens_to_its_own_job_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, open_on_loopback=True) as rig:
            mine, other = await rig.submit("ada"), await rig.submit("bob")
            await rig.until(lambda: len(rig.backend.started) == 2)
            context = rig.service.context
            body = {"worker": f"{mine}.1.0"}
            path = "/api/v1/worker/ready"
            async with rig.client(token=context.token(mine)) as worker:
                assert (await worker.post(path, json=body)).status_code == 204
                assert (await worker.post(path, json={"worker": f"{other}.1.0"})).status_code == 403
                assert (await worker.post(path, json={"worker": f"{mine}.7.0"})).status_code == 410
                assert (await worker.get(f"/api/v1/jobs/{mine}")).status_code == 401
            forged = [
                f"{mine}.{'0' * 64}",
                context.token(other).replace(other, mine, 1),
                "",
                ".",
                token_of("root"),
            ]
            for token in forged:
                async with rig.client(token=token) as worker:
                    assert (await worker.post(path, json=body)).status_code == 401

    play(story)


def test_a_token_opens_until_its_end_and_its_streams_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            asked = {"name": "guest", "user": "eve", "expires_in_s": 3600}
            made = (await root.post("/api/v1/tokens", json=asked)).json()
            assert 3500 < made["expires"] - time.time() <= 3600
            async with rig.client(token=made["token"]) as eve:
                assert (await eve.get("/api/v1/jobs")).status_code == 200
                monkeypatch.setattr(time, "time", lambda: made["expires"] - 1)
                assert (await eve.get("/api/v1/jobs")).status_code == 200
                caller = Caller("eve", Role.USER, rig.service.state.tokens[digest_of(made["token"])])
                assert caller.holds_still(rig.service)
                monkeypatch.setattr(time, "time", lambda: made["expires"])
                refused = await eve.get("/api/v1/jobs")
                assert (refused.status_code, refused.json()["detail"]) == (401, "the token has expired")
                assert not caller.holds_still(rig.service)
            for wrong in (0, -1, "soon"):
                body = {**asked, "name": "x", "expires_in_s": wrong}
                assert (await root.post("/api/v1/tokens", json=body)).status_code == 422

    play(story)


def test_the_last_use_of_a_token_is_shown_and_noted_in_the_log_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("olga") as olga, rig.client("root") as root:
            now_s = time.time()
            digest = digest_of(token_of("olga"))

            async def last_use() -> Any:
                tokens = (await root.get("/api/v1/tokens")).json()["tokens"]
                return next(one["last_used"] for one in tokens if one["name"] == "olga")

            assert await last_use() is None
            for later_s, noted_s in ((0, 0), (60, 0), (86_000, 0), (86_400, 86_400), (86_500, 86_400)):
                monkeypatch.setattr(time, "time", lambda at_s=now_s + later_s: at_s)
                await olga.get("/api/v1/nodes")
                assert await last_use() == now_s + later_s
                await rig.submit()  # what was given to the log before is there then
                assert rig.service.state.tokens[digest].used_unix_s == now_s + noted_s
            used = [one for one in rig.store.read(kinds=[TokenUsed.__name__]) if one.subject == "olga"]
            assert len(used) == 2

    play(story)


def test_the_last_token_of_an_admin_cannot_be_revoked(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            refused = await root.delete("/api/v1/tokens/root")
            assert refused.status_code == 409
            assert "is the last token of an admin" in refused.json()["detail"]
            asked = {"name": "second", "user": "root", "role": "admin"}
            made = (await root.post("/api/v1/tokens", json=asked)).json()
            async with rig.client(token=made["token"]) as second:
                answers = await asyncio.gather(
                    root.delete("/api/v1/tokens/second"), second.delete("/api/v1/tokens/root")
                )
            assert sorted(one.status_code for one in answers) in ([204, 401], [204, 409])
            admins = [one for one in rig.service.state.tokens.values() if one.role == "admin"]
            assert len(admins) == 1

    play(story)


def test_the_audit_names_the_token_and_holds_failed_logins_but_not_endlessly(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            a_rig(tmp_path) as rig,
            rig.client("olga") as olga,
            rig.client(token="guessed") as guesser,
            rig.client() as nobody,
        ):
            job = await rig.submit("ada")
            await olga.post(f"/api/v1/jobs/{job}/hold")
            for _ in range(50):
                assert (await guesser.get("/api/v1/jobs")).status_code == 401
            assert (await nobody.get("/api/v1/jobs")).status_code == 401
            await rig.submit("bob")
            noted = [one.body for one in rig.store.read(kinds=[Audited.__name__])]
            keys = ("who", "what", "token", "client")
            assert [noted[0][key] for key in keys] == ["olga", "hold", "olga", "127.0.0.1"]
            failed = {
                "who": "nobody",
                "what": "log in",
                "about": "/api/v1/jobs",
                "refused": "unknown or revoked token",
                "token": "",
                "client": "127.0.0.1",
            }
            assert noted[1:] == [failed] * 20
            assert "guessed" not in json.dumps(noted)

    play(story)


@pytest.mark.sockets
def test_the_open_door_is_closed_to_proxies_that_say_nothing_of_themselves(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, open_on_loopback=True) as rig, rig.listening() as (host, port):
            for version, status in (("1.0", b"401"), ("1.1", b"200")):
                reader, writer = await asyncio.open_connection(host, port)
                head = f"GET /api/v1/jobs HTTP/{version}\r\nhost: 127.0.0.1:{port}\r\n"
                writer.write(head.encode() + b"connection: close\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
                writer.close()

    play(story)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "gpu-box"])
def test_the_open_door_is_for_services_that_listen_on_this_machine_only(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="--insecure-loopback: expected --listen with an address of this"):
        Config(tmp_path, host=host, open_on_loopback=True)


def test_a_what_if_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            for body in ({"polcy": "sia"}, {"nodes": [{"gpu_type": "a100", "gpus": 1, "cuont": 2}]}):
                answer = await ada.post("/api/v1/whatif", json=body)
                assert answer.status_code == 422, answer.text

    play(story)
