"""What a batch that grows with the GPUs gains in speed (figure 2 of ONES), and what the answer hangs on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stretto.catalogue import find_model
from stretto.estimate import iteration_s
from stretto.experiments.causes import NOTHING, Figure, Series, Switched, Value
from stretto.experiments.reproduction import Input, Made, Request, Row
from stretto.model import FloatArray, IntArray, ints

GPUS, BATCH = (1, 2, 4, 8), 256
MODEL, GPU_TYPE, GPUS_PER_NODE = "resnet50-cifar10", "v100", 4
BEST_GPUS = 2.0  # "when the number of workers exceeds 2, the throughput no longer increases" (section 2.1)
ALPHA_C, SYNC, GAMMA = 0, slice(2, 6), 6  # columns of the throughput model


@dataclass(frozen=True)
class Assumptions:
    """What figure 2 takes for granted beyond the catalogue."""

    fits: int = 0  # samples that fit on a GPU; 0: what the catalogue has
    own_nodes: bool = False  # every GPU is on a node of its own
    sync: float = 1.0  # times that averaging gradients takes as long
    overlap: bool = True  # as much as the catalogue has; False: gradients are averaged after each step
    fixed_part: bool = True  # the part of a step that does not depend on the batch


SWITCHED: Mapping[str, Assumptions] = {
    "no fixed part of a step": Assumptions(fixed_part=False),
    "no overlap": Assumptions(overlap=False),
    "every GPU on a node of its own": Assumptions(own_nodes=True),
    "256 samples fit on a GPU": Assumptions(fits=BATCH),
    "gradients take 3 times as long": Assumptions(sync=3.0),
    "gradients take 3 times as long, 256 samples fit": Assumptions(sync=3.0, fits=BATCH),
    "gradients take 4 times as long, 256 samples fit": Assumptions(sync=4.0, fits=BATCH),
}


def figure2(request: Request) -> Made:
    """Speed of ResNet-50 on CIFAR-10 with a batch of 256 on any GPUs, and with 256 on each of them."""
    gpus = ints(GPUS)
    speeds = {
        "fixed": speed_per_s(gpus, np.full_like(gpus, BATCH)),
        "elastic": speed_per_s(gpus, BATCH * gpus),
    }
    rows = [
        Row(f"{count} GPUs, {name} batch", "samples_per_s", None, float(per_s[place]))
        for name, per_s in speeds.items()
        for place, count in enumerate(GPUS)
    ]
    rows += _best("fixed batch", BEST_GPUS, speeds["fixed"])
    source = Input("speeds", False, "the throughput model that the built-in catalogue has for V100 GPUs")
    notes = [
        "of the paper's figure only the text has a number: beyond 2 workers a fixed batch gains nothing",
    ]
    return [source], rows, notes


def causes(request: Request) -> Series:
    """With how many GPUs a fixed batch is fastest, as one assumption after the other is switched."""
    gpus = ints(GPUS)
    rows = []
    for name, assumed in {NOTHING: Assumptions(), **SWITCHED}.items():
        best, gained = _best("", None, speed_per_s(gpus, np.full_like(gpus, BATCH), assumed))
        rows.append(Switched(name, "", (Value(best.ours), Value(gained.ours))))
    return Series(
        (
            Figure("fixed batch", "gpus_of_highest_speed", BEST_GPUS),
            Figure("fixed batch", "speed_on_4_over_2", None),
        ),
        tuple(rows),
    )


def _best(name: str, paper: float | None, per_s: FloatArray) -> list[Row]:
    """With how many GPUs a batch is fastest, and what 4 bring over 2."""
    four, two = per_s[GPUS.index(4)], per_s[GPUS.index(2)]
    return [
        Row(name, "gpus_of_highest_speed", paper, float(GPUS[int(per_s.argmax())])),
        Row(name, "speed_on_4_over_2", None, float(four / two)),
    ]


def speed_per_s(gpus: IntArray, batch: IntArray, assumed: Assumptions = Assumptions()) -> FloatArray:
    """(counts,) samples per second of a batch on so many GPUs, in as many passes as its local part needs."""
    on = find_model(MODEL).on(GPU_TYPE)
    params = np.asarray(on.params, dtype=np.float64).copy()
    params[SYNC] *= assumed.sync
    params[GAMMA] = params[GAMMA] if assumed.overlap else 1.0
    params[ALPHA_C] *= assumed.fixed_part
    nodes = gpus if assumed.own_nodes else np.ceil(gpus / GPUS_PER_NODE)
    passes = np.ceil(batch / gpus / max(on.max_local, assumed.fits))
    local = np.ceil(batch / gpus / passes)
    per_s: FloatArray = batch / iteration_s(params, nodes, gpus, local, passes - 1)
    return per_s
