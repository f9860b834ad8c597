"""Secrets over HTTP: everybody has one's own, and nobody is given a value back."""

from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import a_rig, play

from stretto.service.state.events import Audited

pytestmark = pytest.mark.sqlite

VALUE = "hf_Zq7WmT3kXv9RbN2s"
JOB = "run: sleep 9\nsecrets: {HF_TOKEN: hub}"


def names(answer: Any) -> list[tuple[str, str]]:
    return [(one["user"], one["name"]) for one in answer.json()["secrets"]]


def test_users_see_the_names_of_their_own_and_an_admin_those_of_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            people = {who: rig.client(who) for who in ("ada", "bob", "olga", "root")}
            said = []
            for who in ("ada", "bob"):
                said.append(await people[who].put("/api/v1/secrets/hub", json={"value": VALUE}))
                assert said[-1].status_code == 200, said[-1].text
            for who, seen in (("ada", ["ada"]), ("olga", []), ("root", ["ada", "bob"])):
                said.append(await people[who].get("/api/v1/secrets"))
                assert names(said[-1]) == [(user, "hub") for user in seen]
            for who, status in (("bob", 404), ("olga", 404), ("root", 204)):
                said.append(await people[who].delete("/api/v1/secrets/hub", params={"user": "ada"}))
                assert said[-1].status_code == status, who
            assert names(await people["root"].get("/api/v1/secrets")) == [("bob", "hub")]
            assert (await people["bob"].get("/api/v1/secrets/hub")).status_code == 405
            assert all(VALUE not in answer.text for answer in said)
            log = list(rig.store.read())
            assert VALUE not in str(log)
            notes = [Audited(**event.body) for event in log if event.kind == "Audited"]
            done = [(note.who, note.what, note.about) for note in notes if not note.refused]
            assert done == [
                ("ada", "set", "secret hub of ada"),
                ("bob", "set", "secret hub of bob"),
                ("root", "delete", "secret hub of ada"),
            ]

    play(story)


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("hub", {"value": ""}, "value: String should have at least 1 character"),
        ("hub", {"value": VALUE * 10_000}, "value: String should have at most 65536 characters"),
        ("hub", {"value": f"{VALUE}\0"}, "expected UTF-8 text without NUL"),
        ("hub", {"value": VALUE, "user": "bob"}, "user: Extra inputs are not permitted"),
        ("-x", {"value": VALUE}, "name: String should match pattern"),
    ],
)
def test_what_cannot_be_a_secret_is_refused_in_words_that_do_not_repeat_it(
    tmp_path: Path, name: str, body: Any, says: str
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            answer = await ada.put(f"/api/v1/secrets/{name}", json=body)
            assert answer.status_code == 422, answer.text
            assert says in answer.json()["detail"]
            assert VALUE not in answer.text
            assert names(await ada.get("/api/v1/secrets")) == []

    play(story)


def test_a_job_that_names_a_secret_of_nobody_or_of_another_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            await bob.put("/api/v1/secrets/hub", json={"value": VALUE})
            for path in ("/api/v1/jobs", "/api/v1/jobs/dry-run"):
                refused = await ada.post(path, json={"text": JOB})
                assert refused.status_code == 422
                assert "secrets: expected one of yours, got 'hub'" in refused.json()["detail"]
            await ada.put("/api/v1/secrets/hub", json={"value": VALUE})
            taken = await ada.post("/api/v1/jobs", json={"text": JOB})
            assert taken.status_code == 201, taken.text
            (row,) = (await ada.get("/api/v1/secrets")).json()["secrets"]
            assert row["jobs"] == [taken.json()["id"]]

    play(story)


def test_a_cluster_that_hands_no_secrets_to_workers_refuses_such_jobs(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            await ada.put("/api/v1/secrets/hub", json={"value": VALUE})
            rig.service.backend = Mute(rig.backend)
            refused = await ada.post("/api/v1/jobs", json={"text": JOB})
            assert refused.status_code == 422
            assert "secrets: expected none" in refused.json()["detail"]

    class Mute:
        def __init__(self, backend: Any) -> None:
            self.backend = backend

        def __getattr__(self, name: str) -> Any:
            if name == "hands_secrets":
                raise AttributeError(name)
            return getattr(self.backend, name)

    play(story)


def test_workers_get_the_value_and_a_secret_that_is_gone_ends_the_start_with_the_reason(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            await ada.put("/api/v1/secrets/hub", json={"value": VALUE})
            job = await rig.submit("ada", text=JOB)
            await rig.until(lambda: rig.backend.started)
            (worker,) = rig.backend.started
            assert worker.secrets == {"HF_TOKEN": VALUE}
            assert VALUE not in str(worker.env)
            waits = await rig.submit("ada", text=f"{JOB}\nhold: true")
            assert (await ada.delete("/api/v1/secrets/hub")).status_code == 204
            await ada.post(f"/api/v1/jobs/{waits}/release")
            ended = (await ada.get(f"/api/v1/jobs/{waits}/wait", params={"wait_s": 60})).json()
            assert (ended["state"], ended["status"]) == ("FAILED", 126)
            told = "".join(
                [line async for line in (await ada.get(f"/api/v1/jobs/{waits}/events")).aiter_text()]
            )
            assert "secret hub has been deleted" in told
            assert (await ada.get(f"/api/v1/jobs/{job}")).json()["state"] == "RUNNING"

    play(story)
