"""From results to what a report shows."""

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from stretto import __version__
from stretto.report import ClusterFacts, Comparison, Intervals, Note, RunSeries
from stretto.sim.result import Result

MOST_POINTS = 2_000  # chosen: more points of a series than a page can show are thinned out


def comparison(title: str, results: Sequence[Result], command: str, made: str) -> Comparison:
    """Everything that the report needs of some runs on one cluster."""
    cluster = results[0].cluster
    return Comparison(
        title=title,
        cluster=ClusterFacts(
            cluster.name, cluster.type_names, tuple(cluster.capacity.tolist()), len(cluster.nodes)
        ),
        runs=tuple(run_series(result) for result in results),
        notes=notes(results),
        command=command,
        versions={"stretto": __version__} | {name: version(name) for name in ("numpy", "highspy")},
        made=made,
    )


def run_series(result: Result) -> RunSeries:
    """One run as plain series."""
    history = result.history
    row, start_s, end_s, kind, gpus = history.columns()
    requests = result.requests
    jct_s = result.completed_s - requests.submitted_s
    times_s = np.array(history.sample_s)
    kept = np.unique(np.linspace(0, max(len(times_s) - 1, 0), MOST_POINTS).astype(np.int64))
    busy = np.array(history.busy).reshape(len(times_s), len(result.cluster.types))
    models = [job.model for job in requests.jobs]
    summary = result.summary()
    summary.pop("settings")
    with_deadline = np.isfinite(requests.deadline_s)
    late_s = np.where(
        with_deadline, np.nan_to_num(result.completed_s, nan=np.inf) - requests.deadline_s, np.nan
    )
    return RunSeries(
        policy=result.policy,
        trace=result.trace,
        seed=result.seed,
        cluster=result.cluster.name,
        synthetic=result.synthetic,
        summary=summary,
        jobs=tuple(job.id for job in requests.jobs),
        submitted_s=requests.submitted_s,
        jct_s=jct_s,
        queue_s=np.maximum(jct_s - result.executed_s, 0.0),
        busy_times_s=times_s[kept] if len(times_s) else times_s,
        busy_gpus=busy[kept] if len(times_s) else busy,
        active_times_s=times_s[kept] if len(times_s) else times_s,
        active_jobs=np.array(history.active)[kept] if len(times_s) else np.zeros(0),
        intervals=Intervals(row, start_s, end_s, kind, gpus),
        decisions_ms=result.decision_ms,
        labels=tuple(models) if all(models) else None,
        fairness=result.fairness,
        lateness_s=late_s if with_deadline.any() else None,
        settings=result.settings,
        wall_s=result.wall_s,
        peak_rss_mb=result.peak_rss_mb,
    )


def notes(results: Sequence[Result]) -> tuple[Note, ...]:
    """What the reader must know about these runs in particular."""
    fidelity = sorted({str(result.settings["sim.fidelity"]) for result in results})
    made = sorted({result.trace for result in results if result.synthetic})
    told = [
        Note(
            "Simulated",
            "No GPU was used. Jobs advance in a simulated cluster whose truth about every job is hidden from "
            "the policies; they see only what their papers assume.",
        ),
        Note("Fidelity", f"The clock, delays and physics follow: {', '.join(fidelity)}."),
        Note(
            "Decision times",
            "Wall-clock time of one whole decision (estimate, value, solve, place) where this was run, "
            "beside other simulations where several ran at once.",
        ),
    ]
    if made:
        told.append(Note("Synthetic", f"Made from published statistics, not recorded: {', '.join(made)}."))
    return tuple(told)
