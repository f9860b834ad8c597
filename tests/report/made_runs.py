"""Made comparisons for tests of the report: plausible shapes, no simulator behind them."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from stretto.model.arrays import FloatArray, IntArray, floats, ints
from stretto.report.content import ClusterFacts, Comparison, Intervals, Note, RunSeries

HETERO_64 = ClusterFacts("sia-hetero-64", ("t4", "a100", "rtx2080ti"), (24, 16, 24), nodes=11)
SPEEDS = {"stretto": 1.0, "sia": 1.45, "pollux": 1.9, "gavel": 2.5, "fifo": 3.6}  # run time, as a multiple
ROUND_S = 60.0
CLASSES = ("resnet18 (S)", "bert (M)", "deepspeech2 (M)", "yolov3 (L)", "resnet50 (XL)")


def a_comparison(
    policies: Sequence[str] = tuple(SPEEDS),
    traces: Sequence[str] = ("philly-1",),
    seeds: Sequence[int] = (0,),
    jobs: int = 160,
    **changes: object,
) -> Comparison:
    """A comparison of made runs; `changes` replace fields of `Comparison`."""
    runs = tuple(
        a_run(policy, trace, seed, jobs, slowness=SPEEDS.get(policy, 1.3 + 0.2 * index))
        for trace in traces
        for seed in seeds
        for index, policy in enumerate(policies)
    )
    fields: dict[str, object] = {
        "title": "Five policies on a made workload",
        "cluster": HETERO_64,
        "runs": runs,
        "notes": (Note("Fidelity", "The clock and the delays of the artifact."),),
        "command": f"stretto compare --cluster sia-hetero-64 --policies {','.join(policies)} --out report",
        "versions": {"stretto": "0.1.0", "numpy": np.__version__},
        "made": "1 March 2026, 09:00 UTC",
    }
    return Comparison(**{**fields, **changes})  # type: ignore[arg-type]


def a_run(
    policy: str, trace: str = "philly-1", seed: int = 0, jobs: int = 160, slowness: float = 1.5
) -> RunSeries:
    """One policy's run; the workload depends on trace and seed alone, so that jobs pair up."""
    work = np.random.default_rng([seed, *trace.encode()])
    chance = np.random.default_rng([seed, *trace.encode(), *policy.encode()])
    submitted_s = np.sort(work.uniform(0, 8 * 3600, jobs))
    size = work.choice(5, jobs, p=[0.45, 0.2, 0.15, 0.13, 0.07])
    alone_s = np.array([300.0, 1_500.0, 3_000.0, 9_000.0, 24_000.0])[size] * work.lognormal(0, 0.5, jobs)
    run_s = alone_s * (0.4 + 0.6 * slowness**0.5) * chance.lognormal(0, 0.12, jobs)
    waits = chance.random(jobs) < 0.25 * slowness
    queue_s = np.where(
        waits, chance.lognormal(np.log(140 * slowness**2.2), 1.1, jobs), chance.uniform(0, 20, jobs)
    )
    jct_s = queue_s + run_s
    intervals = _intervals(chance, submitted_s, queue_s, jct_s, size)
    rounds_s = np.arange(0.0, float((submitted_s + jct_s).max()) + ROUND_S, ROUND_S)
    busy = _busy(intervals, rounds_s)
    active = np.array([((submitted_s <= t) & (submitted_s + jct_s > t)).sum() for t in rounds_s])
    fairness = jct_s / (alone_s * 1.4)
    lateness_s = np.where(work.random(jobs) < 0.4, jct_s - alone_s * 2.2, np.nan)
    decisions_ms = chance.lognormal(np.log(4 * (1 + len(policy))), 0.6, rounds_s.size)
    return RunSeries(
        policy=policy,
        trace=trace,
        seed=seed,
        cluster="sia-hetero-64",
        synthetic=True,
        summary=_summary(
            jct_s, queue_s, submitted_s, fairness, lateness_s, intervals, busy, active, decisions_ms
        ),
        jobs=tuple(f"job-{index:04d}" for index in range(jobs)),
        submitted_s=submitted_s,
        jct_s=jct_s,
        queue_s=queue_s,
        busy_times_s=rounds_s,
        busy_gpus=busy,
        active_times_s=rounds_s,
        active_jobs=active,
        intervals=intervals,
        decisions_ms=decisions_ms,
        labels=tuple(CLASSES[index] for index in size),
        fairness=fairness,
        lateness_s=lateness_s,
        settings={
            "sim.fidelity": "artifact",
            "sim.round_s": ROUND_S,
            "policy.name": policy,
            "policy.p": -0.5,
        },
        wall_s=2.1 * slowness,
        peak_rss_mb=180.0,
    )


