"""Images of jobs over HTTP: handed to workers, shown, and refused where workers run in no container."""

from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import a_rig, play

from stretto.backends.local.backend import LocalBackend
from stretto.service.emulated.backend import EmulatedBackend

pytestmark = pytest.mark.sqlite

IMAGE = "registry.example/team/train:1.2"
JOB = f"run: python train.py\nimage: {IMAGE}\n"


def test_workers_get_the_image_and_the_job_shows_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            job = await rig.submit("ada", text=JOB)
            await rig.until(lambda: rig.backend.started)
            assert rig.backend.started[0].image == IMAGE
            assert rig.backend.started[0].request()["image"] == IMAGE
            assert (await ada.get(f"/api/v1/jobs/{job}")).json()["image"] == IMAGE
            plain = await rig.submit("ada", text="run: true")
            assert (await ada.get(f"/api/v1/jobs/{plain}")).json()["image"] == ""

    play(story)


def test_a_backend_whose_workers_run_in_no_container_is_named(tmp_path: Path) -> None:
    class Plain:
        def __init__(self, backend: Any) -> None:
            self.backend = backend

        def __getattr__(self, name: str) -> Any:
            if name == "runs_images":
                raise AttributeError(name)
            return getattr(self.backend, name)

    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as ada:
            rig.service.backend = Plain(rig.backend)
            for path in ("/api/v1/jobs", "/api/v1/jobs/dry-run"):
                answer = await ada.post(path, json={"text": JOB})
                assert answer.status_code == 422
                assert "image: expected none: workers of the backend" in answer.json()["detail"]
                assert "run in no container" in answer.json()["detail"]

    play(story)


@pytest.mark.parametrize("backend", [LocalBackend, EmulatedBackend])
def test_workers_of_this_machine_and_emulated_ones_run_in_no_container(backend: type) -> None:
    assert not hasattr(backend, "runs_images")
