"""From results to what a report shows."""

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from stretto import __version__
from stretto.experiments.all_tables import Table
from stretto.experiments.reproduction import Reproduction
from stretto.model import FloatArray, IntArray
from stretto.report import ClusterFacts, Comparison, Intervals, Note, RunSeries
from stretto.report.reproduction import Published, Reproduced, Source
from stretto.report.wording import duration, plural
from stretto.sim.result import Result


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
        policies=tuple(tally.shown),
    )


def reproduced_before(name: str, paper: str, table: Table) -> Reproduced:
    """What figures need of a table that an earlier command left as JSON."""
    return Reproduced(
        name=name,
        paper=paper,
        figures=tuple(Published(row.row, row.metric, row.paper, row.ours, row.bound) for row in table.rows),
        sources=tuple(Source(each["what"], each["real"], each["note"]) for each in table.inputs),
        notes=table.notes,
        made=f"{table.made_on}, commit {table.commit}" if table.commit else table.made_on,
        policies=tuple(table.shown),
    )


def _versions() -> dict[str, str]:
    return {"stretto": __version__} | {name: version(name) for name in ("numpy", "highspy")}


def run_series(result: Result) -> RunSeries:
    """One run as plain series."""
    history = result.history
    row, start_s, end_s, kind, gpus = history.columns()
    requests = result.requests
    jct_s = result.completed_s - requests.submitted_s
    # Not as sampled by decisions: where there is none after a job has begun, what it holds would be missing.
    types = len(result.cluster.types)
    busy_times_s, busy_gpus = steps(
        np.concatenate((start_s, end_s)), np.tile(kind, 2), np.concatenate((gpus, -gpus)), types
    )
    done = np.isfinite(result.completed_s)
    came_or_went_s = np.concatenate((requests.submitted_s, result.completed_s[done]))
    by_one = np.repeat((1, -1), (len(requests.jobs), int(done.sum())))
    active_times_s, active_jobs = steps(came_or_went_s, np.zeros(by_one.size, dtype=np.int64), by_one, 1)
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
        busy_times_s=busy_times_s,
        busy_gpus=busy_gpus,
        active_times_s=active_times_s,
        active_jobs=active_jobs[:, 0],
        intervals=Intervals(row, start_s, end_s, kind, gpus),
        decisions_ms=result.decision_ms,
        labels=tuple(models) if all(models) else None,
        fairness=result.fairness,
        lateness_s=late_s if with_deadline.any() else None,
        settings=result.settings,
        wall_s=result.wall_s,
        peak_rss_mb=result.peak_rss_mb,
    )


def steps(
    times_s: FloatArray, column: IntArray, change: IntArray, columns: int
) -> tuple[FloatArray, IntArray]:
    """(points,) times, ascending, and (points, columns) what stands in each from then on.

    times_s, column, change: (changes,) when what is in a column changes, and by how much.
    """
    at_s, point = np.unique(times_s, return_inverse=True)
    changes = np.zeros((at_s.size, columns), dtype=np.int64)
    np.add.at(changes, (point, column), change)
    return at_s, np.cumsum(changes, axis=0)


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
