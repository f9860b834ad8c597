"""State directories that older versions have left: this version goes on from them.

Each archive in `older` was written by that version itself, which emulated a cluster and was then stopped. One
of its jobs has ended. A rigid one was held and released, and runs, as an array and two more jobs do.
"""

import tarfile
from pathlib import Path

import pytest
from tests.service.running import Running

from stretto.demo.own_service import until
from stretto.service.eventlog import open_store

pytestmark = [pytest.mark.processes, pytest.mark.sqlite]

OLDER = Path(__file__).with_name("older")
JOBS = {
    "1": "elastic",
    "2": "rigid",
    "3_0": "array",
    "3_1": "array",
    "3_2": "array",
    "6": "late",
    "7": "elastic",
}


@pytest.mark.parametrize(
    ("archive", "policy", "first_state"),
    [("schema3", "sia", "COMPLETED"), ("schema4", "unisched", "CANCELLED")],
    ids=["2026-11-23", "2026-11-24"],
)
def test_an_older_state_directory_is_gone_on_from(
    tmp_path: Path, archive: str, policy: str, first_state: str
) -> None:
    with tarfile.open(OLDER / f"{archive}.tar.gz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # there from Python 3.11.4 on
        packed.extractall(tmp_path / "state")
    running = Running(
        tmp_path,
        *("--backend", "emulated", "--cluster", "sia-hetero-64", "--pace", "600", "--policy", policy),
    )
    decisions, differences = _decided_again(running)
    assert decisions > 10
    assert differences == 0, "what it decided comes out as it was decided then"
    running.begin()
    try:
        with running.client() as client:
            found = {job["id"]: job for job in client.jobs(everybody=True, ended=True)}
            assert {name: job["name"] for name, job in found.items()} == JOBS
            assert client.describe("1")["state"] == first_state
            (used,) = [row for row in client.usage("job") if row["job"] == "1"]
            assert used["gpu_hours"] > 0
            later = str(client.submit("run: sleep 60\nresources: {accelerators: 2}")["id"])
            assert int(later) > max(int(name.partition("_")[0]) for name in JOBS)
            for name in (*sorted(JOBS)[1:], later):
                assert client.wait(name)["state"] == "COMPLETED", name
            after = {row["job"]: row["gpu_hours"] for row in client.usage("job")}
            assert after["1"] == pytest.approx(used["gpu_hours"])
            assert {*after} >= {*JOBS} - {"3_0", "3_1", "3_2"}
            until(lambda: all(node["free"] == node["gpus"] for node in client.nodes()), what="all is free")
    finally:
        running.end()
    more, differences = running.differences()
    assert more > decisions
    assert differences == 0, "over both versions"


def _decided_again(running: Running) -> tuple[int, int]:
    """How many decisions its log has, and how many come out otherwise; the schema is raised first."""
    with open_store(running.store):
        pass
    return running.differences()
