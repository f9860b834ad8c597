"""What this machine has: GPUs, processors, memory; and which of its GPUs are free.

Each GPU that a worker of ours has is locked by its UUID, in directories that all users of the machine see.
The supervisor and all that it starts hold the lock, so the kernel lifts it when the last of them ends,
whichever process is killed. A GPU that other services lock, or on which other processes compute, is left
alone. Places are numbers only: a worker gets the GPU of its place if that is free, else another one. Places
without GPUs need no locks, since each service makes up its own.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
                "found no GPU through nvidia-ml-py, which stretto[nvml] brings: without GPUs, serve takes "
                "--slots N (and an agent --gpus N) for N workers at once"
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
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

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


# ── which GPUs are free ─────────────────────────────────────────────────────────────────────────────────────


# A service in a container of its own may see only some of these, so a GPU is locked in all.
LOCK_FOLDERS = (Path("/run/lock/stretto"), Path("/var/tmp/stretto-locks"))  # checked before use
SHARED_MODE = 0o1777  # everybody may put a lock there, and remove only his own
TRIES, PAUSE_S = 20, 0.02  # who only looks whether a GPU is locked has it locked for a moment
# Used by something that shows no process to us, as from another container. Chosen: a driver keeps up to 1 GiB
# for itself, a desktop little more, and trainings much more.
USED_BYTES = 2 << 30


class Locks:
    """Locks by name in directories that all users may write to."""

    def __init__(self, folders: Sequence[Path] = LOCK_FOLDERS) -> None:
        self.folders = [folder for folder in folders if is_usable(folder)]

    def take(self, name: str) -> list[int] | None:
        """Files that hold the lock until their last copies are closed; None where another has it.

        The files are inherited by whatever is started while they are open.
        """
        files: list[int] = []
        for file in self._opened(name):
            os.set_inheritable(file, True)
            files.append(file)
            if not self._lock(file, fcntl.LOCK_EX, TRIES):
                close_all(files)
                return None
        return files

    def is_taken(self, name: str) -> bool:
        """Whether a process holds a lock."""
        files = list(self._opened(name))
        try:
            return not all(self._lock(file, fcntl.LOCK_SH) for file in files)
        finally:
            close_all(files)

    def _opened(self, name: str) -> Iterable[int]:
        for folder in self.folders:
            with suppress(OSError):
                yield open_lock(folder / f"gpu-{re.sub('[^A-Za-z0-9._-]', '_', name)}.lock")

    def _lock(self, file: int, how: int, tries: int = 1) -> bool:
        for left in reversed(range(tries)):
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(PAUSE_S if left else 0.0)
            else:
                return True
        return False


def is_usable(folder: Path) -> bool:
    """Whether all users may put locks into a directory, which is made where that can be."""
    with suppress(OSError):
        with suppress(FileExistsError):
            folder.mkdir()
        status = folder.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            folder.chmod(SHARED_MODE)  # what `mkdir` is told is cut by the umask
            status = folder.stat(follow_symlinks=False)
        # Where others could remove it without leave, or lead us elsewhere, a lock would prove nothing.
        return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & SHARED_MODE == SHARED_MODE
    return False


def open_lock(path: Path) -> int:
    """A lock's file, made where there is none; raises OSError.

    To lock a file of another user it has to be readable only, and the kernel may refuse to open it to write.
    """
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, how)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.close(os.open(path, how | os.O_CREAT | os.O_EXCL, 0o644))
            path.chmod(0o644)
        file = os.open(path, how)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(f"{path} is no file")


def hold_to_ourselves(files: list[int]) -> None:
    """Let what is started from now on not inherit files."""
    for file in files:
        os.set_inheritable(file, False)


def close_all(files: list[int]) -> None:
    """Close files, once."""
    while files:
        os.close(files.pop())


class NvidiaDriver:
    """What NVIDIA's driver says of GPUs: whether anything computes there, and how busy they are."""

    def __init__(self) -> None:
        self.nvml: Any = None
        with suppress(
            Exception
        ):  # not installed, no driver: each its own error, and all mean that it says nothing
            import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

            pynvml.nvmlInit()  # and never shut down: to begin anew takes long
            self.nvml = pynvml

    def is_used(self, key: str) -> bool:
        """Whether anything computes on a GPU, by its UUID or its index; False where that is not known."""
        if self.nvml is None:
            return False
        with suppress(Exception):  # an old driver, a GPU that fell off the bus: nothing is known then
            handle = self._handle(key)
            if self.nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                return True
            return bool(self._memory(handle).used > USED_BYTES)
        return False

    def use_of(self, key: str) -> tuple[float | None, int, int] | None:
        """How busy a GPU was a moment ago, 0 to 1, and its memory in use and in all, in bytes.

        None where the driver says nothing of it. How busy it was is None where this GPU does not tell, as one
        that is divided into instances (MIG).
        """
        if self.nvml is None:
            return None
        with suppress(Exception):
            handle = self._handle(key)
            memory = self._memory(handle)
            busy = None
            with suppress(Exception):
                busy = int(self.nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
            return busy, int(memory.used), int(memory.total)
        return None

    def _memory(self, handle: Any) -> Any:
        """In use and in all; without what the driver reserves for itself, where it tells the two apart."""
        with suppress(Exception):  # bindings before 11.510, drivers before 510
            return self.nvml.nvmlDeviceGetMemoryInfo(handle, version=self.nvml.nvmlMemory_v2)
        return self.nvml.nvmlDeviceGetMemoryInfo(handle)

    def _handle(self, key: str) -> Any:
        if key.isdigit():
            return self.nvml.nvmlDeviceGetHandleByIndex(int(key))
        return self.nvml.nvmlDeviceGetHandleByUUID(key)


class Devices:
    """The real GPUs that this agent may give, by their place. keys: by which all of the machine know them."""

    def __init__(
        self, keys: Sequence[str], locks: Locks | None = None, driver: NvidiaDriver | None = None
    ) -> None:
        self.keys = tuple(keys)
        self.locks = locks or Locks()
        self.driver = driver or NvidiaDriver()
        self.used: frozenset[int] = frozenset()  # on which others computed when that was last looked at

    def look(self, ours: Set[int]) -> frozenset[int]:
        """Those that others have. ours: those of our own workers."""
        rest = [index for index in range(len(self.keys)) if index not in ours]
        self.used = frozenset(index for index in rest if self.driver.is_used(self.keys[index]))
        return self.used | {index for index in rest if self.locks.is_taken(self.keys[index])}

    def take(self, places: Sequence[int], ours: Set[int]) -> tuple[list[int], list[int]] | None:
        """As many GPUs as there are places, and files that hold their locks; None where too few are free.

        ours: those of our own workers. A driver that hangs holds nothing up: it is believed as last seen.
        """
        chosen: dict[int, int] = {}  # by place
        files: list[int] = []
        rest = [index for index in range(len(self.keys)) if index not in places]
        for index in (*places, *rest):
            missing = [place for place in places if place not in chosen]
            if not missing or index in ours or index in self.used:
                continue
            lock_files = self.locks.take(self.keys[index])
            if lock_files is not None:
                files += lock_files
                chosen[index if index in missing else missing[0]] = index
        if len(chosen) < len(places):
            close_all(files)
            return None
        return [chosen[place] for place in places], files
