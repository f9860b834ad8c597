"""Workers as jobs of a real Slurm: what Slurm sees of them, and what becomes of them there."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.slurm import stories
from tests.backends.slurm.cluster import SlurmCluster, until
from tests.backends.slurm.stories import a_start, in_phase, insist, opened, worker

from stretto.agent import supervisor
from stretto.agent.log_bounds import NOTICE
from stretto.backends.protocol import BackendUnreachable, NotNow, StartRefused
from stretto.backends.slurm import worker_jobs

pytestmark = [pytest.mark.slurm, pytest.mark.large]

ONE_JOB = re.compile(r"JobId=(\d+)")


def test_a_worker_job_is_a_job_of_slurm_with_a_name_for_people_and_no_secret(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            start = a_start(
                "7.1.0", 'echo "$CUDA_VISIBLE_DEVICES $SLURM_JOB_NAME ${SLURM_NTASKS-}"; sleep 600'
            )
            start = replace(start, name="train", gpus=(0, 1), env={"STRETTO_TOKEN": "hidden-token"})
            await backend.start(start)
            await in_phase(backend, "7.1.0", "running")
            shown = cluster.run("scontrol", "-d", "show", "job", "--oneliner")
            assert "JobName=train:7.1.0 " in shown
            assert "GRES=gpu:a100:2(IDX:0-1)" in shown
            assert "Requeue=0" in shown
            assert (await backend.log("7.1.0", wait_s=60.0)).data == b"0,1 train:7.1.0 \n"
            number = ONE_JOB.findall(shown)[-1]
            batch = cluster.run("scontrol", "write", "batch_script", number, "-")
            state = b"".join(
                path.read_bytes() for path in (cluster.root / "state").rglob("*") if path.is_file()
            )
            assert "hidden-token" not in shown + batch
            assert b"hidden-token" not in state
            (run,) = (shared / "slurm" / "s" / "runs").iterdir()
            assert [oct(path.stat().st_mode & 0o777) for path in (run, run / "start.json")] == [
                "0o700",
                "0o600",
            ]
            await backend.stop("7.1.0", 0.0)
            await in_phase(backend, "7.1.0", "ended")

    asyncio.run(story())


def test_a_node_gives_its_parts_to_worker_jobs_beside_each_other(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", "sleep 600", gpus=(1,)))
            with pytest.raises(NotNow, match=r"GPU 1 of a1 is in use by 1\.1\.0"):
                await backend.start(a_start("2.1.0", "sleep 600", gpus=(0, 1)))
            await backend.start(a_start("3.1.0", "sleep 600", gpus=(0,)))
            for name in ("1.1.0", "3.1.0"):
                await in_phase(backend, name, "running")
            with pytest.raises(StartRefused, match=r"below 2, got \[2\]"):
                await backend.start(a_start("4.1.0", "sleep 600", gpus=(2,)))
            with pytest.raises(StartRefused, match="no node b9"):
                await backend.start(a_start("4.1.0", "sleep 600", node="b9"))
            with pytest.raises(StartRefused, match="another request"):
                await backend.start(a_start("1.1.0", "sleep 601", gpus=(1,)))
            for name in ("1.1.0", "3.1.0"):
                await backend.stop(name, 0.0)
                assert (await in_phase(backend, name, "ended")).status in (137, 143)

    asyncio.run(story())


def test_what_slurm_never_takes_is_refused_and_leaves_nothing(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            start = a_start("1.1.0", "sleep 600", asks={"slurm": {"constraint": "no-such-feature"}})
            with pytest.raises(StartRefused, match="Invalid feature"):
                await backend.start(start)
            with pytest.raises(StartRefused, match="fast"):
                await backend.start(
                    a_start("1.1.0", "sleep 600", node="v1", asks={"slurm": {"partition": "fast"}})
                )
            assert await backend.workers() == []
            assert list((shared / "slurm" / "s" / "runs").iterdir()) == []

    asyncio.run(story())


def test_who_is_cancelled_by_somebody_else_says_so_and_may_save_first(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            saves = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.1; done"
            await backend.start(a_start("1.1.0", saves))
            assert (await backend.log("1.1.0", wait_s=60.0)).data == b"ready\n"
            cluster.run("scancel", cluster.jobs()[0].split()[0])
            ended = await in_phase(backend, "1.1.0", "ended")
            assert (ended.status, "CANCELLED" in ended.why) == (143, True)
            assert (await backend.log("1.1.0")).data.endswith(b"saved\n")

    asyncio.run(story())


def test_what_a_job_writes_takes_so_much_and_no_more(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared, max_log_bytes=1 << 20) as backend:
            await backend.start(a_start("1.1.0", "seq -f %0999g 0 1999; exit 3"))
            await in_phase(backend, "1.1.0", "ended")
            await backend.forget("1.1.0")  # attempts of before count with the present one
            await backend.start(a_start("1.2.0", "echo begun; exec sleep 600"))

            async def is_cut() -> bool:
                return (await backend.log("1.1.0")).offset > 0

            await stories.until(backend, is_cut, "the front of its log is dropped")
            cut = await backend.log("1.1.0")
            assert cut.data.startswith(NOTICE)
            assert cut.data.endswith(b"1999\n")
            assert (await backend.log("1.2.0", wait_s=60.0)).data == b"begun\n"
            await backend.stop("1.2.0", 0.0)
            await in_phase(backend, "1.2.0", "ended")

    asyncio.run(story())


def test_who_is_killed_with_its_supervisor_leaves_nothing_and_counts_as_killed(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", "setsid sleep 600 & sleep 600"))
            await in_phase(backend, "1.1.0", "running")
            cluster.run("scancel", "--signal=KILL", "--full", cluster.jobs()[0].split()[0])
            ended = await in_phase(backend, "1.1.0", "ended")
            assert ended.status in (137, 143)
            until(lambda: not cluster.below("a1"), lambda: f"left: {cluster.below('a1')}")

    asyncio.run(story())


def test_a_worker_job_that_slurm_keeps_waiting_says_why_and_is_withdrawn(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            start = a_start("1.1.0", "sleep 600", memory_gb=12.0)
            await backend.start(start)
            await in_phase(backend, "1.1.0", "running")
            await backend.start(a_start("2.1.0", "sleep 600", gpus=(1,), memory_gb=12.0))

            async def says_why() -> bool:
                return "Resources" in (await worker(backend, "2.1.0")).why

            await stories.until(backend, says_why, "2.1.0 says why it waits")
            assert (await worker(backend, "2.1.0")).phase == "starting"
        async with opened(cluster, shared, pending_s=1.0) as backend:
            ended = await in_phase(backend, "2.1.0", "ended")
            assert (ended.status, ended.why) == (143, "Slurm kept it waiting for 1 s: Resources")
            until(lambda: len(cluster.jobs()) == 1, lambda: f"{cluster.jobs()}")
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")

    asyncio.run(story())


def test_a_worker_job_for_which_an_admin_has_closed_its_partition_waits_and_is_then_placed_anew(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared, pending_s=1.0) as backend:
            start = a_start("1.1.0", "sleep 600")
            cluster.run("scontrol", "update", "PartitionName=low", "State=INACTIVE")
            try:
                with pytest.raises(NotNow, match="partition not available"):
                    await backend.start(start)
                assert await backend.workers() == []
                ended = await insist(lambda: backend.start(start))
            finally:
                cluster.run("scontrol", "update", "PartitionName=low", "State=UP")
            assert (ended.phase, ended.status, ended.stopped) == ("ended", 143, True)
            assert ended.why.startswith("Slurm did not take it for 1 s: Required partition not available")
            await backend.start(a_start("1.2.0", "sleep 600"))
            await in_phase(backend, "1.2.0", "running")
            await backend.stop("1.2.0", 0.0)
            await in_phase(backend, "1.2.0", "ended")

    asyncio.run(story())


def test_a_service_that_died_while_it_withdrew_a_worker_job_is_followed_by_one_that_does(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def first() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", "sleep 600", memory_gb=12.0))
            await in_phase(backend, "1.1.0", "running")
            await backend.start(a_start("2.1.0", "echo begun", gpus=(1,), memory_gb=12.0))
            assert worker_jobs.take(backend.known["2.1.0"].run)

    async def second() -> None:
        async with opened(cluster, shared) as backend:
            assert (await worker(backend, "2.1.0")).phase == "starting"
            await backend.stop("2.1.0", 5.0)
            ended = await worker(backend, "2.1.0")
            assert (ended.phase, ended.status) == ("ended", 143)
            until(lambda: len(cluster.jobs()) == 1, lambda: f"{cluster.jobs()}")
        async with opened(cluster, shared) as backend:
            assert await worker(backend, "2.1.0") == ended
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")

    asyncio.run(first())
    asyncio.run(second())


def test_the_next_service_finds_what_ran_what_ended_and_what_was_to_start(
    cluster: SlurmCluster, shared: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"

    async def first() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", "sleep 600"))
            waits = f"while [ ! -e {go} ]; do sleep 0.1; done; exit 3"
            await backend.start(a_start("2.1.0", waits, node="a2"))
            for name in ("1.1.0", "2.1.0"):
                await in_phase(backend, name, "running")
            await backend.start(a_start("3.1.0", "echo begun; sleep 600", node="v1"))

    async def second() -> None:
        go.touch()
        until(lambda: len(cluster.jobs()) == 2, lambda: f"{cluster.jobs()}")
        async with opened(cluster, shared) as backend:
            assert (await in_phase(backend, "2.1.0", "ended")).status == 3
            assert (await in_phase(backend, "1.1.0", "running")).pid
            await in_phase(backend, "3.1.0", "running")
            again = await backend.start(a_start("3.1.0", "echo begun; sleep 600", node="v1"))
            assert again.phase == "running"
            assert (await backend.log("3.1.0", wait_s=60.0)).data == b"begun\n"
            for name in ("1.1.0", "3.1.0"):
                await backend.stop(name, 5.0)
                assert (await in_phase(backend, name, "ended")).status == 143
            async with opened(cluster, shared, service="other") as other:
                assert await other.workers() == []

    asyncio.run(first())
    asyncio.run(second())


def test_a_submission_of_which_nobody_heard_is_found_and_runs_once(
    cluster: SlurmCluster, shared: Path, tmp_path: Path
) -> None:
    """The answer of sbatch is lost twice: once we find the job, once it is submitted again all the same."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(
        '#!/bin/sh\ncase "$*" in *--test-only*) exec /usr/bin/sbatch "$@";; esac\n'
        '/usr/bin/sbatch "$@"; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1\n'
    )
    sbatch.chmod(0o755)
    environment = {**cluster.environment, "PATH": f"{programs}:/usr/bin:/bin"}

    async def story() -> None:
        async with opened(cluster, shared, environment=environment) as backend:
            start = a_start("1.1.0", "echo begun; sleep 600")
            with pytest.raises(BackendUnreachable, match="timed out"):
                await backend.start(start)
            found = await insist(lambda: backend.start(start))
            assert found.id == "1.1.0"
            await in_phase(backend, "1.1.0", "running")
            known = backend.known["1.1.0"]
            command = [
                "sbatch",
                "--parsable",
                "--output=/dev/null",
                "--comment=stretto:s:1.1.0",
                "--gres=gpu:1",
                "--nodelist=v1",
            ]
            with pytest.raises(BackendUnreachable):
                await backend.asking.submit(
                    command, worker_jobs.script_of(known.run, backend.supervisor_script)
                )
            until(lambda: len(cluster.jobs()) == 1, lambda: f"{cluster.jobs()}")
            assert (await backend.log("1.1.0")).data == b"begun\n"
            await backend.stop("1.1.0", 0.0)
            assert (await in_phase(backend, "1.1.0", "ended")).status in (137, 143)

    asyncio.run(story())


