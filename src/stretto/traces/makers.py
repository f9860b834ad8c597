"""The kinds of made workload: recorded durations as in Philly, trainings as in Sia, and a demonstration.

A training asks for what an owner who has tuned it would ask for, neither too few GPUs nor too many. These are
the TunedJobs of Sia (SOSP 2023), section 4.3. Of all (batch size, GPUs) those are right whose runtime is 50
to 80 % of the ideal. The ideal is the speed-up over one GPU with its best batch size. One of them is taken at
random.

How many GPUs and how long is drawn as published about Philly's jobs. Figures are those of the table of 82,247
jobs that Sia's authors made of the Philly trace (Jeon et al., ATC 2019). Outcomes are from Helios (Hu et al.,
SC 2021), since that table has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

import numpy as np

from stretto.catalogue import CatalogueModel, find_model, read_catalogue, read_gpus, runtimes_s
from stretto.model import Adaptivity, Cluster, InputError, Job, JobId, Kind, Reward
from stretto.model.arrays import FloatArray, IntArray, floats, ints
from stretto.traces.arrivals import PATTERNS, arrival_times_s
from stretto.traces.making import Making
from stretto.traces.workload import Outcome, Truth

GPUS = ints([1, 2, 4, 8, 16, 32])
SHARE_OF_JOBS = floats([93.17, 2.21, 2.27, 2.00, 0.24, 0.08])  # %; 0.03 % have other numbers
SHARE_OF_GPU_HOURS = floats([18.1, 3.2, 16.7, 48.4, 11.5, 1.8])  # %
MEAN_DURATION_S = 13_136.0

PROBABILITY = floats([0.0, 0.05, 0.25, 0.50, 0.75, 0.90, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0])
DURATION_S = floats(
    [1, 48, 115, 1_144, 2_932, 11_265, 43_646, 147_809, 254_758, 430_369, 1_186_277, 4_628_226]
)

OUTCOMES = (Outcome.COMPLETED, Outcome.CANCELLED, Outcome.FAILED)
SHARE_OF_OUTCOMES = floats([0.624, 0.221, 0.155])  # of the GPU jobs of four clusters


def draw_gpus(jobs: int, most: int, rng: np.random.Generator) -> IntArray:
    """(jobs,) GPUs asked for; numbers above `most` do not occur."""
    fits = most >= GPUS
    share = np.where(fits, SHARE_OF_JOBS, 0.0)
    return ints(rng.choice(GPUS, size=jobs, p=share / share.sum()))


def draw_durations_s(gpus: IntArray, rng: np.random.Generator) -> FloatArray:
    """(jobs,) whole seconds, at least 1. Jobs on many GPUs run longer, such that shares of GPU time agree.

    Of all jobs, durations have the published quantiles, log-linear between them. For a uniform u, a job on g
    GPUs takes the quantile at u below 1/2. Above, it takes that at 1/2 + (2u - 1)^(1/k) / 2. With k > 1 the
    longer half of the jobs moves towards the long end.

    For each g, k is solved so that the mean duration is what the shares of jobs and GPU hours imply.
    """
    uniform = rng.random(len(gpus))
    power = tilts()[np.searchsorted(GPUS, gpus)]
    return np.maximum(np.floor(_quantile_s(_tilted(uniform, power))), 1.0)


def draw_outcomes(jobs: int, rng: np.random.Generator) -> list[Outcome]:
    """(jobs,) how they end, independently of all else; in the logs, longer jobs are cancelled more often."""
    return [OUTCOMES[index] for index in rng.choice(len(OUTCOMES), size=jobs, p=SHARE_OF_OUTCOMES)]


@cache
def tilts() -> FloatArray:
    """(sizes,) k for each number of GPUs."""
    grid = (np.arange(100_000) + 0.5) / 100_000
    ratio = (SHARE_OF_GPU_HOURS / 100) / (SHARE_OF_JOBS / 100 * GPUS)
    all_gpu_hours = (SHARE_OF_JOBS / 100 * GPUS * ratio).sum()  # 1 but for rounding and rare sizes
    # Mean over jobs of duration is known, so ratio x (GPU time per job) is the mean duration of each size.
    mean_s = MEAN_DURATION_S * ratio / (SHARE_OF_JOBS / 100 * ratio).sum() * all_gpu_hours
    return floats([_power_for(float(mean), grid) for mean in mean_s])


def _power_for(mean_s: float, grid: FloatArray) -> float:
    from scipy.optimize import brentq  # takes a third of a second to import, and only one kind of trace asks

    def excess(log_power: float) -> float:
        return float(_quantile_s(_tilted(grid, np.exp(log_power))).mean()) - mean_s

    return float(np.exp(brentq(excess, -3.0, 5.0)))


def _tilted(uniform: FloatArray, power: FloatArray | float) -> FloatArray:
    upper = np.maximum(2 * uniform - 1, 0.0)
    return np.where(uniform < 0.5, uniform, 0.5 + upper ** (1 / power) / 2)


def _quantile_s(probability: FloatArray) -> FloatArray:
    return np.exp(np.interp(probability, PROBABILITY, np.log(DURATION_S)))


# ── the kinds of made workload: recorded durations as in Philly, trainings as in Sia, and a demonstration ───


LEAST, MOST = 0.5, 0.8  # of the ideal speed-up
MOST_GPUS_HETERO = 16  # Sia: no more GPUs than this on mixed clusters
MOST_GPUS_HOMO = 64  # and than this on uniform ones


@dataclass(frozen=True)
class Request:
    """What one may ask for, and what comes of it."""

    gpus: int
    batch_size: int
    runtime_s: float  # of a whole training
    share_of_ideal: float  # speed-up over one GPU at its best batch size, per GPU


def requests(model: CatalogueModel, gpu_type: str, gpus_per_node: int, most_gpus: int) -> Sequence[Request]:
    """Every even number of GPUs with every batch size (a power of two times the initial one) that can run."""
    doublings = int(np.log2(model.max_batch / model.init_batch))
    batches = model.init_batch * 2 ** np.arange(doublings + 1)
    alone_s = float(runtimes_s(model, gpu_type, gpus_per_node, ints([1]), batches).min())
    counts = np.arange(2, most_gpus + 1, 2)
    table = runtimes_s(model, gpu_type, gpus_per_node, counts, batches)
    return [
        Request(int(count), int(batch), float(runtime_s), float(alone_s / runtime_s / count))
        for count, row in zip(counts, table, strict=True)
        for batch, runtime_s in zip(batches, row, strict=True)
        if np.isfinite(runtime_s)
    ]


def draw_request(found: Sequence[Request], rng: np.random.Generator) -> Request:
    """One of those within the limits at random; where there is none, the one nearest to them."""
    within = [one for one in found if LEAST <= one.share_of_ideal <= MOST]
    if within:
        return within[int(rng.integers(len(within)))]
    middle = (LEAST + MOST) / 2
    return min(found, key=lambda one: (abs(one.share_of_ideal - middle), one.gpus, one.batch_size))


# ── workloads by name ─────────────────────────────────────────────────────────────────────────────


Pair = tuple[Job, Truth]

ARRIVAL, SIZE, DURATION, OUTCOME, MODEL, REQUEST, CLASS, EXTRA = range(8)  # purposes of random streams

SIZE_CLASSES = ("S", "M", "L", "XL")
PHILLY_CLASSES = floats([76.8, 16.8, 4.4, 2.1])  # % of Philly's jobs below 1, 10, 100 GPU-hours, and above
SIA_MODELS = ("resnet18-cifar10", "bert-squad", "deepspeech2", "yolov3", "resnet50-imagenet")  # Sia, table 2


def recorded(making: Making) -> Sequence[Pair]:
    """Rigid jobs with a duration: GPUs, durations and shares of GPU time as in Philly."""
    count = making.count
    gpus = draw_gpus(count, making.most_gpus, making.stream(SIZE))
    duration_s = draw_durations_s(gpus, making.stream(DURATION))
    outcome = draw_outcomes(count, making.stream(OUTCOME))
    return [
        (
            Job(JobId(name), at_s, int(job_gpus), adaptivity=Adaptivity.RIGID),
            Truth(duration_s=float(ran_s), outcome=ended),
        )
        for name, at_s, job_gpus, ran_s, ended in zip(
            names_of("job", count), arrivals_s(making), gpus, duration_s, outcome, strict=True
        )
    ]


def trainings(making: Making) -> Sequence[Pair]:
    """Whole trainings of catalogue models; size classes as frequent as among Philly's jobs."""
    models = models_drawn(making, PHILLY_CLASSES)
    category = making.stream(CLASS).random(making.count)
    return [
        (training(name, at_s, model, tuned, _adaptivity(making, drawn)), Truth())
        for name, at_s, (model, tuned), drawn in zip(
            names_of("", making.count, [model.name for model, _ in models]),
            arrivals_s(making),
            models,
            category,
            strict=True,
        )
    ]


