"""Simulations of Lyra's evaluation: its clusters and schemes as runs, and what is reported of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.clusters import built_in_clusters, read_cluster_file
from stretto.clusters.demand import PERIOD_S, made_demand, read_demand
from stretto.clusters.files import write_cluster
from stretto.experiments.draws import seeds_of
from stretto.experiments.lenders import MADE
from stretto.experiments.reproduction import Request, data_set
from stretto.experiments.spec import RunSpec
from stretto.model import BoolArray, Cluster, FloatArray, floats
from stretto.sim import metrics
from stretto.sim.result import Result

CLUSTER = "lyra"
TRACE = "lyra"  # made, calibrated to row 1 of table 5
PERCENTILES_TRACE = "lyra-percentiles"  # made, calibrated to the percentiles of table 8, too
JOBS = 50_390  # section 7.1
SERIES = "demand_lyra_like_15d.csv"  # a public series bent to the range of Lyra's figure 1
REPEATS = 4  # of that series: two months, beyond the last completion of any scheme
LEAST_SERVERS = 55  # chosen: then at night enough are lent for the largest job of the trace, 256 GPUs
USUAL = {  # of every run
    "sim.restart_s": "63",  # a preempted job's overhead; section 7.5
    "sim.resize_s": "0",  # chosen: the paper counts overheads of preemption only
}
ROUND_S = "60"  # chosen, as Lyra's own: its job scheduler works in much smaller intervals than 300 s


@dataclass(frozen=True)
class Scheme:
    """How one part of the jobs is scheduled."""

    policy: str
    recipe: str = ""  # parameters of the recipe `lyra`
    rule: str = ""  # of reclaiming; "": nothing is lent
    settings: Mapping[str, str] = field(default_factory=dict)
    stand_ins: bool = (
        True  # a lent GPU is a third of what a job asks for; False: it counts whole, but is slow
    )
    share: float = 1.0  # of the servers and jobs, where all are too many
    before: str = ""  # a recipe that comes before that one
    trace: str = TRACE


def run_schemes(
    request: Request, schemes: Mapping[str, Sequence[Scheme]], seeds: Sequence[int] = ()
) -> list[dict[str, list[Result]]]:
    """For each seed of the made trace, the results of each scheme's parts, by name.

    seeds: none = as many as the scale leaves. All are simulated together, so that no core waits for the last
    one of a seed.
    """
    seeds = seeds or seeds_of(request)
    parts = [
        (draw, name, part)
        for draw in range(len(seeds))
        for name, several in schemes.items()
        for part in several
    ]
    drawn: list[dict[str, list[Result]]] = [{} for _ in seeds]
    with TemporaryDirectory(prefix="stretto-lyra-") as folder:
        specs = [spec_of(request, part, Path(folder), seeds[draw]) for draw, _, part in parts]
        for (draw, name, _), result in zip(parts, request.run(specs), strict=True):
            drawn[draw].setdefault(name, []).append(result)
    return drawn


def least_scale(scale: float) -> float:
    """The share of the cluster and of the trace that is run where this one is asked for."""
    return min(1.0, max(scale, LEAST_SERVERS / 443))


def spec_of(request: Request, scheme: Scheme, folder: Path, seed: int) -> RunSpec:
    """One simulation of a scheme; files that only it needs go to `folder`."""
    scale = least_scale(request.scale * scheme.share)
    settings = USUAL | dict(scheme.settings)
    if scheme.rule:
        settings |= {"lend.rule": scheme.rule, "lend.demand": _demand(request), "lend.repeat": str(REPEATS)}
    jobs = round(JOBS * scale)
    trace = scheme.trace if jobs == JOBS else f"{scheme.trace}:jobs={jobs}"
    recipe = "lyra" + (f":{scheme.recipe}" if scheme.recipe else "")
    cluster = _cluster(folder, scale, scheme.stand_ins)
    trace = "@".join(filter(None, (trace, scheme.before, recipe)))
    return RunSpec(cluster, trace, scheme.policy, settings=settings, seed=seed)


def _cluster(folder: Path, scale: float, stand_ins: bool) -> str:
    """The built-in cluster of that size, or else a file: runs that name a file of a moment are not kept."""
    if stand_ins:
        for name, built_in in built_in_clusters().items():
            if built_in.file == CLUSTER and built_in.times == scale:
                return name
    return _written(folder, scale, stand_ins)


def _written(folder: Path, scale: float, stand_ins: bool) -> str:
    """A file with a cluster of Lyra's proportions."""
    file = read_cluster_file(CLUSTER)
    nodes = file.cluster.nodes
    own, lent = ([node for node in nodes if bool(node.lender) is is_lent] for is_lent in (False, True))
    scaled = (*own[: round(scale * len(own))], *lent[: round(scale * len(lent))])
    types = file.cluster.types
    if not stand_ins:
        types = tuple(replace(gpu_type, stand_ins=1) for gpu_type in types)
    path = folder / f"lyra-{scale:g}{'' if stand_ins else '-whole'}.yaml"
    write_cluster(Cluster(path.stem, types, scaled, file.cluster.levels), path, file.lenders)
    return str(path)


def _demand(request: Request) -> str:
    return MADE if request.data is None else str(data_set(request.data, "inference", SERIES))


def _series(request: Request, seed: int) -> tuple[float, FloatArray]:
    """(period in s, share of the servers that inference uses), as the lenders of a run have it."""
    if request.data is None:
        return PERIOD_S, np.tile(made_demand(seed=seed), REPEATS)
    period_s, share = read_demand(data_set(request.data, "inference", SERIES))
    return period_s, np.tile(share, REPEATS)


