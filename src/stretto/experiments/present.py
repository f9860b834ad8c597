"""From results to what a report shows."""

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from stretto import __version__
from stretto.experiments.reproduction import Reproduction
from stretto.report import ClusterFacts, Comparison, Intervals, Note, RunSeries
from stretto.report.reproduction import Published, Reproduced, Source
from stretto.report.wording import duration, plural
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
        versions=_versions(),
        made=made,
    )


def reproduced(made: Reproduction, command: str, made_at: str) -> Reproduced:
    """Everything that the page of a table made again needs; `made_at`: when, in words."""
    tally = made.tally
    took = f"made in {duration(made.wall_s)}"
    if tally.kept:
        took += f", {tally.kept} of {plural(tally.simulations, 'simulation')} from an earlier command"
    spent = (
        f"{plural(tally.simulations, 'simulation')}, {duration(tally.simulated_s)} one after the other. "
        "Each says what it took where and when it ran, beside others where several ran at once."
    )
    return Reproduced(
        name=made.name,
        paper=made.paper,
        figures=tuple(
            Published(figure.row, figure.metric, figure.paper, figure.ours, figure.bound)
            for figure in made.rows
        ),
        sources=tuple(Source(source.what, source.real, source.note) for source in made.inputs),
        notes=made.notes,
        facts=(made.name, plural(tally.simulations, "simulation"), took),
        method=(
            Note("Simulated", "No GPU was used. Jobs advance in a simulated cluster."),
            Note("Effort", spent),
        ),
        command=command,
        versions=_versions(),
        made=made_at,
    )


def _versions() -> dict[str, str]:
    return {"stretto": __version__} | {name: version(name) for name in ("numpy", "highspy")}


def run_series(result: Result) -> RunSeries:
    """One run as plain series."""
    history = result.history
    row, start_s, end_s, kind, gpus = history.columns()
    requests = result.requests
    jct_s = result.completed_s - requests.submitted_s
    times_s = np.array(history.sample_s)
    points = np.unique(np.linspace(0, max(len(times_s) - 1, 0), MOST_POINTS).astype(np.int64))
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
        busy_times_s=times_s[points] if len(times_s) else times_s,
        busy_gpus=busy[points] if len(times_s) else busy,
        active_times_s=times_s[points] if len(times_s) else times_s,
        active_jobs=np.array(history.active)[points] if len(times_s) else np.zeros(0),
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
    remarks = [
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
        remarks.append(Note("Synthetic", f"Made from published statistics, not recorded: {', '.join(made)}."))
    return tuple(remarks)
