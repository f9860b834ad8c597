"""Nodes, partitions and other people's jobs of a real Slurm."""

import asyncio
import getpass
import json
from pathlib import Path

import pytest
from tests.backends.slurm.cluster import SlurmCluster
from tests.backends.slurm.stories import a_start, in_phase, node, node_once, opened, worker

from stretto.backends.protocol import BackendUnreachable, NotNow
from stretto.backends.slurm.backend import SlurmBackend, open_slurm
from stretto.backends.slurm.client import Commands, SlurmClient
from stretto.backends.slurm.nodes import NodeResources, state_of
from stretto.backends.slurm.options import SlurmOptions
from stretto.backends.slurm.parsers import SlurmNode
from stretto.backends.slurm.poller import PATIENT_S, Poller
from stretto.jobfile.parts import Accelerators, Resources
from stretto.jobfile.spec import JobSpec
from stretto.model import InputError

pytestmark = [pytest.mark.slurm, pytest.mark.large]


@pytest.mark.parametrize("json", [True, False], ids=["json", "text"])
def test_nodes_show_what_they_have_and_what_others_hold(
    cluster: SlurmCluster, shared: Path, json: bool
) -> None:
    async def story() -> None:
        async with opened(cluster, shared, json=json) as backend:
            shown = [(one.name, one.gpu_type, one.gpus, one.cpus, one.up) for one in await backend.nodes()]
            assert shown == [
                ("a1", "a100", 2, 64, True),
                ("a2", "a100", 2, 64, True),
                ("v1", "v100", 2, 64, True),
            ]
            await backend.start(a_start("1.1.0", "sleep 600"))
            await in_phase(backend, "1.1.0", "running")
            foreign = [
                "sbatch",
                "--parsable",
                "--nodelist=a1",
                "--gres=gpu:1",
                "--mem=100",
                "--output=/dev/null",
                "--wrap",
                "sleep 600",
            ]
            number = cluster.run(*foreign).strip()
            await node_once(backend, "a1", lambda one: one.others == 1, "shows a GPU of others")
            assert (await node(backend, "a2")).others == 0
            cluster.run("scancel", "--signal=KILL", "--full", number)
            await node_once(backend, "a1", lambda one: one.others == 0, "shows none any more")
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")
            assert {one.others for one in await backend.nodes()} == {0}

    asyncio.run(story())


