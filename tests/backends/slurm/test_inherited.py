"""A worker job begins with a few known names: nothing of the service, and nothing that a login would load."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.backends.slurm.cluster import SlurmCluster
from tests.backends.slurm.stories import a_start, in_phase, opened

from stretto.backends.slurm import worker_jobs

pytestmark = [pytest.mark.slurm, pytest.mark.large]

LOGIN = "SLURM_GET_USER_ENV"  # by which sbatch has Slurm log the user in before the job begins
SECRETS = ("PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL")


def test_a_worker_has_the_usual_names_and_neither_secrets_nor_a_login(
    cluster: SlurmCluster, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*SECRETS, "WANDB_MODE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")

    async def story() -> None:
        async with opened(cluster, shared, pass_env=("WANDB_*",)) as backend:
            await backend.start(a_start("1.1.0", "env"))
            assert (await in_phase(backend, "1.1.0", "ended")).status == 0
            lines = (await backend.log("1.1.0")).data.decode().splitlines()
            names = {line.partition("=")[0] for line in lines}
            assert {"PATH", "HOME", "SLURM_JOB_ID", "WANDB_MODE", "OMP_NUM_THREADS"} <= names
            assert names.isdisjoint((*SECRETS, LOGIN))

    asyncio.run(story())


def test_what_lets_the_service_speak_to_slurm_does_not_reach_the_supervisor(tmp_path: Path) -> None:
    script = tmp_path / "supervisor.py"
    script.write_text("import os; print(*os.environ)")
    done = subprocess.run(
        ["sh", "-c", worker_jobs.script_of(tmp_path, script)],
        env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_JWT": "x", "KRB5CCNAME": "x"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "SLURM_JOB_ID" in done.stdout.split()
    assert {"SLURM_JWT", "KRB5CCNAME"}.isdisjoint(done.stdout.split())
