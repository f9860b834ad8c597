"""Workers in containers on a real Slurm: by a stand-in for apptainer, by a real one, and as pyxis has it."""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent.containers import an_image, real_apptainer
from tests.agent.test_container import COUNT
from tests.backends.slurm import cluster as machine
from tests.backends.slurm.cluster import SlurmCluster
from tests.backends.slurm.cluster import until as within
from tests.backends.slurm.stories import a_start, in_phase, opened, until
from tests.service.running import Running

from stretto.agent import container
from stretto.backends.slurm.options import NONE, SlurmOptions
from stretto.jobfile import JobSpec
from stretto.model import InputError

pytestmark = [pytest.mark.slurm, pytest.mark.large]

RUN = shlex.join(["exec", "/usr/bin/python3", "-c", COUNT])

ROOT = Path(__file__).parents[3]
TRAINING = """
name: digits
image: {image}
run: |
  echo "in $APPTAINER_CONTAINER with $HUB"
  exec {python} digits_cnn.py --channels 32 --epochs 40 --target 0
resources: {{accelerators: 1}}
elastic: {{min: 1, max: 2}}
batch: {{init: 64}}
checkpoint: {{every: 1m}}
grace_period: 30s
envs: {{OMP_NUM_THREADS: "1"}}
secrets: {{HUB: hub}}
"""

# srun with pyxis, as far as its words go: what it would run in a container runs beside it.
SRUN = """#!{python} -IS
import os, sys
words = sys.argv[1:]
if words == ["--help"]:
    print("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH")
    sys.exit(0)
with open({notes!r}, "a") as notes:
    notes.write("\\n".join(words) + "\\n\\n")
if any("missing" in word for word in words if word.startswith("--container-image=")):
    print("slurmstepd: error: pyxis:     [ERROR] No such file or directory: missing", file=sys.stderr)
    print("srun: error: a1: task 0: Exited with exit code 1", file=sys.stderr)
    sys.exit(1)
os.execv({srun!r}, [{srun!r}, *(word for word in words if not word.startswith("--container-"))])
"""


def test_a_worker_in_an_image_is_stopped_reached_and_ended_as_any_other(
    cluster: SlurmCluster, shared: Path, by_apptainer: Mapping[str, Any]
) -> None:
    image, more = by_apptainer["image"], {"container_program": by_apptainer["container_program"]}

    async def story() -> None:
        async with opened(
            cluster, shared, container=container.APPTAINER, mounts=("/usr",), **more
        ) as backend:
            await backend.start(a_start("1.1.0", RUN, image=image, secrets={"HUB": "hidden-hub"}))
            await in_phase(backend, "1.1.0", "running")
            assert (await backend.log("1.1.0", wait_s=60.0)).data == b"ready\n"
            await backend.stop("1.1.0", 30.0)
            ended = await in_phase(backend, "1.1.0", "ended")
            assert (ended.status, ended.stopped, ended.why) == (7, True, "")
            assert (await backend.log("1.1.0")).data == b"ready\ngot 1\n"
            await backend.start(a_start("2.1.0", "echo never", image="/images/missing.sif"))
            failed = await in_phase(backend, "2.1.0", "ended")
            assert (failed.status, failed.stopped) == (container.NOT_BEGUN, False)
            assert failed.why.startswith("cannot start: FATAL: ")
            assert "missing.sif" in failed.why

    asyncio.run(story())


