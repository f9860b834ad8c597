"""Parameters for GPU types on which a model was not measured, by way of one that was measured on most types.

Compute takes 1/r of the time, with r the relative speed of the two types on the yardstick (ResNet-50). The
time to synchronise is scaled by what the yardstick takes on the two types, within a node and across nodes. A
type on which not even the yardstick was measured gets its speed from the measured type with the closest FP32
peak, by the ratio of the peaks, and its synchronisation from `network_like`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.catalogue.recipes import GPUS, YARDSTICK_SAMPLES
from stretto.estimate.throughput import grad_s, sync_s
from stretto.model.arrays import FloatArray, floats

WITHIN = (1, 4)  # chosen: nodes and GPUs at which synchronisation is compared
ACROSS = (4, 16)  # chosen: as above, on several nodes


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one GPU type computes and synchronises the yardstick."""

    samples_per_s: float  # one GPU
    within_s: float
    across_s: float
    source: str


def paces_of(yardstick: Mapping[str, FloatArray]) -> Mapping[str, Pace]:
    """The pace of every GPU type; `yardstick` has the (7,) parameters of those it was measured on."""
    measured = {
        name: Pace(
            samples_per_s=YARDSTICK_SAMPLES / float(grad_s(params, YARDSTICK_SAMPLES)),
            within_s=float(sync_s(params, *WITHIN)),
            across_s=float(sync_s(params, *ACROSS)),
            source="measured",
        )
        for name, params in yardstick.items()
    }
    return {name: measured.get(name) or _from_data_sheet(name, measured) for name in GPUS}


def _from_data_sheet(name: str, measured: Mapping[str, Pace]) -> Pace:
    peak = GPUS[name].fp32_tflops
    closest = min(measured, key=lambda other: abs(GPUS[other].fp32_tflops - peak))
    network = measured[GPUS[name].network_like]
    return Pace(
        samples_per_s=measured[closest].samples_per_s * peak / GPUS[closest].fp32_tflops,
        within_s=network.within_s,
        across_s=network.across_s,
        source=f"FP32 peak, {peak:g} against {GPUS[closest].fp32_tflops:g} TFLOPS of {closest}",
    )


def moved(params: FloatArray, there: Pace, here: Pace) -> FloatArray:
    """(7,) parameters on the type whose pace is `here`, from those on the type whose pace is `there`."""
    compute = there.samples_per_s / here.samples_per_s
    across, within = here.across_s / there.across_s, here.within_s / there.within_s
    return params * floats([compute, compute, across, across, within, within, 1.0])
