"""Makes workloads from published statistics. Each says that it is made, from what, and with which seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from stretto.model import Cluster, InputError
from stretto.suggestions import did_you_mean
from stretto.traces.arrivals import PATTERNS
from stretto.traces.helios_made import EVEN_SAMPLE, HOURS, SAMPLE, SATURN, SINGLE_SAMPLE, VENUS, helios
from stretto.traces.lyra import lyra, percentiles, testbed
from stretto.traces.makers import Pair, demonstration, recorded, trainings
from stretto.traces.making import Making
from stretto.traces.mixed_workload import mixed
from stretto.traces.ones import ones, ones_usual_batch
from stretto.traces.workload import Workload


@dataclass(frozen=True)
class MadeKind:
    """A kind of made workload: how it is made, and with which parameters unless others are given."""

    make: Callable[[Making], Sequence[Pair]]
    usual: Making
    about: str  # one line for people, and for the source of the workload


MADE: Mapping[str, MadeKind] = {
    "synthetic-philly": MadeKind(
        recorded,
        Making(hours=72.0, arrivals="philly"),
        "rigid jobs with durations, after statistics of Philly (Jeon et al., ATC 2019)",
    ),
    "synthetic-sia": MadeKind(
        trainings,
        Making(hours=8.0, arrivals="sia"),
        "trainings of catalogue models, sampled as Sia (SOSP 2023) does, size classes of Philly",
    ),
    "lyra": MadeKind(
        lyra,
        Making(jobs=50_390, hours=360.0, arrivals="lyra"),
        "rigid jobs with durations, calibrated to what Lyra (EuroSys 2023) publishes of its private trace",
    ),
    "lyra-percentiles": MadeKind(
        percentiles,
        Making(jobs=50_390, hours=360.0, arrivals="lyra"),
        "the same number of jobs, calibrated to the percentiles of Lyra's table 8 and to its table 5, row 1",
    ),
    "lyra-testbed": MadeKind(
        testbed,
        Making(jobs=180, hours=8.0, arrivals="lyra"),
        "the small trace of Lyra's testbed: 2 minutes to 2 hours, up to 16 GPUs, 10 of 180 of elastic models",
    ),
    "ones": MadeKind(
        ones,
        Making(hours=3.0, arrivals="ones"),
        "trainings of the fifty kinds of task of ONES (SC 2021), small data sets, 1 to 8 GPUs asked for",
    ),
    "ones-usual-batch": MadeKind(
        ones_usual_batch,
        Making(hours=3.0, arrivals="ones-usual-batch"),
        "trainings of the kinds of ones, each with its model's usual batch, calibrated to Tiresias's times",
    ),
    **{
        f"helios-{mix}": MadeKind(
            helios(mix),
            Making(jobs=VENUS.jobs, hours=HOURS, arrivals="venus"),
            f"rigid jobs with durations and {about}, calibrated to Venus of Helios (SC 2021)",
        )
        for mix, about in (
            ("slo", "strict deadlines"),
            ("mix1", "strict deadlines or none"),
            ("mix2", "soft, strict or no deadlines"),
        )
    },
    "helios-saturn": MadeKind(
        helios("none", SATURN),
        Making(jobs=SATURN.jobs, hours=HOURS, arrivals="venus"),
        "rigid jobs with durations and no deadlines, calibrated to Saturn of Helios (SC 2021)",
    ),
    "helios-testbed": MadeKind(
        helios("mix2", SAMPLE),
        Making(jobs=360, hours=8.0, arrivals="venus"),
        "rigid jobs of up to three hours and 15 GPUs, as UniSched (TPDS 2024) samples Venus for its testbed",
    ),
    "helios-testbed-even": MadeKind(
        helios("mix2", EVEN_SAMPLE),
        Making(jobs=360, hours=8.0, arrivals="venus"),
        "the same with run times that are equally likely from 5 minutes to three hours",
    ),
    "helios-testbed-single": MadeKind(
        helios("mix2", SINGLE_SAMPLE),
        Making(jobs=360, hours=8.0, arrivals="venus"),
        "the same with one GPU for each job",
    ),
    "mixed": MadeKind(
        mixed,
        Making(jobs=160, hours=8.0, arrivals="sia", models="all"),
        "sessions, deadlines, elastic, rigid, hybrid-parallel and urgent trainings of two teams, all at once",
    ),
    "demo": MadeKind(
        demonstration,
        Making(jobs=40, hours=2.0, arrivals="sia", models="all"),
        "two hours of trainings, deadlines and interactive sessions for 64 mixed GPUs",
    ),
}


def make_workload(
    name: str,
    jobs: int | None = None,
    hours: float | None = None,
    seed: int | None = None,
    cluster: Cluster | None = None,
    **more: Any,
) -> Workload:
    """A made workload. The same arguments give the same workload.

    name: one of MADE, perhaps with parameters, as in `synthetic-sia:jobs=80,seed=3`; arguments come before
    those. more: the other fields of `Making`. Raises InputError for unknown names and wrong values.
    """
    kind_name, _, text = name.partition(":")
    kind = MADE.get(kind_name)
    if kind is None:
        raise InputError(f"unknown made workload {kind_name!r}, {did_you_mean(kind_name, MADE)}")
    arguments = {"jobs": jobs, "hours": hours, "seed": seed, "cluster": cluster, **more}
    chosen = _parameters(kind_name, text) | {
        key: value for key, value in arguments.items() if value is not None
    }
    unknown = [key for key in chosen if key not in _FIELDS]
    if unknown:
        raise InputError(
            f"{kind_name}: unknown parameter {unknown[0]!r}, {did_you_mean(unknown[0], _FIELDS)}"
        )
    if "hours" in chosen and "jobs" not in chosen:
        chosen["jobs"] = 0  # as many as those hours bring
    making = replace(kind.usual, **chosen)
    pairs = sorted(kind.make(making), key=lambda pair: (pair[0].submitted_s, pair[0].id))
    return Workload(
        name=_name(kind_name, making),
        jobs=tuple(job for job, _ in pairs),
        truths=tuple(truth for _, truth in pairs),
        source=_source(kind, making),
        synthetic=True,
    )


def is_made(name: str) -> bool:
    """Whether a name, with or without parameters, is that of a made workload."""
    return name.partition(":")[0] in MADE


_FIELDS = {one.name: one.type for one in fields(Making)}
_NUMBERS: Mapping[str, Callable[[str], object]] = {
    "jobs": int,
    "seed": int,
    "hours": float,
    "rigid": float,
    "strong_scaling": float,
}


def _parameters(kind_name: str, text: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for part in text.split(",") if text else []:
        key, equals, value = part.partition("=")
        if not equals or key in parameters:
            raise InputError(f"{kind_name}: parameters must be key=value, each once, got {part!r}")
        if key not in _FIELDS or key == "cluster":
            names = [name for name in _FIELDS if name != "cluster"]
            raise InputError(f"{kind_name}: unknown parameter {key!r}, {did_you_mean(key, names)}")
        try:
            parameters[key] = _NUMBERS.get(key, str)(value)
        except ValueError:
            raise InputError(f"{kind_name}: {key} must be a number, got {value!r}") from None
    return parameters


def _name(kind_name: str, making: Making) -> str:
    """The kind, with what differs from the usual: as a name, it makes the same workload again."""
    usual = MADE[kind_name].usual
    differs = [
        f"{entry.name}={getattr(making, entry.name)}"
        for entry in fields(Making)
        if entry.name != "cluster" and getattr(making, entry.name) != getattr(usual, entry.name)
    ]
    return kind_name + (":" + ",".join(differs) if differs else "")


def _source(kind: MadeKind, making: Making) -> str:
    cluster = f", to fit {making.cluster.name}" if making.cluster else ""
    return (
        f"made, not recorded: {kind.about}; {making.count} jobs in {making.hours:g} h, seed {making.seed}"
        f"{cluster}; arrivals after {PATTERNS[making.arrivals].source}"
    )