def inference_share(request: Request, cluster: Cluster, to_s: float, seed: int = 0) -> float:
    """Mean share of the lent servers that inference uses itself, whole servers counted, up to a moment."""
    period_s, share = _series(request, seed)
    servers = sum(bool(node.lender) for node in cluster.nodes)
    needed = np.ceil(share * servers - 1e-9) / servers
    return metrics.usage(
        metrics.integral(floats(np.arange(len(share)) * period_s), floats(needed), 0.0, to_s), to_s
    )


def times(queue_s: FloatArray, jct_s: FloatArray) -> dict[str, float]:
    """Mean and percentiles of queuing and completion (s) over some jobs."""
    named = {"queue_s": queue_s, "jct_s": jct_s}
    return {f"avg_{name}": metrics.mean(values) for name, values in named.items()} | {
        f"p{percent}_{name}": metrics.percentile(values, percent)
        for name, values in named.items()
        for percent in (50, 75, 95, 99)
    }


def figures(request: Request, parts: Sequence[Result]) -> dict[str, float]:
    """What is reported of one scheme, over all jobs of its parts.

    Parts run side by side: the last one's capacity is that of all, its own GPUs included. Usage is over the
    time in which jobs are submitted. usage_training: GPU time held / of the scheduler's own nodes and those
    on loan. usage_overall: with what inference uses / of all nodes.
    """
    jct_s = np.concatenate([part.jct_s for part in parts])
    queue_s = np.concatenate([part.queue_s for part in parts])
    from_s = min(float(part.requests.submitted_s.min()) for part in parts)
    to_s = max(float(part.requests.submitted_s.max()) for part in parts)
    held_gpu_s = sum(_held_gpu_s(part, from_s, to_s) for part in parts)
    last = parts[-1]
    at_s, usable = zip(*last.history.capacity, strict=True)
    owned_gpus = np.array([int(by_type.sum()) for by_type in usable], dtype=np.float64)
    owned_gpu_s = metrics.integral(np.array(at_s), owned_gpus, from_s, to_s)
    lent_gpus = sum(node.gpus for node in last.cluster.nodes if node.lender)
    inference_gpu_s = lent_gpus * (to_s - from_s) * inference_share(request, last.cluster, to_s, last.seed)
    all_gpu_s = last.cluster.total_gpus * (to_s - from_s)
    lending = last.lending
    return {
        **times(queue_s, jct_s),
        "usage_training": metrics.usage(held_gpu_s, owned_gpu_s),
        "usage_overall": metrics.usage(held_gpu_s + inference_gpu_s, all_gpu_s),
        "preemption_ratio": metrics.preemption_ratio(
            sum(part.history.preemptions for part in parts), len(jct_s)
        ),
        "usage_on_loan": lending["usage_on_loan"],
        "loan_preemption_ratio": lending["loan_preemption_ratio"],
        "collateral_damage": lending["collateral_damage"],
        "wall_s": sum(part.wall_s for part in parts),
        "peak_rss_mb": max(part.peak_rss_mb for part in parts),
    }


def _held_gpu_s(result: Result, from_s: float, to_s: float) -> float:
    _, start_s, end_s, _, gpus = result.history.columns()
    inside_s = np.maximum(np.minimum(end_s, to_s) - np.maximum(start_s, from_s), 0.0)
    return float((inside_s * gpus).sum())


def ran_on_lent(result: Result) -> BoolArray:
    """(jobs that ended,) whether a job held GPUs of a lent type at any time."""
    row, _, _, kind, _ = result.history.columns()
    there = np.zeros(len(result.completed_s), dtype=np.bool_)
    there[row[np.isin(kind, _lent_types(result))]] = True
    return there[result.done]


def _lent_types(result: Result) -> list[int]:
    lent = [row for row, node in enumerate(result.cluster.nodes) if node.lender]
    return sorted({int(kind) for kind in result.cluster.kind[lent]})


def usage_on_loan(result: Result, from_s: float, to_s: float) -> float:
    """GPU time held of lent types / on loan, within [from_s, to_s]."""
    lent = _lent_types(result)
    _, start_s, end_s, kind, gpus = result.history.columns()
    inside_s = np.maximum(np.minimum(end_s, to_s) - np.maximum(start_s, from_s), 0.0)
    at_s, usable = zip(*result.history.capacity, strict=True)
    on_loan = np.array([by_type[lent].sum() for by_type in usable], dtype=np.float64)
    held_gpu_s = float((inside_s * gpus)[np.isin(kind, lent)].sum())
    return metrics.usage(held_gpu_s, metrics.integral(np.array(at_s), on_loan, from_s, to_s))


def overall_usage(request: Request, result: Result, from_s: float, to_s: float) -> float:
    """GPU time held, and used by inference on whole servers / of all nodes, within [from_s, to_s]."""
    cluster = result.cluster
    lent_gpus = sum(node.gpus for node in cluster.nodes if node.lender)
    until, before = (
        at_s * inference_share(request, cluster, at_s, result.seed) if at_s else 0.0
        for at_s in (to_s, from_s)
    )
    used_gpu_s = _held_gpu_s(result, from_s, to_s) + lent_gpus * (until - before)
    return metrics.usage(used_gpu_s, cluster.total_gpus * (to_s - from_s))
