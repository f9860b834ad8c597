"""What holds the GPUs of a worker in Ray: a placement group of one bundle on its node, and an actor in it.

The group is the reservation: it goes only once nothing of the worker is left, so that Ray does not give the
GPUs away before. The actor shows which devices they are, and is what people see in `ray list actors`. A
worker is killed when its actor ends, so killing the actor ends the worker.
"""

from contextlib import suppress
from typing import Any

from stretto.backends.protocol import BackendUnreachable, NotNow
from stretto.backends.ray.nodes import ID_LABEL

GROUP_S = 5.0  # for a group on a node that has the GPUs, which takes milliseconds; chosen
ACTOR_S = 60.0  # for a process of Ray's to start on a busy node; chosen
GB = 2**30


def bundle_of(gpus: int, cpus: float, memory_gb: float, address: str) -> dict[str, float]:
    """The resources of one worker. One that asks for none takes a trace of its node's own."""
    asked = {"GPU": float(gpus), "CPU": cpus, "memory": memory_gb * GB}
    return {name: much for name, much in asked.items() if much > 0} or {f"node:{address}": 0.001}


def hold(name: str, prefix: str, node_id: str, bundle: dict[str, float]) -> dict[str, Any]:
    """The devices of a worker, and the process that stands for them, newly reserved or found again.

    {"devices": as in CUDA_VISIBLE_DEVICES, "pid", "ticks"}. Raises NotNow where Ray does not have the
    resources, and then holds nothing; BackendUnreachable where it does not say.
    """
    import ray
    from ray.exceptions import ActorDiedError, ActorUnschedulableError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = group_named(prefix + name)
    if group is None:
        group = ray.util.placement_group(
            [bundle], name=prefix + name, lifetime="detached", bundle_label_selector=[{ID_LABEL: node_id}]
        )
    if not group.wait(GROUP_S):
        ray.util.remove_placement_group(group)
        raise NotNow(f"Ray does not have {shown(bundle)} free on that node")
    resources = {each: much for each, much in bundle.items() if each.startswith("node:")}
    actor = ray.remote(placeholder_class()).options(
        name=name,
        lifetime="detached",
        get_if_exists=True,
        num_gpus=bundle.get("GPU", 0),
        num_cpus=bundle.get("CPU", 0),
        memory=bundle.get("memory"),
        resources=resources,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
    )
    try:
        reserved: dict[str, Any] = ray.get(actor.remote().devices.remote(), timeout=ACTOR_S)
    except (ActorDiedError, ActorUnschedulableError) as failure:
        let_go(name, prefix)
        raise NotNow(f"Ray's actor {name} ended before it began: {first_line(failure)}") from failure
    except ray.exceptions.GetTimeoutError as failure:
        raise BackendUnreachable(f"Ray's actor {name} did not start within {ACTOR_S:g} s") from failure
    return reserved


def let_go(name: str, prefix: str) -> None:
    """Give back what was held for a worker, if it still is; Ray ends the actor with the group."""
    import ray

    group = group_named(prefix + name)
    if group is not None:
        ray.util.remove_placement_group(group)


def group_named(name: str) -> Any:
    """A placement group, or None."""
    import ray

    with suppress(ValueError):  # there is none
        return ray.util.get_placement_group(name)
    return None


def placeholder_class() -> type:
    """The class of the actor. Made here, so that it travels as a value and its process imports Ray alone."""

    class Stretto:  # as people see it in Ray's listings
        """Holds the GPUs of one worker."""

        def devices(self) -> dict[str, Any]:
            """Which they are, and this process as [pid, ticks]."""
            import os
            from pathlib import Path

            import ray

            # Asked of Ray: in the environment they are not where Ray was told to leave that alone.
            devices = ",".join(str(each) for each in ray.get_gpu_ids())
            stat = Path("/proc/self/stat").read_text(encoding="utf-8")
            return {
                "devices": devices,
                "pid": os.getpid(),
                "ticks": int(stat.rpartition(")")[2].split()[19]),
            }

    return Stretto


def shown(bundle: dict[str, float]) -> str:
    """Resources for a person."""
    words = {"memory": lambda much: f"{much / GB:g} GB"}
    return " and ".join(
        words.get(name, lambda much, name=name: f"{much:g} {name}")(much) for name, much in bundle.items()
    )


def first_line(failure: BaseException) -> str:
    """What an exception of Ray's says first."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return lines[0] if lines else type(failure).__name__
