"""What is wrong with a cluster, its partitions or a job, said in one line before anything depends on it."""

import asyncio
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from stretto.agent import container
from stretto.backends.protocol import BackendUnreachable
from stretto.backends.slurm import nodes
from stretto.backends.slurm.client import Refusal, SlurmClient, is_closed, is_for_later, option
from stretto.backends.slurm.options import NONE, SlurmOptions
from stretto.backends.slurm.parsers import SlurmNode, pairs_in
from stretto.backends.slurm.worker_jobs import ASKED
from stretto.errors import InputError
from stretto.jobfile.spec import JobSpec

log = logging.getLogger(__name__)

CHECK_S = 3.0  # that a submission may take for Slurm's opinion; chosen
NOT_FREE = ("configuration is not available", "nodes are busy", "required node", "currently not available")


def partition_for(options: SlurmOptions, asked: Mapping[str, str], node: SlurmNode, default: str) -> str:
    """Partitions in which a worker job may go to a node, as sbatch takes them; "" where none has the node."""
    wanted = asked.get("partition", "").split(",") if asked.get("partition") else options.partitions
    return ",".join(name for name in wanted or (default,) if name in node.partitions)


async def partitions_of(asking: SlurmClient) -> tuple[list[str], str]:
    """All partitions, and the default one ("" for none). Raises InputError."""
    try:
        text = await asking.commands.run("scontrol", "-o", "show", "partition")
    except Refusal as refusal:
        raise InputError(f"--backend slurm: Slurm does not show its partitions: {refusal}") from None
    partitions = [pairs for pairs in map(pairs_in, text.splitlines()) if "PartitionName" in pairs]
    default = next((pairs["PartitionName"] for pairs in partitions if pairs.get("Default") == "YES"), "")
    return [pairs["PartitionName"] for pairs in partitions], default


async def check_partitions(asking: SlurmClient, options: SlurmOptions) -> tuple[tuple[str, ...], str]:
    """The partitions that are served, and the default one. Raises InputError."""
    there, default = await partitions_of(asking)
    for name in options.partitions:
        if name not in there:
            raise InputError(f"--partition {name}: expected one of {', '.join(there)}")
    served = options.partitions or ((default,) if default else ())
    if not served:
        raise InputError(f"--partition: Slurm has no default, expected one or more of {', '.join(there)}")
    return served, default


async def check_rights(asking: SlurmClient, options: SlurmOptions, partitions: Iterable[str]) -> None:
    """Raise InputError where this user may not submit; what is closed for a while is only said to be."""
    for partition in partitions:
        try:
            await try_out(asking, partition, {"account": options.account, "qos": options.qos})
        except Refusal as refusal:
            if is_closed(str(refusal)):  # jobs of this service may run there already, and others can wait
                log.warning("--partition %s: Slurm takes no job there for now: %s", partition, refusal)
            elif not _is_not_free(str(refusal)) and not is_for_later(str(refusal)):
                flags = "".join(
                    f" --{name} {value}"
                    for name, value in (("account", options.account), ("qos", options.qos))
                    if value
                )
                raise InputError(
                    f"--partition {partition}{flags}: Slurm takes no job there: {refusal}"
                ) from None


async def try_out(asking: SlurmClient, partition: str, options: Mapping[str, str], gres: str = "") -> None:
    """Have sbatch say whether it would take a job, which is not submitted. Raises Refusal."""
    await asking.commands.run(
        "sbatch",
        "--test-only",
        "--nodes=1",
        *option("partition", partition),
        *option("gres", gres),
        *(part for name in ASKED for part in option(name, options.get(name, ""))),
        text="#!/bin/sh\n",
    )


async def container_tool(asking: SlurmClient, options: SlurmOptions) -> str:
    """What runs the images that jobs name: as the options say, else what is found on this machine."""
    if options.container:
        return options.container
    with suppress(Refusal, BackendUnreachable):
        if "--container-image" in await asking.commands.run("srun", "--help"):
            return container.PYXIS
    path = asking.commands.environment.get("PATH", os.defpath)
    return container.APPTAINER if any(shutil.which(name, path=path) for name in container.PROGRAMS) else NONE


async def check_job(
    asking: SlurmClient,
    options: SlurmOptions,
    spec: JobSpec,
    served: Sequence[SlurmNode],
    answers: bool = True,
) -> None:
    """Raise InputError for a job that this cluster can never take.

    answers: whether Slurm itself can be asked; where not, it is when the job is to start.
    """
    if spec.image and options.container in ("", NONE):
        raise InputError(
            "image: expected none: no container of Slurm's nodes is known here, neither pyxis of srun nor"
            " apptainer; stretto serve --container says what they have"
        )
    job_options = {"account": options.account, "qos": options.qos, **spec.slurm}
    types = {choice.gpu_type.lower() for choice in spec.resources.accelerators if choice.gpu_type}
    having = [
        node for node in served if not types or (nodes.type_of(node) or nodes.ANY_TYPE).lower() in types
    ]
    if not having:
        there = sorted({nodes.type_of(node) or nodes.ANY_TYPE for node in served})
        raise InputError(
            f"resources.accelerators: no node has {' or '.join(sorted(types))}, Slurm has {', '.join(there)}"
        )
    default = ",".join(options.partitions)
    partition = spec.slurm.get("partition", default)
    if partition and spec.slurm.get("partition"):
        without = [node.name for node in having if not set(partition.split(",")) & set(node.partitions)]
        if without:
            there = sorted({name for node in having for name in node.partitions})
            raise InputError(
                f"slurm.partition {partition}: it has not all nodes that the job may run on, such as "
                f"{without[0]}; expected one of {', '.join(there)}"
            )
    if not answers:
        return
    try:
        async with asyncio.timeout(CHECK_S):
            await try_out(asking, partition, job_options)
    except Refusal as refusal:
        if _is_not_free(str(refusal)) or is_for_later(str(refusal)):
            return
        if is_closed(str(refusal)) and not spec.slurm:  # what is closed is the service's: all wait for it
            return
        settings = ", ".join(
            f"{name}={value}" for name, value in {"partition": partition, **job_options}.items() if value
        )
        kind = f"a job with {settings}" if settings else "such a job"
        raise InputError(f"slurm: Slurm does not take {kind}: {refusal}") from None
    except (BackendUnreachable, TimeoutError):
        return


def _is_not_free(words: str) -> bool:
    return any(sign in words.lower() for sign in NOT_FREE)
