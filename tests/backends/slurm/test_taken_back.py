"""What becomes of worker jobs that Slurm itself ends: for others, or at the end of their time."""

import asyncio
from pathlib import Path

import pytest
from tests.backends.slurm.cluster import CannotRun, SlurmCluster, until
from tests.backends.slurm.stories import a_start, in_phase, opened

pytestmark = [pytest.mark.slurm, pytest.mark.large]

SAVES = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.1; done"


def test_who_is_preempted_by_slurm_may_save_and_is_not_requeued_there(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", SAVES, gpus=(0, 1)))
            assert (await backend.log("1.1.0", wait_s=60.0)).data == b"ready\n"
            first = ["sbatch", "--parsable", "--partition=high", "--gres=gpu:2", "--nodelist=a1", "--mem=100"]
            number = cluster.run(*first, "--output=/dev/null", "--wrap", "sleep 600").strip()
            ended = await in_phase(backend, "1.1.0", "ended")
            assert (ended.status, "PREEMPTED" in ended.why) == (143, True), ended
            assert (await backend.log("1.1.0")).data.endswith(b"saved\n")
            until(lambda: len(cluster.jobs()) == 1, lambda: f"{cluster.jobs()}")
            assert cluster.jobs()[0].startswith(f"{number} ")

    asyncio.run(story())


@pytest.mark.long
def test_whose_time_is_up_may_save_within_its_grace_before(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared, partitions=("short",)) as backend:
            await backend.start(a_start("1.1.0", SAVES, grace_s=20.0))
            assert (await backend.log("1.1.0", wait_s=60.0)).data == b"ready\n"
            async with asyncio.timeout(120.0):
                while (await backend.workers())[0].phase != "ended":
                    await asyncio.sleep(0.5)
            (ended,) = await backend.workers()
            assert (ended.status, ended.stopped) == (143, True)
            assert (await backend.log("1.1.0")).data.endswith(b"saved\n")

    asyncio.run(story())


def test_of_whom_slurm_knows_nothing_any_more_the_shared_directory_tells(tmp_path: Path) -> None:
    """Slurm forgets jobs after MinJobAge; a service that comes later still learns how they ended."""
    cluster = SlurmCluster(tmp_path / "slurm", {"a1": ("a100", 2)}, min_job_age_s=2)
    try:
        cluster.start()
    except CannotRun as why:
        pytest.skip(str(why))

    async def first() -> None:
        async with opened(cluster, tmp_path / "shared") as backend:
            await backend.start(a_start("1.1.0", "sleep 1; exit 7"))
            await backend.start(a_start("2.1.0", "sleep 600", gpus=(1,)))
            await in_phase(backend, "2.1.0", "running")

    async def second() -> None:
        async with opened(cluster, tmp_path / "shared") as backend:
            assert (await in_phase(backend, "1.1.0", "ended")).status == 7
            lost = await in_phase(backend, "2.1.0", "ended")
            assert (lost.status, lost.why) == (137, "Slurm knows it no more")

    def known() -> str:
        return cluster.run("squeue", "--all", "--states=all", "--noheader", "--format=%i")

    try:
        asyncio.run(first())
        number = next(job.split()[0] for job in cluster.jobs() if "2.1.0" in job)
        cluster.run("scancel", "--signal=KILL", "--full", number)
        until(lambda: not known(), known, patience_s=90.0)
        (tmp_path / "shared" / "slurm" / "s" / "runs" / "2.1.0" / "ended.json").unlink(missing_ok=True)
        asyncio.run(second())
    finally:
        left = cluster.close()
    assert left == []
