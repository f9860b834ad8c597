"""What the service knows of its jobs, as the views of a policy show it.

Nothing here is true by construction, as it is in the simulated world: durations are what owners state or
what the training itself says is left; speeds are what was measured, else what the catalogue or plain
proportion suggests.
"""

from math import nan

from stretto.live.decide.priors import limits_of, observations_of
from stretto.live.state.learned import NOISE
from stretto.live.state.records import JobRecord
from stretto.model import (
    Adaptivity,
    Cluster,
    Evidence,
)

USUAL_S = 3600.0  # a job of which nobody says how long it takes; chosen
LEAST_LEFT_S = 60.0  # what a job that outlives its stated time is believed to need still; chosen


def stated_s(record: JobRecord) -> float:
    """How long the whole job takes on what it asked for, as its owner states it."""
    return record.spec.expected_time_s or record.spec.max_time_s or USUAL_S


def work_left(record: JobRecord) -> float:
    """Steps of the initial batch that are left where the stop rule says how many; else NaN."""
    latest, stop = record.learned.latest, record.spec.stop
    done = float(latest.get("progress_steps", latest.get("step", 0.0)))
    if stop is not None and stop.steps is not None:
        return max(stop.steps - done, 1.0)
    batch = float(latest.get("init_batch") or 0.0)
    dataset = float(latest.get("dataset_samples") or 0.0)
    epochs = None if stop is None else stop.epochs or stop.max_epochs
    if epochs is not None and batch and dataset:
        return max(epochs * dataset / batch - done, 1.0)
    return nan


def evidence_of(record: JobRecord, cluster: Cluster) -> Evidence | None:
    """What a job has shown; None where it can only be as fast as a table says."""
    learned = record.learned
    if record.job.adaptivity is Adaptivity.RIGID and not learned.points and not learned.profile:
        return None
    limits = limits_of(record, cluster)
    if limits is None:
        return None
    latest, said = record.learned.latest, record.prior.said
    if "grad_sqr" not in latest and said.get("init_batch") == limits.init_batch and not learned.profile:
        latest = {**{key: said[key] for key in NOISE if key in said}, **latest}
    fixed = record.job.adaptivity is not Adaptivity.ADAPTIVE
    return Evidence(
        limits=limits,
        observed=observations_of(record, len(cluster.types)),
        grad_sqr=float(latest.get("grad_sqr", nan)),
        grad_var=float(latest.get("grad_var", nan)),
        fixed_batch=int(latest.get("batch") or limits.init_batch) if fixed else 0,
    )


def cpus_per_gpu(record: JobRecord) -> float:
    """Cores at which it is at its fastest, as far as its owner says; NaN unknown."""
    cpus = record.spec.resources.cpus
    return nan if cpus is None else cpus / record.job.gpus
