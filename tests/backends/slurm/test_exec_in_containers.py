"""`stretto exec` by its command line, through a service over a real Slurm, into the image of a job."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.backends.slurm.cluster import PATIENCE_S, SlurmCluster, until
from tests.cli.on_terminal import OnTerminal
from tests.service.running import PROGRAM, Running

pytestmark = [pytest.mark.slurm, pytest.mark.large]

JOB = """
name: in-an-image
image: {image}
run: echo begun; exec sleep 3600
envs: {{GREETING: hello}}
"""
# A stand-in tells the image by a variable; a real one has a file that this machine has not.
SHOW = (
    'echo "${IMAGE:-$APPTAINER_CONTAINER} $GREETING $STRETTO_WORKER_ID"; cat /etc/of-the-image; cat; exit 5'
)
COUNT = "trap 'echo interrupted; exit 9' INT; echo it traps; while :; do sleep 0.1; done"


@pytest.fixture
def service(cluster: SlurmCluster, tmp_path: Path, by_apptainer: Mapping[str, Any]) -> Iterator[Running]:
    options = ["--backend", "slurm", "--policy", "fifo", "--container", "apptainer"]
    options += ["--set", f"backend.container_program={by_apptainer['container_program']}"]
    options += ["--set", "backend.mounts=/usr"]
    running = Running(tmp_path / "service", *options, env={**os.environ, **cluster.environment})
    running.begin()
    try:
        yield running
    finally:
        running.end()


def test_a_command_and_a_terminal_are_in_the_image_of_their_job(
    service: Running, by_apptainer: Mapping[str, Any], tmp_path: Path
) -> None:
    image, env = by_apptainer["image"], {**os.environ, "STRETTO_URL": service.url}
    is_real = Path(image).exists()
    asked = (sys.executable, *PROGRAM, "exec")
    with service.client() as client:
        job = client.submit(JOB.format(image=image))["id"]
        until(lambda: client.describe(job)["state"] == "RUNNING", lambda: f"{client.describe(job)}")
        until(lambda: "begun" in "".join(client.log(job)), lambda: f"{client.describe(job)}")
        if is_real:
            (Path(image) / "etc" / "of-the-image").write_text("only here\n")
        ran = subprocess.run(
            [*asked, job, "--", "sh", "-c", SHOW],
            input=b"\0typed\xff\n",
            capture_output=True,
            timeout=PATIENCE_S,
            env=env,
            check=False,
        )
        assert ran.returncode == 5, ran
        in_image = b"only here\n" if is_real else b""
        assert ran.stdout == f"{image} hello {job}.1.0\n".encode() + in_image + b"\0typed\xff\n"
        no_file = b"cat: /etc/of-the-image: No such file or directory\n"
        assert ran.stderr == (b"" if is_real else no_file)
        shell = OnTerminal(*asked, job, "--", "sh", "-c", COUNT, env=env)
        try:
            shell.until(b"it traps")
            shell.type(b"\x03")
            assert shell.status() == 9, shell.shown
            assert b"interrupted" in shell.shown
        finally:
            shell.end()
        if not is_real:
            called = (tmp_path / "bin" / "called").read_text().splitlines()
            worker, *sessions = [json.loads(each) for each in called]
            assert [each[-4:] for each in sessions] == [[image, "sh", "-c", line] for line in (SHOW, COUNT)]
            place = worker.index(image)  # the same folders and the same working directory
            assert [each[:place] for each in sessions] == [worker[:place]] * 2
        client.change(job, "cancel")
        until(lambda: client.describe(job)["state"] == "CANCELLED", lambda: f"{client.describe(job)}")