DEMO_CLASSES = floats([55, 40, 5, 0])  # %, chosen: enough variety, and over within a few hours
DEMO_INTERACTIVE = 0.15  # chosen, as are the shares below
DEMO_RIGID = 0.15
DEMO_STRONG_SCALING = 0.10
DEMO_DEADLINE = 0.15
DEMO_USERS = ("ada", "emmy", "grace", "mary", "sofia")
SESSION_S = (60.0, 600.0, 1_800.0)  # shortest, median and longest interactive session
DEADLINE_SLACK = (1.1, 2.0)  # of the tuned runtime; UniSched (TPDS 2024), section IV-B, for strict deadlines


def demonstration(making: Making) -> Sequence[Pair]:
    """A little of everything: trainings of all classes of adaptivity, deadlines, interactive sessions."""
    rng = making.stream(EXTRA)
    models = models_drawn(making, DEMO_CLASSES)
    kinds = rng.permutation(making.count) / making.count  # so that small workloads have their shares exactly
    due = rng.permutation(making.count) / making.count < DEMO_DEADLINE
    mixed = replace(making, rigid=DEMO_RIGID, strong_scaling=DEMO_STRONG_SCALING)
    pairs: list[Pair] = []
    names = names_of("", making.count, [model.name for model, _ in models])
    for row, at_s in enumerate(arrivals_s(making)):
        user = DEMO_USERS[int(rng.integers(len(DEMO_USERS)))]
        slack, session = rng.uniform(*DEADLINE_SLACK), rng.standard_normal()
        if kinds[row] >= 1 - DEMO_INTERACTIVE:
            job = Job(
                JobId(f"session-{row:03d}"),
                at_s,
                gpus=1,
                adaptivity=Adaptivity.RIGID,
                kind=Kind.INTERACTIVE,
                user=user,
            )
            pairs.append((job, Truth(duration_s=session_s(float(session)))))
            continue
        model, tuned = models[row]
        job = training(names[row], at_s, model, tuned, _adaptivity(mixed, float(kinds[row])))
        deadline_s = float(ceil(at_s + slack * tuned.runtime_s))
        rewards = (Reward(deadline_s, 1.0),) if due[row] else ()
        pairs.append((replace(job, user=user, rewards=rewards), Truth()))
    return pairs


