"""From a workload to the physics of a world: which jobs run by profiles, by the catalogue, by the clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan

import numpy as np

from stretto.catalogue import nearest_model
from stretto.model import (
    Adaptivity,
    Cluster,
    FloatArray,
    InputError,
    Job,
    MeasuredSpeeds,
    Observations,
    Purpose,
    Requests,
    TrainingLimits,
)
from stretto.sim.physics import Physics
from stretto.sim.settings import Batches, Fidelity, Learning, Profiling, Scaling, SimSettings
from stretto.sim.truth.inference import inference_truth
from stretto.sim.truth.measured_speeds import Measuring
from stretto.sim.truth.model_knowledge import ModelKnowledge
from stretto.sim.truth.parametric import parametric_truth
from stretto.sim.truth.profiled import profiled_truth
from stretto.sim.truth.profiles import ProfileLibrary
from stretto.sim.truth.recorded import RecordedRuns
from stretto.sim.truth.scaling import Curves
from stretto.sim.truth.serving import ServingRun, serving_truth
from stretto.sim.truth.training import TrainingRun, TrainingTruth, true_observations
from stretto.sim.truth.training_length import StatedSteps, training_of
from stretto.traces.learning import LearningCurve
from stretto.traces.workload import Truth, Workload


def physics_of(
    workload: Workload,
    cluster: Cluster,
    settings: SimSettings,
    profiles: ProfileLibrary | None = None,
    seed: int = 0,
) -> Physics:
    """The truth of every job of a workload on a cluster.

    A job whose trace gives a duration runs by the clock. One without runs by the profile of its model, else
    by the catalogue's, and accepts only GPU types on which that runs. It ends after the steps that the trace
    gives, else with its model's last epoch. Raises InputError for a model that
    neither knows, and for a job that could run nowhere.
    """
    _check_curves(workload, settings)
    truths = _Truths(cluster, settings, profiles)
    jobs = list(workload.jobs)
    training: dict[int, TrainingRun] = {}
    learning: dict[int, LearningCurve] = {}
    for row, truth in enumerate(workload.truths):
        if truth.learning is not None:
            learning[row] = truth.learning
        if isnan(truth.duration_s) or jobs[row].purpose is Purpose.SERVING:
            if jobs[row].heterogeneous and len(cluster.types) > 1:
                raise InputError(
                    f"job {jobs[row].id}: heterogeneous: expected a job with a duration, "
                    "how fast a training is on several types at once is not known"
                )
            training[row] = _run(jobs[row], truth, truths, settings, seed)
            jobs[row] = _where_it_runs(jobs[row], training[row], cluster)
    requests = Requests(jobs, cluster) if training else Requests(workload.jobs, cluster)
    tables = _Tables(requests, training, _type_speeds(workload.truths, cluster), Curves(cluster, settings))
    recorded = RecordedRuns(
        work_s=np.array(
            [nan if row in training else truth.duration_s for row, truth in enumerate(workload.truths)],
            dtype=np.float64,
        ),
        cluster=cluster,
        tables=tables,
        mixing=settings.mixing,
        crossing_loss=settings.crossing_loss,
        cpus_per_gpu=np.array([truth.cpus_per_gpu for truth in workload.truths], dtype=np.float64),
    )
    return Physics(requests, training, recorded, tables, settings, seed, learning)


def _check_curves(workload: Workload, settings: SimSettings) -> None:
    """Raise InputError for a recorded job whose model has no curve although the settings ask for one."""
    if settings.scaling is not Scaling.CATALOGUE:
        return
    with_curve = {""}
    for job, truth in zip(workload.jobs, workload.truths, strict=True):
        if job.model in with_curve or isnan(truth.duration_s) or job.purpose is Purpose.SERVING:
            continue
        try:
            with_curve |= {job.model, nearest_model(job.model).name}
        except InputError as unknown:
            raise InputError(f"job {job.id}: sim.scaling=catalogue: {unknown}") from None


def truth_of(
    job: Job, cluster: Cluster, settings: SimSettings, profiles: ProfileLibrary | None
) -> TrainingTruth:
    """What the model of one job really does on a cluster."""
    return _Truths(cluster, settings, profiles).of(job)


@dataclass
class _Truths:
    """One truth for each model, made when it is first asked for."""

    cluster: Cluster
    settings: SimSettings
    profiles: ProfileLibrary | None
    made: dict[tuple[str, LearningCurve | None], TrainingTruth] = field(default_factory=dict)
    ended: dict[tuple[TrainingTruth, float, int], StatedSteps] = field(default_factory=dict)
    shown: dict[tuple[str, int], TrainingLimits] = field(default_factory=dict)
    told: dict[TrainingTruth, tuple[Observations, ...]] = field(default_factory=dict)
    learned: dict[TrainingTruth, ModelKnowledge] = field(default_factory=dict)

    def of(self, job: Job, learning: LearningCurve | None = None) -> TrainingTruth:
        """The truth of a job's model, and of the data that it trains on where that is known."""
        if (job.model, learning) not in self.made:
            self.made[job.model, learning] = self._make(job, learning)
        return self.made[job.model, learning]

    def ending(self, trained: TrainingTruth, steps: float, batch: int) -> StatedSteps:
        """The same that ends after so many steps of a batch; equal jobs share it."""
        key = (trained, steps, batch)
        if key not in self.ended:
            self.ended[key] = training_of(trained, steps, batch)
        return self.ended[key]

    def visible(self, job: Job, limits: TrainingLimits) -> TrainingLimits:
        """What schedulers are told: in the artifact, no batch above the submitted one is considered."""
        if self.settings.fidelity is not Fidelity.ARTIFACT or not job.batch_size:
            return limits
        key = (job.model, job.batch_size)
        if key not in self.shown:
            self.shown[key] = replace(
                limits, max_batch=max(job.batch_size, limits.init_batch), max_is_soft=True
            )
        return self.shown[key]

    def foreseen(self, truth: TrainingTruth) -> tuple[Observations, ...]:
        """The speeds that schedulers are shown before a job starts."""
        if self.settings.profiling is not Profiling.ORACLE:
            return ()
        if truth not in self.told:
            self.told[truth] = true_observations(truth, self.cluster)
        return self.told[truth]

    def shared(self, truth: TrainingTruth) -> ModelKnowledge | None:
        """What its jobs learn together; None where each learns alone, or all is known beforehand."""
        if self.settings.learning is Learning.JOB or self.settings.profiling is Profiling.ORACLE:
            return None
        if truth not in self.learned:
            self.learned[truth] = ModelKnowledge.of_types(len(self.cluster.types))
        return self.learned[truth]

    def _make(self, job: Job, learning: LearningCurve | None) -> TrainingTruth:
        if self.profiles is not None and job.model in self.profiles.names:
            return profiled_truth(self.profiles.model(job.model), self.cluster, self.settings.fidelity)
        known = sorted(self.profiles.names) if self.profiles is not None else []
        if not job.model:
            raise InputError(f"job {job.id}: expected duration_s or a model, found neither")
        try:
            return parametric_truth(job.model, self.cluster, learning)
        except InputError as unknown:
            raise InputError(f"job {job.id}: {unknown}" + (f"; profiled: {known}" if known else "")) from None