def test_a_worker_job_that_was_never_submitted_keeps_no_gpu_from_others(
    cluster: SlurmCluster, shared: Path, tmp_path: Path
) -> None:
    """Its node was given up while Slurm did not answer, and so nobody ever asks for it again."""
    away, programs = tmp_path / "away", tmp_path / "bin"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\n[ -e {away} ] || exec /usr/bin/sbatch "$@"\n'
        'echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1\n'
    )
    sbatch.chmod(0o755)
    environment = {**cluster.environment, "PATH": f"{programs}:/usr/bin:/bin"}

    async def story() -> None:
        async with opened(cluster, shared, environment=environment) as backend:
            away.touch()
            with pytest.raises(BackendUnreachable, match="connect failure"):
                await backend.start(a_start("1.1.0", "echo never"))
            away.unlink()
        async with opened(cluster, shared, environment=environment) as backend:
            await backend.start(a_start("2.1.0", "sleep 600"))
            await in_phase(backend, "2.1.0", "running")
            ended = await worker(backend, "1.1.0")
            assert (ended.phase, ended.status) == ("ended", 143)
            assert (await backend.start(a_start("1.1.0", "echo never"))).phase == "ended"
            await backend.stop("2.1.0", 0.0)
            await in_phase(backend, "2.1.0", "ended")

    asyncio.run(story())


