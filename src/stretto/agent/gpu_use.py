"""How busy the GPUs of this machine are, and how much of their memory is in use, as NVIDIA's driver says.

The driver tells of some tenths of a second. So it is asked again and again, and what is shown is the mean of
the last half minute.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from stretto.agent.node import NvidiaDriver

SAMPLE_EVERY_S = 2.0  # chosen
KEPT_S = 30.0  # of which the mean is shown; chosen


@dataclass(frozen=True)
class Sample:
    """What the driver said of one GPU at one moment."""

    at_s: float
    busy: float | None  # share of the time in which anything ran on it; None: this GPU does not say
    used_bytes: int
    bytes: int  # of memory


@dataclass
class GpuUse:
    """Samples of all GPUs of a node, by device. Safe to use from several threads."""

    keys: Sequence[str]  # by which the driver knows the devices
    driver: NvidiaDriver
    _samples: list[deque[Sample]] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Nothing has been seen."""
        self._samples = [deque() for _ in self.keys]

    def take(self) -> None:
        """Ask the driver once more."""
        now_s = time.monotonic()
        told = [self.driver.use_of(key) for key in self.keys]
        with self._lock:
            for samples, sample in zip(self._samples, told, strict=True):
                if sample is not None:
                    samples.append(Sample(now_s, *sample))
                while samples and now_s - samples[0].at_s > KEPT_S:
                    samples.popleft()

    def of_devices(self) -> list[dict[str, Any] | None]:
        """What is shown of each device; None where the driver has said nothing for a while."""
        with self._lock:
            return [mean_of(samples) for samples in self._samples]


def mean_of(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """The mean time that a GPU was busy, and its memory as it is now; None without samples."""
    if not samples:
        return None
    busy = [sample.busy for sample in samples if sample.busy is not None]
    newest = samples[-1]
    return {
        "busy": round(sum(busy) / len(busy), 4) if busy else None,
        "used_bytes": newest.used_bytes,
        "bytes": newest.bytes,
    }


def device_of_place(places: int, of_workers: Mapping[int, int]) -> list[int]:
    """The device that each place of a node means: that of its worker, else its own, else one that is left.

    of_workers: the devices of workers, by place.
    """
    taken: Set[int] = set(of_workers.values())
    devices = {place: of_workers.get(place, place if place not in taken else -1) for place in range(places)}
    left = iter(device for device in range(places) if device not in taken | set(devices.values()))
    return [next(left) if devices[place] < 0 else devices[place] for place in range(places)]
