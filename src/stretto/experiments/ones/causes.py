"""Why some of ONES's figures come out otherwise here: assumptions switched one at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

from stretto.experiments.causes import (
    NOTHING,
    Figure,
    Series,
    Switch,
    Switched,
    Value,
    switched_runs,
    value_of,
)
from stretto.experiments.ones.batches import FACTORS, INITIAL, RATE, THIRD, Trained, Training, seeds_of, train
from stretto.experiments.ones.comparison import (
    AVG_JCT_S,
    GPUS,
    GROWN,
    JCT_REDUCTION,
    QUEUE_S,
    REDUCTION_BY_GPUS,
    SEEDS,
    TRACE,
    Pooled,
    less,
    less_by_seed,
    policies_of,
    spec_of,
)
from stretto.experiments.reproduction import Request
from stretto.experiments.spec import RunSpec
from stretto.sim import metrics
from stretto.sim.result import Result

OF_OPTIMUS = (
    Switch("Optimus decides every 300 s", {"policy.round_s": "300"}, only="optimus"),
    Switch(
        "Optimus is told what is left, and speeds",
        {"policy.remaining": "oracle", "policy.speeds": "table"},
        only="optimus",
    ),
)
USUAL = Switch("every job has its model's usual batch", made=TRACE)
OF_ONES = (
    Switch(
        "long jobs of ONES shrink whether any waits or not", {"policy.always_scale_down": "true"}, only="ones"
    ),
    Switch(
        "jobs of ONES start at their model's smallest batch", {"policy.starts_from": "model"}, only="ones"
    ),
    Switch("ONES evolves one generation a decision", {"policy.generations": "1"}, only="ones"),
    Switch("a change of size costs ONES a restart", {"sim.resize_s": "20"}, only="ones"),
)


def figure15(request: Request) -> Series:
    """Completion, execution and queuing times on 64 GPUs."""
    return _figure15(request, TRACE, (*OF_OPTIMUS, *OF_ONES[:2]))


def figure15_grown(request: Request) -> Series:
    """The same with batches that grow with the GPUs asked for."""
    return _figure15(request, GROWN, (USUAL, *OF_OPTIMUS))


def _figure15(request: Request, trace: str, switches: Sequence[Switch]) -> Series:
    figures = (
        *(
            Figure(f"ones less than {policy}", "avg_jct_reduction", JCT_REDUCTION[policy])
            for policy in ("tiresias", "optimus", "drl")
        ),
        Figure("ones", "avg_queue_s", QUEUE_S["ones"]),
        Figure("optimus", "avg_execution_s", AVG_JCT_S / (1 - JCT_REDUCTION["optimus"]) - QUEUE_S["optimus"]),
        Figure("drl", "avg_execution_s", AVG_JCT_S / (1 - JCT_REDUCTION["drl"]) - QUEUE_S["drl"]),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        runs = _pooled(results)
        return [
            *(_reduction(runs, policy) for policy in ("tiresias", "optimus", "drl")),
            Value(metrics.mean(runs["ones"].queue_s)),
            *(Value(metrics.mean(runs[policy].execution_s)) for policy in ("optimus", "drl")),
        ]

    return Series(figures, tuple(switched_runs(request, _specs(request, (64,), 3, trace), switches, measure)))


def figure17(request: Request) -> Series:
    """Mean completion times on the smallest and the largest cluster, with an hour of arrivals."""
    switches = (
        *OF_OPTIMUS,
        *OF_ONES,
        Switch("owners' batches grow with the GPUs that they ask for", made=GROWN),
        Switch("three hours of arrivals", trace={"hours": "3"}),
    )
    return _figure17(request, TRACE, switches)


def figure17_grown(request: Request) -> Series:
    """The same with batches that grow with the GPUs asked for."""
    return _figure17(request, GROWN, (USUAL, *OF_OPTIMUS))


def _figure17(request: Request, trace: str, switches: Sequence[Switch]) -> Series:
    sizes = (min(GPUS), max(GPUS))
    pairs = [(gpus, policy) for gpus in sizes for policy in ("tiresias", "optimus", "drl")]
    figures = tuple(
        Figure(f"{gpus} GPUs: ones less than {policy}", "avg_jct_reduction", REDUCTION_BY_GPUS[gpus][policy])
        for gpus, policy in pairs
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        each = len(results) // len(sizes)
        by_size = {
            gpus: _pooled(results[place * each : (place + 1) * each]) for place, gpus in enumerate(sizes)
        }
        return [_reduction(by_size[gpus], policy) for gpus, policy in pairs]

    return Series(figures, tuple(switched_runs(request, _specs(request, sizes, 1, trace), switches, measure)))


def _specs(request: Request, sizes: Sequence[int], hours: int, trace: str) -> list[RunSpec]:
    return [
        spec_of(request, gpus, hours, trace, policy, seed)
        for gpus in sizes
        for policy in policies_of()
        for seed in SEEDS
    ]


def _pooled(results: Sequence[Result]) -> dict[str, Pooled]:
    """By policy, of one size."""
    each = len(SEEDS)
    return {
        policy: Pooled(tuple(results[place * each : (place + 1) * each]))
        for place, policy in enumerate(policies_of())
    }


def _reduction(runs: dict[str, Pooled], policy: str) -> Value:
    ours, theirs = runs["ones"], runs[policy]
    return Value(less(ours.jct_s, theirs.jct_s), value_of(less_by_seed(ours, theirs)).half)


AS_USUAL = Training()


@dataclass(frozen=True)
class Growth:
    """How batches grow, and how trainings go on."""

    epochs: int = THIRD  # before the first growth, and between two
    gradually: tuple[int, ...] = FACTORS["gradually"]  # of the batch
    training: Training = AS_USUAL


GROWTHS: Mapping[str, Growth] = {
    NOTHING: Growth(),
    "doubled four times": Growth(gradually=(1, 2, 4, 8, 16)),
    "the learning rate grows by the square root of the batch": Growth(training=Training(power=0.5)),
    "half the learning rate": Growth(training=Training(rate=RATE / 2)),
    "no momentum": Growth(training=Training(momentum=0.0)),
    "batches grow after half as many epochs": Growth(epochs=THIRD // 2),
    "batches grow after twice as many epochs": Growth(epochs=2 * THIRD),
    "a wider network": Growth(training=Training(hidden=128)),
}


def figure13(request: Request) -> Series:
    """The highest loss after a batch grew over that before, gradually and at once."""
    seeds = range(seeds_of(request))
    rows = [
        Switched(words, "", tuple(_rises(growth, plan, seeds) for plan in ("gradually", "at once")))
        for words, growth in GROWTHS.items()
    ]
    figures = (
        Figure("gradually, highest after it grew / before", "loss", 1.0, "at most"),
        Figure("at once, highest after it grew / before", "loss", 1.0, "at least"),
    )
    return Series(figures, tuple(rows))


def _rises(growth: Growth, plan: str, seeds: range) -> Value:
    """The highest loss of an epoch after the first growth, over that before it."""
    stages = growth.gradually if plan == "gradually" else (1, *(16,) * (len(growth.gradually) - 1))
    never = [_trained(growth, (1,), seed).loss[-1] for seed in seeds]
    highest = [max(_trained(growth, stages, seed).loss[growth.epochs :]) for seed in seeds]
    return value_of([each / mean(never) for each in highest])


@cache
def _trained(growth: Growth, stages: tuple[int, ...], seed: int) -> Trained:
    sizes = [INITIAL * factor for factor in stages for _ in range(growth.epochs)]
    return train(seed, sizes, growth.training)