def training(name: str, at_s: float, model: CatalogueModel, tuned: Request, adaptivity: Adaptivity) -> Job:
    """A whole training as its owner asks for it."""
    return Job(
        JobId(name),
        at_s,
        gpus=tuned.gpus,
        model=model.name,
        batch_size=tuned.batch_size,
        adaptivity=adaptivity,
    )


def arrivals_s(making: Making) -> list[float]:
    """Of each job, when it is submitted, ascending."""
    times_s = arrival_times_s(PATTERNS[making.arrivals], making.count, making.hours, making.stream(ARRIVAL))
    return list(times_s.tolist())


def names_of(start: str, count: int, middles: Sequence[str] = ()) -> list[str]:
    """Names that end with a number; middles: how each begins instead of `start`."""
    digits = len(str(count - 1))
    return [f"{middles[row] if middles else start}-{row:0{digits}d}" for row in range(count)]


def models_drawn(making: Making, classes: FloatArray) -> list[tuple[CatalogueModel, Request]]:
    """(jobs,) what each job trains and what its owner asks for."""
    by_class = _by_class(making.models)
    gpu_type, per_node, most = _reference(making.cluster)
    requests_of = {
        model.name: requests(model, gpu_type, per_node, most) for group in by_class for model in group
    }
    weight = np.where([bool(group) for group in by_class], classes, 0.0)
    rng, tuning = making.stream(MODEL), making.stream(REQUEST)
    drawn = []
    for size in rng.choice(len(SIZE_CLASSES), size=making.count, p=weight / weight.sum()):
        group = by_class[int(size)]
        model = group[int(rng.integers(len(group)))]
        drawn.append((model, draw_request(requests_of[model.name], tuning)))
    return drawn


def _by_class(models: str) -> list[list[CatalogueModel]]:
    chosen = [find_model(name) for name in SIA_MODELS] if models == "sia" else list(read_catalogue().values())
    return [[model for model in chosen if model.size_class == size] for size in SIZE_CLASSES]


def _reference(cluster: Cluster | None) -> tuple[str, int, int]:
    """(GPU type of the catalogue, GPUs of a node, most GPUs) on which owners tune their jobs.

    The type that the cluster has most of; T4 nodes of 4, as in Sia, without a cluster.
    """
    if cluster is None:
        return "t4", 4, MOST_GPUS_HETERO
    in_catalogue = read_gpus()
    for index in np.argsort(-cluster.capacity, kind="stable").tolist():
        gpu_type = cluster.types[index]
        for name in (gpu_type.name, *gpu_type.aliases):
            if name in in_catalogue:
                most = MOST_GPUS_HOMO if len(cluster.types) == 1 else MOST_GPUS_HETERO
                return name, int(cluster.gpus_per_node[index]), min(most, int(cluster.capacity[index]))
    raise InputError(
        f"cluster {cluster.name}: expected a gpu type that the catalogue knows, "
        f"one of {', '.join(in_catalogue)}, got {', '.join(cluster.type_names)}"
    )


def _adaptivity(making: Making, drawn: float) -> Adaptivity:
    if drawn < making.rigid:
        return Adaptivity.RIGID
    return Adaptivity.STRONG_SCALING if drawn < making.rigid + making.strong_scaling else Adaptivity.ADAPTIVE


def session_s(normal: float) -> float:
    """Length of an interactive session; normal: a draw from the standard normal distribution."""
    shortest, median, longest = SESSION_S
    return float(np.clip(np.floor(median * np.exp(0.8 * normal)), shortest, longest))