def _run(job: Job, known: Truth, truths: _Truths, settings: SimSettings, seed: int) -> TrainingRun:
    if job.purpose is Purpose.BATCH_INFERENCE:
        infers = inference_truth(job, known.steps, truths.of(job), truths.cluster)
        return TrainingRun(infers, infers.limits, 0, settings, truths.foreseen(infers))
    if job.purpose is Purpose.SERVING:
        serves = serving_truth(job, known.duration_s, truths.of(job), truths.cluster)
        return ServingRun(serves, serves.limits, 0, settings, truths.foreseen(serves))
    trained = truths.of(job, known.learning)
    says = known.learning is None and not isnan(known.steps)
    truth = truths.ending(trained, known.steps, job.batch_size) if says else trained
    fixed = settings.batches is Batches.TUNED or job.adaptivity is not Adaptivity.ADAPTIVE
    return TrainingRun(
        truth=truth,
        visible=truths.visible(job, truth.limits),
        fixed_batch=(job.batch_size or truth.limits.init_batch) if fixed else 0,
        settings=settings,
        foreseen=truths.foreseen(trained),
        of_model=truths.shared(trained),
        measuring=Measuring(job.model, settings.speed_error, seed),
    )


def _where_it_runs(job: Job, run: TrainingRun, cluster: Cluster) -> Job:
    """The job, accepting no types on which its model does not run.

    Nor, where it will get exactly what it asks for, types on which that is no whole number of replicas.
    """
    limits = run.truth.limits
    runs = limits.max_local > 0
    if run.settings.batches is Batches.TUNED or job.adaptivity is Adaptivity.RIGID:
        runs = runs & (job.gpus % np.maximum(limits.replica_gpus, 1) == 0)
    if runs.all():
        return job
    names = [name for name, fits in zip(cluster.type_names, runs, strict=True) if fits]
    accepted = {cluster.type_index(name) for name in job.gpu_types} or set(range(len(cluster.types)))
    left = tuple(name for name in names if cluster.type_index(name) in accepted)
    if not left:
        raise InputError(
            f"job {job.id}: expected GPU types on which {job.gpus} GPUs can train {job.model}, "
            f"which are {names} here, got {list(job.gpu_types or cluster.type_names)}"
        )
    return replace(job, gpu_types=left)


def _type_speeds(truths: Sequence[Truth], cluster: Cluster) -> FloatArray:
    """(jobs, types) speed of each type relative to the one on which the job was recorded."""
    speeds = np.array([gpu_type.speed for gpu_type in cluster.types])
    rows: dict[str, FloatArray] = {"": speeds}
    for name in {truth.gpu_type for truth in truths} - {""}:
        rows[name] = speeds / speeds[cluster.type_index(name)]
    return np.array([rows[truth.gpu_type] for truth in truths])


class _Tables:
    """Every job's measured speeds, made when they are first looked at and shared by equal jobs."""

    def __init__(
        self,
        requests: Requests,
        training: dict[int, TrainingRun],
        type_speed: FloatArray,
        curves: Curves,
    ) -> None:
        self.requests = requests
        self.training = training
        self.type_speed = type_speed
        self.curves = curves
        self.made: dict[object, MeasuredSpeeds] = {}

    def __getitem__(self, row: int) -> MeasuredSpeeds:
        job = self.requests.jobs[row]
        run = self.training.get(row)
        if run is None:
            return self.curves.of(job, self.type_speed[row])
        truth = run.truth.trained if isinstance(run.truth, StatedSteps) else run.truth
        key = (id(truth), job.batch_size)
        if key not in self.made:
            infers = job.purpose is Purpose.BATCH_INFERENCE  # its progress counts in batches of one replica
            batch = run.truth.limits.init_batch if infers else job.batch_size or run.truth.limits.init_batch
            self.made[key] = run.truth.table(batch, self.curves.most_gpus)
        return self.made[key]