def test_a_node_that_an_admin_drains_is_shut_until_it_is_resumed(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", "sleep 600", node="v1"))
            await in_phase(backend, "1.1.0", "running")
            cluster.run("scontrol", "update", "NodeName=v1", "State=DRAIN", "Reason=fan is loud")
            try:
                shut = await node_once(backend, "v1", lambda one: one.shut, "is shut")
                assert (shut.up, shut.shut.startswith("drained in Slurm: fan is loud")) == (True, True)
                assert (await worker(backend, "1.1.0")).phase == "running"
            finally:
                cluster.run("scontrol", "update", "NodeName=v1", "State=RESUME")
            back = await node_once(backend, "v1", lambda one: not one.shut, "is open again")
            assert (back.up, back.dead, back.why) == (True, False, "")
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")

    asyncio.run(story())


def test_a_node_is_drained_while_it_is_with_its_lender_and_takes_workers_when_it_is_back(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            await backend.hand_over(["v1"], "inference")
            await backend.hand_over(["v1"], "inference")  # again, as after a crash
            try:
                assert "with lender inference" in cluster.run("scontrol", "show", "node", "v1")
                cluster.run("scontrol", "update", "NodeName=a1", "State=DRAIN", "Reason=fan is loud")
                given = {node.name: node for node in await backend.nodes()}["v1"]
                assert (given.up, given.shut) == (True, "")  # the service itself knows whose it is
                await backend.hand_over(["v1", "a1"], "")
                shut = await node_once(backend, "a1", lambda one: one.shut, "is shut")
                assert shut.shut.startswith("drained in Slurm: fan is loud")
            finally:
                for name in ("v1", "a1"):
                    if "DRAIN" in cluster.run("scontrol", "show", "node", name):
                        cluster.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
            assert "with lender" not in cluster.run("scontrol", "show", "node", "v1")
            await backend.start(a_start("1.1.0", "sleep 600", node="v1"))
            await in_phase(backend, "1.1.0", "running")
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")

    asyncio.run(story())


def test_a_node_on_loan_is_reserved_for_us_and_released_when_it_goes_back(
    cluster: SlurmCluster, shared: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, shared, lent_by="reservation") as backend:
            await backend.hand_over(["v1"], "inference")
            with pytest.raises(NotNow, match="v1 is with its lender inference"):
                await backend.start(a_start("1.1.0", "sleep 600", node="v1"))
            foreign = ("sbatch", "--parsable", "--nodelist=v1", "--output=/dev/null", "--wrap", "sleep 600")
            elsewhere = cluster.run(*foreign).strip()
            state = ("squeue", "-h", "-j", elsewhere, "-o", "State=%T")
            try:
                while "RUNNING" not in cluster.run(*state):
                    await asyncio.sleep(0.1)
                for _ in range(2):  # again, as after a crash
                    await backend.hand_over(["v1"], "")
                assert "DRAIN" not in cluster.run("scontrol", "show", "node", "v1")
                (reserved,) = [
                    line
                    for line in cluster.run("scontrol", "-o", "show", "res").splitlines()
                    if "Nodes=v1 " in line
                ]
                assert f"Users={getpass.getuser()}" in reserved
                assert "RUNNING" in cluster.run(*state)
            finally:
                cluster.run("scancel", elsewhere)
        async with opened(cluster, shared, lent_by="reservation") as backend:
            assert not {node.name: node for node in await backend.nodes()}["v1"].shut
            await backend.start(a_start("1.1.0", "echo $SLURM_JOB_RESERVATION", node="v1"))
            await in_phase(backend, "1.1.0", "ended")
            assert (await backend.log("1.1.0")).data.startswith(b"stretto-v1-")
            for _ in range(2):
                await backend.hand_over(["v1"], "inference")
            assert "Nodes=v1 " not in cluster.run("scontrol", "-o", "show", "res")
        async with opened(cluster, shared, lent_by="reservation") as backend:
            with pytest.raises(NotNow, match="v1 is with its lender inference"):
                await backend.start(a_start("2.1.0", "sleep 600", node="v1"))

    asyncio.run(story())


def test_of_a_node_of_no_lender_nothing_is_left_in_slurm(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared) as backend:
            await backend.hand_over(["v1"], "inference")
            await backend.hand_over(["v1"], None)
            assert "with lender" not in cluster.run("scontrol", "show", "node", "v1")
        async with opened(cluster, shared, lent_by="reservation") as backend:
            await backend.hand_over(["v1"], "")
            await backend.start(a_start("1.1.0", "sleep 600", node="v1"))
            await in_phase(backend, "1.1.0", "running")
            with pytest.raises(BackendUnreachable, match=r"until worker 1\.1\.0 has ended"):
                await backend.hand_over(["v1"], None)
            assert "Nodes=v1 " in cluster.run("scontrol", "-o", "show", "res")
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")
            for _ in range(2):  # again, as after a crash
                await backend.hand_over(["v1"], None)
            assert "Nodes=v1 " not in cluster.run("scontrol", "-o", "show", "res")
        async with opened(cluster, shared, lent_by="reservation") as backend:
            await backend.start(a_start("2.1.0", "echo in $SLURM_JOB_RESERVATION", node="v1"))
            await in_phase(backend, "2.1.0", "ended")
            assert (await backend.log("2.1.0")).data == b"in\n"

    asyncio.run(story())


def test_only_nodes_of_the_partitions_asked_for_are_served(cluster: SlurmCluster, shared: Path) -> None:
    async def story() -> None:
        async with opened(cluster, shared, partitions=("fast",)) as backend:
            assert [one.name for one in await backend.nodes()] == ["a1", "a2"]
            await backend.start(a_start("1.1.0", "echo $SLURM_JOB_PARTITION"))
            await in_phase(backend, "1.1.0", "ended")
            assert (await backend.log("1.1.0")).data == b"fast\n"

    asyncio.run(story())


def a_job(gpu_type: str = "", **slurm: str) -> JobSpec:
    return JobSpec(run="true", resources=Resources((Accelerators(gpu_type, 1),)), slurm=slurm)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (a_job("h100"), r"no node has h100, Slurm has a100, v100"),
        (a_job(partition="nope"), r"partition nope"),
        (a_job("v100", partition="fast"), r"slurm.partition fast: .* v1; expected one of"),
        (a_job(partition="closed"), r"partition=closed.*not available"),
        (a_job(constraint="nope"), r"constraint=nope.*Invalid feature"),
        (a_job(reservation="nope"), r"reservation=nope.*reservation is invalid"),
    ],
)
def test_a_job_that_slurm_can_never_take_is_refused_in_one_line(
    cluster: SlurmCluster, shared: Path, spec: JobSpec, words: str
) -> None:
    async def story() -> str:
        async with opened(cluster, shared) as backend:
            await backend.check(a_job())
            await backend.check(a_job("a100", partition="fast", constraint="a100"))
            with pytest.raises(InputError, match=words) as refused:
                await backend.check(spec)
            return str(refused.value)

    assert "\n" not in asyncio.run(story())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitions": ("nope",)}, r"--partition nope: expected one of low, high, fast"),
        (
            {"partitions": ("forbidden",)},
            r"--partition forbidden: Slurm takes no job there: (Invalid user id|User's group)",
        ),
        (
            {"environment": {"SLURM_CONF": "/nowhere/slurm.conf"}, "answer_s": 2.0},
            r"--backend slurm: Slurm did not answer .* cannot stat file /nowhere/slurm.conf",
        ),
        ({"environment": {"PATH": "/nowhere"}}, r"missing sbatch, squeue, scancel, scontrol"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_in_one_line(
    cluster: SlurmCluster, shared: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        asyncio.run(_open(cluster, shared, options))
    assert "\n" not in str(refused.value)


def test_a_service_that_restarts_while_its_partition_is_closed_finds_its_worker_jobs(
    cluster: SlurmCluster, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def first() -> None:
        async with opened(cluster, shared) as backend:
            await backend.start(a_start("1.1.0", "sleep 600"))
            await in_phase(backend, "1.1.0", "running")

    async def second() -> None:
        async with opened(cluster, shared) as backend:
            assert (await worker(backend, "1.1.0")).phase == "running"
            with pytest.raises(NotNow, match="partition not available"):
                await backend.start(a_start("2.1.0", "true", node="v1"))
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")

    asyncio.run(first())
    cluster.run("scontrol", "update", "PartitionName=low", "State=INACTIVE")
    try:
        asyncio.run(second())
    finally:
        cluster.run("scontrol", "update", "PartitionName=low", "State=UP")
    assert "--partition low: Slurm takes no job there for now" in caplog.text


def test_a_controller_that_does_not_answer_is_said_to_be_silent(cluster: SlurmCluster, shared: Path) -> None:
    with cluster.suspended(), pytest.raises(InputError, match="did not answer scontrol within 1 s"):
        asyncio.run(_open(cluster, shared, {"answer_s": 1.0}))


def test_of_a_controller_that_refuses_to_talk_nothing_is_concluded(
    cluster: SlurmCluster, shared: Path, tmp_path: Path
) -> None:
    """Its programs then print an empty list, and leave with status 0."""
    away, programs = tmp_path / "away", tmp_path / "bin"
    programs.mkdir()
    for name, key in (("sinfo", "nodes"), ("squeue", "jobs")):
        failed = json.dumps({"errors": [{"error": "Unspecified error", "errno": -1}], key: []})
        (programs / name).write_text(
            f"#!/bin/sh\n[ -e {away} ] || exec /usr/bin/{name} \"$@\"\necho '{failed}'\n"
        )
        (programs / name).chmod(0o755)
    environment = {**cluster.environment, "PATH": f"{programs}:/usr/bin:/bin"}

    async def story() -> None:
        async with opened(cluster, shared, environment=environment) as backend:
            await backend.start(a_start("1.1.0", "sleep 600"))
            before, nodes = await in_phase(backend, "1.1.0", "running"), await backend.nodes()
            away.touch()
            for _ in range(3):
                with pytest.raises(BackendUnreachable, match="Unspecified error"):
                    await backend.looking.look()
            assert (await backend.nodes(), await backend.workers()) == (nodes, [before])
            with pytest.raises(BackendUnreachable):
                await backend.start(a_start("2.1.0", "true", node="v1"))
            away.unlink()
            await backend.looking.look()
            assert await backend.workers() == [before]
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")

    asyncio.run(story())


def test_a_node_is_as_it_was_while_a_controller_that_was_restarted_waits_for_it(tmp_path: Path) -> None:
    def seen(*states: str) -> SlurmNode:
        return SlurmNode("a1", "", frozenset(states), "", {"a100": 2}, {}, 8, 0, 16_000, 0, ("low",))

    options = SlurmOptions()
    looking = Poller(SlurmClient(Commands(options)), options, "s", {}, tmp_path)

    def is_up(now_s: float, *states: str) -> bool:
        looking.all_nodes = {one.name: one for one in looking.with_patience([seen(*states)], now_s)}
        return state_of(looking.all_nodes["a1"], NodeResources()).up

    assert not is_up(0.0, "UNKNOWN", "NO_RESPOND")  # which was never seen otherwise
    assert is_up(1.0, "IDLE")
    assert is_up(100.0, "UNKNOWN", "NO_RESPOND")
    assert is_up(100.0 + PATIENT_S - 1.0, "MIXED", "NO_RESPOND")
    assert not is_up(100.0 + PATIENT_S, "MIXED", "NO_RESPOND")
    assert is_up(300.0, "MIXED")
    assert is_up(400.0, "MIXED", "NO_RESPOND")  # counted anew
    assert not is_up(401.0, "DOWN", "NO_RESPOND")  # Slurm has given it up


async def _open(cluster: SlurmCluster, shared: Path, options: dict[str, object]) -> None:
    given = SlurmOptions(**{"environment": cluster.environment, **options})  # type: ignore[arg-type]
    backend = await open_slurm(given, "s", shared)
    assert isinstance(backend, SlurmBackend)
    await backend.close()
