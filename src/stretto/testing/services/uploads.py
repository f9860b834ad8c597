"""Jobs that bring their files along, over every backend whose workers fetch them."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from stretto.errors import InputError
from stretto.testing.services.fixture import ServiceFixture

SCRIPT = "import helper, os; print('HERE', os.getcwd()); print(helper.WORDS, flush=True)\n"


class Uploads:
    """Jobs that bring their files along."""

    def test_a_job_begins_in_a_copy_of_what_it_brought_along_which_goes_with_it(
        self, service: ServiceFixture, tmp_path: Path
    ) -> None:
        """A job has nothing but what it brought along; nothing of that is left."""
        job = submitted(service, tmp_path / "tree")
        assert service.until_state(job, "COMPLETED", "FAILED")["state"] == "COMPLETED", service.log(job)
        lines = service.log(job).splitlines()
        assert "brought along" in lines
        (here,) = (line.removeprefix("HERE ") for line in lines if line.startswith("HERE "))
        service.until(lambda: not Path(here).exists(), "the copy goes with its last worker")

    def test_an_upload_that_cannot_be_fetched_ends_the_job_with_one_line_that_says_why(
        self, service: ServiceFixture, tmp_path: Path
    ) -> None:
        """What comes as something else than was uploaded never runs, and the job says why."""
        stored = service.running.state / "uploads"
        before = {*stored.rglob("parts/*/*")}
        job = submitted(service, tmp_path / "tree", hold=True, words="to be spoilt")
        (helper,) = (part for part in {*stored.rglob("parts/*/*")} - before if b"spoilt" in part.read_bytes())
        helper.write_bytes(helper.read_bytes().replace(b"spoilt", b"SPOILT"))
        service.change(job, "release")
        shown = service.until_state(job, "COMPLETED", "FAILED")
        assert (shown["state"], shown["status"]) == ("FAILED", 125)
        assert "the upload cannot be fetched: 'helper.py' is not what was uploaded" in shown["evidence"]
        assert "\n" not in shown["evidence"]
        assert "HERE" not in service.log(job)


def submitted(service: ServiceFixture, tree: Path, hold: bool = False, words: str = "brought along") -> str:
    """A job of which nothing is left here once it is submitted; skips where no worker fetches uploads."""
    with service.client() as client:
        try:
            client.ask("GET", "/api/v1/uploads")
        except InputError as refused:
            if "do not fetch any" not in str(refused):
                raise
            pytest.skip(str(refused))
        tree.mkdir()
        (tree / "train.py").write_text(SCRIPT, encoding="utf-8")
        (tree / "helper.py").write_text(f"WORDS = {words!r}\n", encoding="utf-8")
        asked = {"run": f"exec {sys.executable} train.py", "hold": hold, "restart": {"max": 0}}
        job = client.submit(json.dumps({"name": "uploaded", **asked}), upload=tree)
        shutil.rmtree(tree)
        return str(job["id"])
