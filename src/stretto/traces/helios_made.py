"""Made stand-ins for the workloads that Chronus and UniSched drew from Helios, which are not public.

What is published of Helios (Hu et al., SC 2021), cluster Venus: 10,993 GPU jobs asking for 63,454 GPUs from
2020-04-14 to 04-27. These are the two weeks of Chronus (SoCC 2021) and UniSched (TPDS 2024). Over six months
run times are 13,041 s on average and 204 s at the median. A job has 98,500 GPU-seconds, a mean demand of 895
GPUs over those two weeks. Arrivals are as in the pattern `venus`.

Run times are log-normal with that mean and median, drawn again outside 20 minutes to 3 days. That is the
range of the Philly files published with Chronus, made by the same authors with the same method. That leaves
about the demand above (tested). The shares of GPU counts are chosen to have the published mean; models, which
Helios does not name, are those of the Philly files. Classes of deadlines are as frequent as in those files.

Saturn has 69,687 jobs in the same weeks (Cornucopia, table 1). Over six months run times are 5,253 s on
average and 124 s at the median, with 4.01 GPUs a job. As many jobs ask for 2,280 GPUs on average. Its run
times are drawn again outside 20 minutes to 120,000 s, a bound chosen to leave that demand. Arrivals are those
of Venus.

The sample of UniSched's table III has run times of 5 to 180 minutes, requests below 16 GPUs, and arrivals
before eight o'clock. It is drawn from the same distributions within those bounds. What it asks for in all is
not published. Two further samples, of even run times and of one GPU each, show how much hangs on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np

from stretto.model import Adaptivity, FloatArray, IntArray, Job, JobId
from stretto.traces.arrivals import PATTERNS, arrival_times_s
from stretto.traces.making import Making
from stretto.traces.recipes.unisched import SLACK, SOFT_STEPS, STRICT_STEPS, rewards_for
from stretto.traces.workload import Truth

HOURS = 336.0  # two weeks
GPUS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class HeliosCluster:
    """What is published of the jobs of a cluster, and what is chosen to fit it."""

    jobs: int  # in the two weeks
    mean_s: float  # run time, six months
    median_s: float
    range_s: tuple[float, float]  # of run times that are kept
    gpus_share: tuple[float, ...]  # of jobs, by GPUS
    at_most_gpus: int = max(GPUS)
    is_even: bool = False  # run times are equally likely in their range, whatever mean and median are


VENUS = HeliosCluster(
    10_993,
    13_041.0,
    204.0,
    (1_200.0, 259_200.0),  # of the Philly files: 20 to 4,317 minutes
    (0.517, 0.08, 0.10, 0.20, 0.05, 0.035, 0.018),  # chosen: mean 5.75; 63,454 / 10,993 = 5.77
)
SATURN = HeliosCluster(
    69_687,
    5_253.0,
    124.0,
    (1_200.0, 120_000.0),  # the upper end is chosen, see above
    (0.556, 0.13, 0.12, 0.13, 0.036, 0.018, 0.01),  # chosen: mean 4.13; published 4.01 over six months
)
# Of the sample of table III of UniSched, section IV-C.
SAMPLE = replace(VENUS, range_s=(300.0, 10_800.0), at_most_gpus=15)  # "below 16"
EVEN_SAMPLE, SINGLE_SAMPLE = replace(SAMPLE, is_even=True), replace(SAMPLE, at_most_gpus=1)
MODELS = ("alexnet", "vgg16", "resnet101", "mobilenet_v2", "inception_v3")
STEPS = {"none": 0, "strict": len(STRICT_STEPS), "soft": len(SOFT_STEPS)}
CLASSES = {  # shares of jobs without, with a strict and with a soft deadline: counts of the Philly files
    "none": {"none": 1.0},
    "slo": {"strict": 1.0},
    "mix1": {"strict": 21_724 / 30_940, "none": 9_216 / 30_940},
    "mix2": {"soft": 18_525 / 30_940, "strict": 9_276 / 30_940, "none": 3_139 / 30_940},
}
ARRIVAL, DURATION, SIZE, MODEL, CLASS, SLACK_OF = range(6)  # purposes of random streams


def helios(mix: str, cluster: HeliosCluster = VENUS) -> Callable[[Making], Sequence[tuple[Job, Truth]]]:
    """The maker of one of CLASSES, as on one of the clusters."""

    def make(making: Making) -> Sequence[tuple[Job, Truth]]:
        """Rigid jobs with durations and deadlines."""
        count = making.count
        times_s = arrival_times_s(PATTERNS[making.arrivals], count, making.hours, making.stream(ARRIVAL))
        duration_s = durations_s(count, making.stream(DURATION), cluster)
        gpus = np.minimum(gpus_asked(count, making.stream(SIZE), cluster), making.most_gpus)
        model = making.stream(MODEL).choice(MODELS, count).tolist()
        shares = CLASSES[mix]
        kinds = making.stream(CLASS).choice(list(shares), count, p=list(shares.values())).tolist()
        slack = making.stream(SLACK_OF).uniform(*SLACK, count)
        columns = zip(
            times_s.tolist(), gpus.tolist(), model, kinds, slack.tolist(), duration_s.tolist(), strict=True
        )
        digits = len(str(count - 1))
        return [
            (
                Job(
                    JobId(f"job-{row:0{digits}d}"),
                    at_s,
                    job_gpus,
                    model=trains,
                    adaptivity=Adaptivity.RIGID,
                    rewards=rewards_for(at_s, times * ran_s, STEPS[kind]),
                ),
                Truth(duration_s=ran_s),
            )
            for row, (at_s, job_gpus, trains, kind, times, ran_s) in enumerate(columns)
        ]

    return make


def durations_s(count: int, rng: np.random.Generator, cluster: HeliosCluster = VENUS) -> FloatArray:
    """(jobs,) log-normal with the published mean and median, drawn again until within the range; or even."""
    if cluster.is_even:
        return np.floor(rng.uniform(*cluster.range_s, count))
    drawn = np.zeros(count)
    missing = np.ones(count, dtype=np.bool_)
    sigma = sqrt(2.0 * log(cluster.mean_s / cluster.median_s))
    while missing.any():
        drawn[missing] = rng.lognormal(log(cluster.median_s), sigma, int(missing.sum()))
        missing = (drawn < cluster.range_s[0]) | (drawn > cluster.range_s[1])
    return np.floor(drawn)


def gpus_asked(count: int, rng: np.random.Generator, cluster: HeliosCluster = VENUS) -> IntArray:
    """(jobs,) independent of the run times: GPU time is the product of their means within 12 % on Venus."""
    offered = np.array(GPUS) <= cluster.at_most_gpus
    share = np.array(cluster.gpus_share)[offered]
    return rng.choice(np.array(GPUS)[offered], count, p=share / share.sum()).astype(np.int64)
