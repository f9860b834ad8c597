"""Who waits for a quota or a reservation is told so, and by how many GPUs."""

from pathlib import Path

import pytest
from tests.service.http.rig import Rig, a_rig, play

pytestmark = [pytest.mark.processes, pytest.mark.sqlite]

WIDE = "run: sleep\nqueue: team\nresources: {accelerators: '2'}"


def reason(rig: Rig, job: str) -> str:
    return str(rig.service.status_of(rig.service.state.jobs[job]).reason)


def test_a_job_beyond_the_quota_of_its_queue_is_told_by_how_much(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            assert (await root.put("/api/v1/queues/team", json={"quota_gpus": 3})).is_success
            first = await rig.submit("ada", text=WIDE)
            await rig.until(lambda: rig.backend.started)
            second, third = await rig.submit("ada", text=WIDE), await rig.submit("ada", text=WIDE)
            await rig.until(lambda: reason(rig, third) == reason(rig, second) == "QUOTA")
            shown = (await root.get(f"/api/v1/jobs/{second}")).json()
            assert (shown["state"], shown["reason"]) == ("PENDING", "QUOTA")
            assert shown["evidence"] == "queue team has 3 GPUs, and holds 2; it needs 2, 1 too many"
            said = (await root.get(f"/api/v1/jobs/{second}/explain")).json()
            assert said["reason"] == "QUOTA"
            assert "1 too many" in said["headline"]
            row = next(
                one for one in (await root.get("/api/v1/queues")).json()["queues"] if one["name"] == "team"
            )
            assert (row["held_gpus"], row["waiting"]) == (2, 2)
            assert (await root.put("/api/v1/queues/team", json={"quota_gpus": 4})).is_success
            await rig.until(lambda: len(rig.backend.started) == 4)
            assert first != second

    play(story)


def test_a_job_that_its_queue_could_never_hold_never_starts(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            assert (await root.put("/api/v1/queues/team", json={"quota_gpus": 1})).is_success
            job = await rig.submit("ada", text=WIDE)
            await rig.until(lambda: reason(rig, job) == "EXCEEDS_QUOTA")
            said = (await root.get(f"/api/v1/jobs/{job}/explain")).json()
            assert (said["reason"], said["never"]) == ("EXCEEDS_QUOTA", True)

    play(story)


def test_what_is_reserved_for_somebody_else_is_not_had(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("olga") as olga:
            asked = {"end": 4e9, "gpu_type": "a100", "gpus": 8, "user": "bob"}
            answer = await olga.put("/api/v1/reservations/talk", json=asked)
            assert answer.is_success, answer.text
            waits = await rig.submit("ada", text="run: sleep")
            await rig.submit("bob", text="run: sleep")
            await rig.until(lambda: rig.backend.started)
            await rig.until(lambda: reason(rig, waits) == "RESERVED")
            shown = (await olga.get(f"/api/v1/jobs/{waits}")).json()
            assert shown["reason"] == "RESERVED"
            assert "8 x a100 are reserved for user bob" in shown["evidence"]
            assert (await olga.delete("/api/v1/reservations/talk")).is_success
            await rig.until(lambda: len(rig.backend.started) == 2)
            kinds = [one.kind for one in rig.store.read(kinds={"Audited", "Reserved", "Unreserved"})]
            assert kinds == ["Reserved", "Audited", "Unreserved", "Audited"]
            late = {**asked, "end": 1.6e9}
            assert (await olga.put("/api/v1/reservations/talk", json=late)).status_code == 422

    play(story)