def _intervals(
    chance: np.random.Generator,
    submitted_s: FloatArray,
    queue_s: FloatArray,
    jct_s: FloatArray,
    size: IntArray,
) -> Intervals:
    """Each job runs from its first start in a few stretches of changing size."""
    rows: list[tuple[int, float, float, int, int]] = []
    for job, (begin, queue, jct) in enumerate(zip(submitted_s, queue_s, jct_s, strict=True)):
        cuts = np.sort(
            chance.uniform(begin + queue, begin + jct, int(chance.integers(0, 3 + 2 * int(size[job]))))
        )
        edges = np.array([begin + queue, *cuts, begin + jct])
        kind = int(chance.choice(3, p=[0.3, 0.4, 0.3]))
        for start, end in pairwise(edges.tolist()):
            kind = kind if chance.random() < 0.8 else int(chance.integers(3))
            rows.append((job, start, end, kind, int(2 ** chance.integers(0, 2 + size[job] // 2))))
    job_of, start_s, end_s, types, gpus = zip(*rows, strict=True)
    return Intervals(ints(job_of), floats(start_s), floats(end_s), ints(types), ints(gpus))


def _busy(intervals: Intervals, times_s: FloatArray) -> FloatArray:
    """(times, types) GPUs held, cut off at what the cluster has."""
    columns = []
    for kind, total in enumerate(HETERO_64.gpus):
        of_type = intervals.gpu_type == kind
        held = (intervals.start_s[of_type] <= times_s[:, None]) & (
            intervals.end_s[of_type] > times_s[:, None]
        )
        columns.append(np.minimum(held @ intervals.gpus[of_type], total))
    return np.column_stack(columns).astype(np.float64)


def _summary(
    jct_s: FloatArray,
    queue_s: FloatArray,
    submitted_s: FloatArray,
    fairness: FloatArray,
    lateness_s: FloatArray,
    intervals: Intervals,
    busy: FloatArray,
    active: IntArray,
    decisions_ms: FloatArray,
) -> dict[str, float | int | str | None]:
    """The fields of a summary, computed from the made series."""
    held_h = float(busy.sum()) * ROUND_S / 3_600
    with_deadline = np.isfinite(lateness_s)
    return {
        "completed": jct_s.size,
        "avg_jct_s": float(jct_s.mean()),
        **{f"p{part}_jct_s": float(np.percentile(jct_s, part)) for part in (50, 95, 99)},
        "p99_index_jct_s": float(np.sort(jct_s)[int(0.99 * jct_s.size)]),
        "makespan_s": float((submitted_s + jct_s).max() - submitted_s.min()),
        "avg_queue_s": float(queue_s.mean()),
        "p95_queue_s": float(np.percentile(queue_s, 95)),
        "interactive_avg_queue_s": None,
        "gpu_hours_per_job": held_h / jct_s.size,
        "restarts_per_job": intervals.job.size / jct_s.size - 1,
        "deadline_miss_rate": float((lateness_s[with_deadline] > 0).mean()) if with_deadline.any() else None,
        "avg_ftf": float(fairness.mean()),
        "worst_ftf": float(fairness.max()),
        "unfair_fraction": float((fairness > 1).mean()),
        "avg_contention": float(active.mean()),
        "max_contention": int(active.max()),
        "utilization": float(busy.sum(axis=1).mean() / 64),
        "rounds": decisions_ms.size,
        "policy_ms_p50": float(np.median(decisions_ms)),
        "policy_ms_p95": float(np.percentile(decisions_ms, 95)),
        "wall_s": 2.0,
        "peak_rss_mb": 180.0,
    }
