"""A damaged directory of one worker job keeps no service from the others."""

from pathlib import Path

import pytest

from stretto.backends.protocol import WorkerStart
from stretto.backends.slurm import worker_jobs
from stretto.backends.slurm.backend import SlurmBackend
from stretto.backends.slurm.nodes import NodeResources
from stretto.backends.slurm.options import SlurmOptions

pytestmark = [pytest.mark.processes, pytest.mark.large]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": "x", "gpus": -1}', "[" * 100_000])
@pytest.mark.parametrize("name", ["start.json", "running.json", "slice.json"])
def test_of_two_worker_jobs_the_damaged_one_is_set_aside(
    tmp_path: Path, name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = SlurmBackend(SlurmOptions(()), "s", tmp_path)
    backend.adopt()
    for worker in ("1.1.0", "2.1.0"):
        start = WorkerStart(worker, worker[0], "n1", (0,), "exit 0", {})
        run = worker_jobs.prepare(backend.runs, start, NodeResources(1, 1, 1))
        worker_jobs.note_job(run, 7)
    (backend.runs / "1.1.0" / name).write_text(text)
    backend.known.clear()
    backend.adopt()
    assert list(backend.known) == ["2.1.0"]
    assert backend.known["2.1.0"].job_id == 7
    assert f"worker 1.1.0 is set aside: {name}" in caplog.text
