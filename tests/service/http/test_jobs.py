"""Jobs over HTTP: submitted once, found again page by page, changed by those who may."""

import asyncio
from pathlib import Path

import httpx
import pytest
from pydantic import TypeAdapter
from tests.service.http.rig import NOWHERE, SMALL, a_rig, play

from stretto.jobfile import JobSpec
from stretto.service.http import schemas
from stretto.service.state.events import Submitted
from stretto.service.state.status import JobStatus

pytestmark = pytest.mark.sqlite


def test_a_job_is_submitted_described_and_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            answer = await ada.post("/api/v1/jobs", json=SMALL)
            assert answer.status_code == 201
            job = TypeAdapter(schemas.Accepted).validate_python(answer.json())
            assert answer.headers["location"] == f"/api/v1/jobs/{job.id}"
            assert (job.user, job.ids, job.warnings) == ("ada", [job.id], [])
            await rig.until(lambda: rig.backend.started)
            assert rig.backend.started[0].job == job.id
            waiting = asyncio.create_task(ada.get(f"/api/v1/jobs/{job.id}/wait"))
            await rig.backend.finish(f"{job.id}.1.0", 0)
            assert TypeAdapter(JobStatus).validate_python((await waiting).json()).state == "COMPLETED"

    play(story)


def test_the_same_key_gives_the_same_job(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            key = {"idempotency-key": "once"}
            first = await ada.post("/api/v1/jobs", json=SMALL, headers=key)
            again = await ada.post("/api/v1/jobs", json=SMALL, headers=key)
            other = await ada.post("/api/v1/jobs", json=NOWHERE, headers=key)
            bobs = await bob.post("/api/v1/jobs", json=SMALL, headers=key)
            assert (first.status_code, again.status_code, bobs.status_code) == (201, 200, 201)
            assert first.json()["id"] == again.json()["id"] != bobs.json()["id"]
            assert other.status_code == 422
            assert "used before" in other.json()["detail"]

    play(story)


def test_the_same_key_many_times_at_once_is_one_job(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            keys = [f"key-{number % 5}" for number in range(100)]
            answers = await asyncio.gather(
                *(ada.post("/api/v1/jobs", json=SMALL, headers={"idempotency-key": key}) for key in keys)
            )
            ids = {(key, answer.json()["id"]) for key, answer in zip(keys, answers, strict=True)}
            assert len(ids) == 5
            assert sorted(answer.status_code for answer in answers) == [200] * 95 + [201] * 5
            assert len(rig.service.state.jobs) == 5

    play(story)


def test_whoever_asks_may_be_cancelled_and_the_job_is_kept_with_its_key(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            key = {"idempotency-key": "gone"}
            asking = [
                asyncio.create_task(ada.post("/api/v1/jobs", json=SMALL, headers=key)) for _ in range(20)
            ]
            await rig.until(lambda: rig.app.state.under_way)
            for one in asking:
                one.cancel()
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert {one.status_code for one in ends if isinstance(one, httpx.Response)} <= {503}
            assert all(isinstance(one, asyncio.CancelledError | httpx.Response) for one in ends)
            answer = await ada.post("/api/v1/jobs", json=SMALL, headers=key)
            assert answer.status_code == 200
            submitted = list(rig.store.read(kinds=[Submitted.__name__]))
            assert len(submitted) == len(rig.service.state.jobs) == 1

    play(story)


def test_2500_jobs_are_listed_once_each_by_pages_while_more_come_and_go(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            spec = Submitted("", JobSpec("true").to_json(), "ada")
            await rig.service.record(*(Submitted(str(n), spec.spec, "ada") for n in range(1, 2501)))
            await rig.service.record(*(Submitted(f"b{n}", spec.spec, "bob") for n in range(100)))
            found: list[str] = []
            after: str | None = ""
            pages = 0
            while after is not None:
                page = schemas.JobPage.model_validate(
                    (await ada.get("/api/v1/jobs", params={"after": after, "limit": 300})).json()
                )
                found += [job.id for job in page.jobs]
                after, pages = page.next, pages + 1
                await ada.post(f"/api/v1/jobs/{found[-1]}/cancel")  # the cursor's own job ends meanwhile
                await rig.submit("bob")
            assert found == [str(n) for n in range(1, 2501)]
            assert pages == 9

    play(story)


def test_filters_choose_by_state_user_and_queue(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("olga") as olga:
            runs = await rig.submit("ada", text="run: sleep\nqueue: short")
            await rig.until(lambda: rig.backend.started)
            waits = await rig.submit("ada", text="run: sleep\nresources: {accelerators: '8'}")
            gone = await rig.submit("ada")
            await ada.post(f"/api/v1/jobs/{gone}/cancel")
            bobs = await rig.submit("bob", text="run: sleep\nqueue: short")
            await rig.until(lambda: rig.service.state.jobs[gone].has_ended)

            async def ids(asks: str, client: object = ada) -> list[str]:
                answer = await client.get(f"/api/v1/jobs?{asks}")  # type: ignore[attr-defined]
                assert answer.status_code == 200, answer.text
                return [one["id"] for one in answer.json()["jobs"]]

            assert await ids("") == [runs, waits]
            assert await ids("ended=true") == [runs, waits, gone]
            assert await ids("state=CANCELLED") == [gone]
            assert await ids("state=PENDING&state=CANCELLED") == [waits, gone]
            assert await ids("queue=short") == [runs]
            assert await ids("queue=short&everybody=true", olga) == [runs, bobs]
            assert await ids("user=bob", olga) == [bobs]
            assert await ids("", olga) == []

    play(story)


def test_every_verb_changes_what_it_says(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            job = await rig.submit("ada", text="run: sleep\nelastic: {min: 1, max: 4}")

            async def told(verb: str, **body: int) -> dict[str, object]:
                answer = await ada.post(f"/api/v1/jobs/{job}/{verb}", json=body or None)
                assert answer.status_code == 200, answer.text
                shown: dict[str, object] = answer.json()
                return shown

            assert (await told("hold"))["reason"] == "HELD"
            assert (await told("release"))["reason"] != "HELD"
            assert (await told("priority", priority=-7))["priority"] == -7
            shown = await told("scale", min_gpus=2, max_gpus=3)
            assert (shown["gpus_min"], shown["gpus_max"]) == (2, 3)
            assert (await told("requeue"))["state"] == "PENDING"
            await told("cancel")
            await rig.until(lambda: rig.service.state.jobs[job].has_ended)
            late = await ada.post(f"/api/v1/jobs/{job}/hold")
            assert late.status_code == 409

    play(story)


@pytest.mark.parametrize(
    ("text", "sizes", "status"),
    [
        pytest.param("run: 'true'", (1, 2), 409, id="a rigid job has one size"),
        pytest.param("run: 'true'\nelastic: {min: 1, max: 4}", (3, 2), 422, id="the least is above the most"),
        pytest.param(
            "run: 'true'\nresources: {gpus_per_worker: 2}\nelastic: {min: 2, max: 4}",
            (3, 4),
            422,
            id="half a worker",
        ),
        pytest.param("run: 'true'\nelastic: {sizes: [1, 4]}", (2, 3), 422, id="none of its sizes"),
        pytest.param("run: 'true'\nelastic: {min: 1, max: 4}", (999, 1000), 422, id="more than there are"),
        pytest.param(
            "run: 'true'\nresources: {gpus_per_worker: {a100: 3, other: 4}}\nelastic: {min: 1, max: 6}",
            (4, 5),
            422,
            id="no whole worker on its type",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    tmp_path: Path, text: str, sizes: tuple[int, int], status: int
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            job = await rig.submit("ada", text=text)
            body = {"min_gpus": sizes[0], "max_gpus": sizes[1]}
            answer = await ada.post(f"/api/v1/jobs/{job}/scale", json=body)
            assert answer.status_code == status, answer.text

    play(story)


def test_other_bounds_are_narrowed_to_sizes_that_the_job_may_have(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            job = await rig.submit("ada", text="run: 'true'\nelastic: {sizes: [1, 2, 4, 6]}")
            answer = await ada.post(f"/api/v1/jobs/{job}/scale", json={"min_gpus": 3, "max_gpus": 5})
            assert (answer.json()["gpus_min"], answer.json()["gpus_max"]) == (4, 4)

    play(story)


def test_a_character_is_never_cut_between_two_pieces_of_a_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            job = await rig.submit("ada")
            await rig.until(lambda: rig.backend.started)
            text = "größer 🎻 und weiter\n" * 40
            await rig.backend.write(f"{job}.1.0", text.encode())
            await rig.backend.finish(f"{job}.1.0")
            read, offset, complete = "", 0, False
            while not complete:
                answer = await ada.get(f"/api/v1/jobs/{job}/log", params={"offset": offset, "limit": 7})
                piece = schemas.LogPiece.model_validate(answer.json())
                assert piece.complete or piece.next_offset > offset
                read, offset, complete = read + piece.text, piece.next_offset, piece.complete
            assert read == text

    play(story)


@pytest.mark.slow
@pytest.mark.processes
def test_one_decision_that_had_to_wait_for_its_turn_does_not_keep_a_job_from_being_foreseen(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            job = await rig.submit("ada", text="run: x\nexpected_time: 1h")
            await rig.until(lambda: rig.backend.started and not rig.service.scheduling.is_deciding)
            rig.service.scheduling.took_ms = [1.0, 1.0, 1.0, 5_000.0]
            told = (await ada.get(f"/api/v1/jobs/{job}/explain")).json()
            assert told["draws"] > 0

    play(story)