def test_pyxis_runs_a_worker_as_a_step_of_its_job(
    cluster: SlurmCluster, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = shutil.which("srun", path=machine.programs())
    if srun is None:
        pytest.skip("this machine has no srun")
    folder, notes = tmp_path / "bin", tmp_path / "called"
    folder.mkdir()
    (folder / "srun").write_text(SRUN.format(python=sys.executable, notes=str(notes), srun=srun))
    (folder / "srun").chmod(0o755)
    path = f"{folder}:{cluster.environment.get('PATH', os.environ['PATH'])}"
    monkeypatch.setenv("PATH", path)  # which workers inherit
    environment = {**cluster.environment, "PATH": path}

    async def story() -> None:
        async with opened(cluster, shared, environment=environment) as backend:
            assert backend.options.container == container.PYXIS  # found by itself
            await backend.start(a_start("1.1.0", RUN, image="host.example/team/train:1"))

            async def is_ready() -> bool:
                ended = any(each.phase == "ended" for each in await backend.workers())
                return ended or (await backend.log("1.1.0")).data.endswith(b"ready\n")

            await until(backend, is_ready, "it is ready")
            await backend.stop("1.1.0", 30.0)
            ended = await in_phase(backend, "1.1.0", "ended")
            assert (ended.status, ended.stopped) == (7, True), (await backend.log("1.1.0")).data
            assert b"ready\ngot 1\n" in (await backend.log("1.1.0")).data
            said = notes.read_text()
            assert "--container-image=host.example#team/train:1\n" in said
            assert f"--container-mounts={shared / 'slurm' / 's' / 'runs' / '1.1.0'}" in said
            await backend.start(a_start("2.1.0", "echo never", image="missing:1"))
            failed = await in_phase(backend, "2.1.0", "ended")
            assert failed.status == container.NOT_BEGUN
            assert failed.why.endswith("[ERROR] No such file or directory: missing")

    asyncio.run(story())


def test_a_training_with_its_files_is_resized_suspended_and_resumed_in_a_container(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    real = real_apptainer()
    if real is None:
        pytest.skip("this machine has no apptainer in PATH")
    folder, image = tmp_path / "service", an_image(tmp_path / "image")
    seen = [
        "/usr",
        str(ROOT),
        *dict.fromkeys(str(Path(each).resolve()) for each in (sys.prefix, sys.base_prefix)),
    ]
    options = [
        "--backend",
        "slurm",
        "--policy",
        "sia",
        "--set",
        "policy.round_s=1",
        "--container",
        "apptainer",
    ]
    options += ["--set", f"backend.container_program={real}", "--set", f"backend.mounts={','.join(seen)}"]
    running = Running(folder, *options, env={**os.environ, **cluster.environment})
    folder.mkdir()
    running.begin()
    try:
        with running.client() as client:
            text = TRAINING.format(python=sys.executable, image=image)
            client.set_secret("hub", "hidden-hub")
            job = client.submit(text, upload=ROOT / "examples")["id"]

            def trains_on(gpus: int) -> None:
                client.change(job, "scale", min_gpus=gpus, max_gpus=gpus)
                within(lambda: client.describe(job)["training_gpus"] == gpus, lambda: shown(client, job))

            for gpus in (1, 2, 1):
                trains_on(gpus)
            assert client.describe(job)["attempt"] == 1, shown(client, job)
            assert client.describe(job)["switches"] >= 2
            assert client.describe(job)["image"] == str(image)
            within(lambda: client.describe(job)["progress"].get("epoch", 0) > 1, lambda: shown(client, job))
            client.change(job, "hold")
            within(lambda: client.describe(job)["state"] == "SUSPENDED", lambda: shown(client, job))
            client.change(job, "release")
            within(lambda: client.describe(job)["ended_s"] is not None, lambda: shown(client, job))
            described = client.describe(job)
            assert (described["state"], described["failures"]) == ("COMPLETED", 0), shown(client, job)
            log = "".join(client.log(job))
            assert f"in {image} with hidden-hub" in log
    finally:
        running.end()


def shown(client: Any, job: str) -> str:
    """Where a job stands, and what it wrote."""
    return f"{client.describe(job)} {''.join(client.log(job))[-3000:]}"


def test_a_cluster_that_has_nothing_for_containers_refuses_jobs_with_an_image(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared, container=NONE) as backend:
            await backend.check(JobSpec("true"))
            with pytest.raises(InputError, match=r"^image: expected none: .*--container"):
                await backend.check(JobSpec("true", image="a:1"))

    asyncio.run(story())


def test_options_that_name_no_tool_or_no_folder_are_refused() -> None:
    with pytest.raises(InputError, match="--container docker: expected one of apptainer, pyxis, none"):
        SlurmOptions(container="docker")
    with pytest.raises(InputError, match=r"backend\.mounts=data: expected absolute paths"):
        SlurmOptions(mounts=("data",))
