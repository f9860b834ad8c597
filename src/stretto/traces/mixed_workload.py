"""Every class of jobs on one cluster, in one made workload: what no paper's own workload has.

Interactive sessions are as in Cornucopia, strict and soft deadlines as in UniSched, elastic trainings as in
Sia. Others are rigid, or urgent, or hybrid-parallel and grow by whole workers. They are of two teams, each of
which has a queue and several users. All shares are chosen, before any policies were compared on it. So are
sizes: 160 jobs fill half of `mixed-64` for eight hours.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from stretto.model import Adaptivity, Job, JobId, Kind, floats
from stretto.traces.helios_made import STEPS
from stretto.traces.makers import EXTRA, Pair, arrivals_s, models_drawn, names_of, session_s, training
from stretto.traces.making import Making
from stretto.traces.recipes.unisched import SLACK, rewards_for
from stretto.traces.workload import Truth

SHARES = {
    "session": 0.20,
    "strict": 0.12,
    "soft": 0.08,
    "rigid": 0.12,
    "hybrid": 0.06,
    "urgent": 0.08,
    "elastic": 0.34,
}
CLASSES = floats([55, 30, 15, 0])  # % by size, chosen: all but sessions are trainings of minutes to hours
TEAMS = {"vision": ("ada", "emmy", "grace"), "speech": ("mary", "sofia")}
VISION = 0.6  # of the jobs; chosen
URGENT = 10  # their priority; that of the others is 0
WORKER_GPUS = 4  # of a hybrid-parallel job: one pipeline with its stages on one node


def mixed(making: Making) -> Sequence[Pair]:
    """Jobs of each class, as many as its share, whatever the seed; their order is drawn."""
    count, rng = making.count, making.stream(EXTRA)
    models = models_drawn(making, CLASSES)
    ends = np.cumsum(list(SHARES.values())) * count
    kinds = np.searchsorted(ends, rng.permutation(count) + 0.5).clip(max=len(SHARES) - 1)
    names = [list(SHARES)[kind] for kind in kinds.tolist()]
    teams = list(TEAMS)
    pairs: list[Pair] = []
    for (row, at_s), name in zip(enumerate(arrivals_s(making)), names_of("", count, names), strict=True):
        team = teams[int(rng.random() >= VISION)]
        user = TEAMS[team][int(rng.integers(len(TEAMS[team])))]
        slack, session = rng.uniform(*SLACK), float(rng.standard_normal())
        if names[row] == "session":
            job = Job(
                JobId(name), at_s, gpus=1, adaptivity=Adaptivity.RIGID, kind=Kind.INTERACTIVE, user=user
            )
            pairs.append((replace(job, queue=team), Truth(duration_s=session_s(session))))
            continue
        model, tuned = models[row]
        job = training(name, at_s, model, tuned, Adaptivity.ADAPTIVE)
        job = replace(job, user=user, queue=team)
        if names[row] in STEPS:
            due_s = float(ceil(slack * tuned.runtime_s))
            job = replace(job, rewards=rewards_for(at_s, due_s, STEPS[names[row]]))
        elif names[row] == "rigid":
            job = replace(job, adaptivity=Adaptivity.RIGID, min_gpus=1, max_gpus=0)
        elif names[row] == "urgent":
            job = replace(job, priority=URGENT)
        elif names[row] == "hybrid":
            asked = max(job.gpus // WORKER_GPUS, 1) * WORKER_GPUS
            job = replace(job, gpus=asked, gpus_per_worker=WORKER_GPUS, min_gpus=WORKER_GPUS)
        pairs.append((job, Truth()))
    return pairs


def class_of(job: JobId) -> str:
    """One of SHARES, of a job of such a workload."""
    return job.partition("-")[0]