def test_jobs_that_nobody_has_written_down_are_ended_and_those_of_others_never(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            wrap = [
                "sbatch",
                "--parsable",
                "--gres=gpu:1",
                "--mem=100",
                "--output=/dev/null",
                "--wrap",
                "sleep 600",
            ]
            ours = cluster.run(*wrap, "--comment=stretto:s:99.1.0").strip()
            others = [
                cluster.run(*wrap, f"--comment={word}").strip() for word in ("stretto:t:99.1.0", "stretto")
            ]
            await backend.start(a_start("1.1.0", "sleep 0.1", node="v1"))
            await in_phase(backend, "1.1.0", "ended")

            def listed() -> set[str]:
                return {job.split()[0] for job in cluster.jobs()}

            until(lambda: ours not in listed(), lambda: f"{ours} is there")
            # The job of a worker that has ended is listed for as long as Slurm takes to tidy up behind it.
            until(lambda: listed() == set(others), lambda: f"there are {listed()}, expected {others}")

    asyncio.run(story())


def test_a_worker_job_whose_comment_somebody_changes_is_not_lost(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", "sleep 600"))
            await in_phase(backend, "1.1.0", "running")
            number = ONE_JOB.findall(cluster.run("scontrol", "show", "job", "--oneliner"))[-1]
            cluster.run("scontrol", "update", f"JobId={number}", "Comment=of the site")
            for _ in range(6):
                await asyncio.sleep(0.4)
                assert (await worker(backend, "1.1.0")).phase == "running"
            await backend.stop("1.1.0", 1.0)
            assert (await in_phase(backend, "1.1.0", "ended")).status in (137, 143)

    asyncio.run(story())


def test_an_order_that_a_full_disk_cut_is_an_error_and_spoils_none_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    worker_jobs.give_order(tmp_path, {"signal": 10})
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, line: write(file, line[:9]))
        with pytest.raises(OSError, match="No space left"):
            worker_jobs.give_order(tmp_path, {"stop": 60.0})
    worker_jobs.give_order(tmp_path, {"stop": 30.0})
    told = (tmp_path / supervisor.ORDERS).read_bytes()
    assert list(supervisor.orders_in(told)) == [{"signal": 10}, {"stop": 30.0}]
    assert worker_jobs.stop_of(tmp_path) == 30.0
