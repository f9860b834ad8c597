"""Uploads over HTTP: sent by a user, named by a job of theirs, fetched by its workers and by nobody else."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import Rig, a_rig, play

from stretto.client.upload_manifest import manifest_in
from stretto.client.upload_tree import LENGTH_BYTES

pytestmark = pytest.mark.sqlite

CONTENT = b"print('trained')\n"
ENTRY: dict[str, Any] = {
    "path": "src/train.py",
    "bytes": len(CONTENT),
    "parts": [sha256(CONTENT).hexdigest()],
}
TREE: dict[str, Any] = {"entries": [ENTRY]}
DIGEST = manifest_in(TREE).digest
PACK = len(CONTENT).to_bytes(LENGTH_BYTES, "big") + CONTENT
JOB = "run: python train.py\nelastic: {min: 1, max: 1}"


async def uploaded(client: httpx.AsyncClient) -> None:
    offered = await client.post("/api/v1/uploads", json=TREE)
    assert offered.status_code == 200, offered.text
    assert offered.json() == {"digest": DIGEST, "files": 1, "bytes": 17, "missing": ENTRY["parts"]}
    sent = await client.post(f"/api/v1/uploads/{DIGEST}/parts", content=PACK)
    assert sent.status_code == 204, sent.text
    again = await client.post("/api/v1/uploads", json=TREE)
    assert again.json()["missing"] == []


async def fetched(rig: Rig, token: str, worker: str, what: str = "/content") -> httpx.Response:
    async with rig.client(token=token) as client:
        return await client.get(f"/api/v1/worker/upload{what}", params={"worker": worker})


def test_a_job_shows_what_it_brings_along_and_its_workers_alone_fetch_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            await uploaded(ada)
            job = await rig.submit("ada", text=JOB, upload=DIGEST, workdir="src")
            shown = (await ada.get(f"/api/v1/jobs/{job}")).json()["upload"]
            assert shown == {"digest": DIGEST, "files": 1, "bytes": 17}
            await rig.until(lambda: rig.backend.started)
            worker = rig.backend.started[0]
            token = worker.env["STRETTO_TOKEN"]
            assert (worker.cwd, worker.env["STRETTO_UPLOAD"]) == ("", DIGEST)
            manifest = await fetched(rig, token, worker.id, "")
            assert sha256(manifest.content).hexdigest() == DIGEST
            assert (await fetched(rig, token, worker.id)).content == CONTENT
            other = await rig.submit("ada", text=JOB)
            await rig.until(lambda: any(each.job == other for each in rig.backend.started))
            (theirs, *_) = [each for each in rig.backend.started if each.job == other]
            assert (await fetched(rig, theirs.env["STRETTO_TOKEN"], worker.id)).status_code == 403
            none = await fetched(rig, theirs.env["STRETTO_TOKEN"], theirs.id)
            assert (none.status_code, none.json()["detail"]) == (404, f"job {other} has no upload")
            assert (await ada.get("/api/v1/worker/upload/content")).status_code == 401

    play(story)


def test_what_a_submission_names_has_to_be_there_whole_and_one_s_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            for path in ("/api/v1/jobs", "/api/v1/jobs/dry-run"):
                refused = await ada.post(path, json={"text": JOB, "upload": DIGEST})
                assert refused.status_code == 422
                assert "upload: expected one of yours, got" in refused.json()["detail"]
            assert (await ada.post("/api/v1/uploads", json=TREE)).is_success
            half = await ada.post("/api/v1/jobs", json={"text": JOB, "upload": DIGEST})
            assert (half.status_code, "lacks 1 of its parts" in half.json()["detail"]) == (422, True)
            await uploaded(ada)
            theirs = await bob.post("/api/v1/jobs", json={"text": JOB, "upload": DIGEST})
            assert (theirs.status_code, "expected one of yours" in theirs.json()["detail"]) == (422, True)
            for workdir in ("train.py", "/src", "src/train.py"):
                nowhere = await ada.post(
                    "/api/v1/jobs", json={"text": JOB, "upload": DIGEST, "workdir": workdir}
                )
                assert nowhere.status_code == 422
                assert "workdir: with an upload expected a folder in it" in nowhere.json()["detail"]
            assert (await ada.post("/api/v1/jobs", json={"text": JOB, "upload": DIGEST})).status_code == 201

    play(story)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({**ENTRY, "path": "../train.py"}, "expected a path within the tree"),
        ({"path": "a", "target": "../x"}, "expected a link within the tree"),
        ({**ENTRY, "mode": 3}, "mode: Extra inputs are not permitted"),
        ({**ENTRY, "bytes": 10**9, "parts": ENTRY["parts"] * 954}, "has two sizes"),
        ({**ENTRY, "bytes": 10**15}, "expected a part for each MiB"),
    ],
)
def test_what_cannot_be_an_upload_is_one_line(tmp_path: Path, entry: dict[str, Any], says: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            answer = await ada.post("/api/v1/uploads", json={"entries": [entry]})
            assert answer.status_code == 422, answer.text
            assert says in answer.json()["detail"]
            assert not (tmp_path / "uploads").exists()

    play(story)


def test_a_backend_whose_workers_fetch_none_is_named(tmp_path: Path) -> None:
    class Plain:
        def __init__(self, backend: Any) -> None:
            self.backend = backend

        def __getattr__(self, name: str) -> Any:
            if name == "fetches_uploads":
                raise AttributeError(name)
            return getattr(self.backend, name)

    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            rig.service.backend = Plain(rig.backend)
            for answer in (
                await ada.get("/api/v1/uploads"),
                await ada.post("/api/v1/uploads", json=TREE),
                await ada.post("/api/v1/jobs", json={"text": JOB, "upload": DIGEST}),
            ):
                assert answer.status_code == 422
                assert "upload: expected none: workers of the backend" in answer.json()["detail"]

    play(story)


def test_an_upload_that_is_gone_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            await uploaded(ada)
            job = await rig.submit("ada", text=f"{JOB}\nhold: true", upload=DIGEST)
            (tmp_path / "uploads").rename(tmp_path / "lost")
            await ada.post(f"/api/v1/jobs/{job}/release")
            ended = (await ada.get(f"/api/v1/jobs/{job}/wait", params={"wait_s": 60})).json()
            assert (ended["state"], ended["status"]) == ("FAILED", 126)
            assert not rig.backend.started

    play(story)


def test_a_repeated_submission_with_another_upload_is_another_job(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            await uploaded(ada)
            headers, body = {"idempotency-key": "k"}, {"text": JOB, "upload": DIGEST}
            first = await ada.post("/api/v1/jobs", json=body, headers=headers)
            again = await ada.post("/api/v1/jobs", json=body, headers=headers)
            assert (first.status_code, again.status_code) == (201, 200)
            bare = await ada.post("/api/v1/jobs", json={"text": JOB}, headers=headers)
            assert (bare.status_code, bare.json()["job"]) == (422, first.json()["id"])

    play(story)
