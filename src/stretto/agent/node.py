"""What this machine has: GPUs, processors, memory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.agent import supervisor

MAX_LOG_BYTES = 1 << 30  # chosen: weeks of a line each second


@dataclass(frozen=True)
class Node:
    """One machine as its agent describes it."""

    name: str
    gpu_type: str
    gpus: int  # real ones, or places for a process each on a machine that has none
    devices: tuple[str, ...] = ()  # what CUDA_VISIBLE_DEVICES calls each; empty where they are not real
    cpus: int = 0
    memory_gb: float = 0.0
    boot_id: str = ""
    max_log_bytes: int = MAX_LOG_BYTES  # that the logs of a job take on this machine; 0: any amount
    keys: tuple[str, ...] = ()  # by which all of the machine know the devices: UUIDs where there are some
    run_as: bool = False  # workers run as other users than this agent
    pass_env: tuple[str, ...] = ()  # names and patterns of its environment that workers find beside the usual

    def environment(self, gpus: list[int]) -> dict[str, str]:
        """Variables that show a worker its GPUs and no others."""
        if not self.devices:
            return {}
        # Without the order, CUDA counts the fastest first, and NVML by the place on the bus.
        shown = ",".join(self.devices[index] for index in gpus)
        return {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def this_node(name: str, gpus: int | None, gpu_type: str) -> Node:
    """This machine, with its real GPUs, or with `gpus` places if given; raises ValueError without either."""
    devices: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    if gpus is None:
        devices, keys, found_type = real_gpus(os.environ)
        if not devices:
            raise ValueError(
                "found no GPU through nvidia-ml-py: on a machine without one, serve takes --slots N (and an "
                "agent --gpus N) for N workers at once"
            )
        gpus, gpu_type = len(devices), gpu_type or found_type
    return Node(
        name=name,
        gpu_type=gpu_type or "cpu",
        gpus=gpus,
        devices=devices,
        cpus=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        boot_id=supervisor.boot_id(),
        keys=keys,
    )


def real_gpus(environment: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Indices of the GPUs that this process may use, their keys, and the first one's type; empty without any.

    Only whole GPUs, by index: where CUDA_VISIBLE_DEVICES names something else, it is taken as it is.
    """
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, no device: each its own error, and all mean none
        return (), (), ""
    try:
        count = pynvml.nvmlDeviceGetCount()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) if count else ""
        uuids = {str(index): uuid_of(pynvml, index) for index in range(count)}
    finally:
        pynvml.nvmlShutdown()
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    devices = [str(index) for index in range(count)] if allowed is None else allowed.split(",")
    usable = tuple(each.strip() for each in devices if each.strip())
    return usable, tuple(uuids.get(each, each) for each in usable), type_name(text_of(name))


def uuid_of(nvml: Any, index: int) -> str:
    """What a GPU is called in whatever order they are shown; its index where the driver is too old."""
    try:
        return text_of(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    except Exception:
        return str(index)


def text_of(said: str | bytes) -> str:
    """What a driver says: older bindings give bytes."""
    return said.decode() if isinstance(said, bytes) else str(said)


def type_name(product: str) -> str:
    """A short name of a product: `NVIDIA A100-SXM4-80GB` is `a100`."""
    words = [word for word in product.replace("-", " ").split() if word.lower() not in ("nvidia", "tesla")]
    return words[0].lower() if words else "gpu"
