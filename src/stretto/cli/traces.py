"""`stretto traces`: what arrives when, from files or made."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table
from stretto.traces import MADE, Workload, built_in_traces, make_workload, read_trace, write_trace

app = typer.Typer(help="List traces, look into one, convert or make one.", no_args_is_help=True)

Source = Annotated[str, typer.Argument(help="A trace file or a built-in name.")]
Target = Annotated[Path, typer.Argument(help="Where to write: .csv, .csv.gz or .parquet.")]


@app.command("list")
def list_traces(
    data: Annotated[str, typer.Option(help="The folder with public data sets; else $STRETTO_DATA.")] = "",
    as_json: options.Json = False,
) -> None:
    """List the workloads that can be made here, and the public ones that lie in the data folder."""
    found = built_in_traces(data or None)
    rows = [{"name": name, "about": about, "synthetic": name in MADE} for name, about in found.items()]
    if as_json:
        show_json({"traces": rows})
        return
    show_table("Traces", ["name", "about"], [[str(row["name"]), str(row["about"])] for row in rows])


@app.command()
def show(source: Source, skip_bad: options.SkipBad = False, as_json: options.Json = False) -> None:
    """Show how many jobs there are, when they come, and what they ask for."""
    facts = _facts(read_trace(source, skip_bad=skip_bad))
    if as_json:
        show_json(facts)
        return
    show_table(str(facts["name"]), ["figure", "value"], [[name, str(value)] for name, value in facts.items()])


@app.command()
def convert(source: Source, target: Target, skip_bad: options.SkipBad = False) -> None:
    """Write a trace of any known format in our own schema."""
    workload = read_trace(source, skip_bad=skip_bad)
    for skipped in workload.skipped:
        say(f"skipped {skipped}")
    write_trace(workload, target)
    say(f"{len(workload.jobs)} jobs written to {target}")


@app.command()
def synth(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(MADE)}.")],
    target: Target,
    jobs: Annotated[int | None, typer.Option(min=1, help="How many.")] = None,
    hours: Annotated[float | None, typer.Option(help="Over how long they arrive.")] = None,
    seed: options.Seed = 0,
) -> None:
    """Make a workload from published statistics and write it; it says that it is synthetic."""
    workload = make_workload(name, jobs=jobs, hours=hours, seed=seed)
    write_trace(workload, target)
    say(f"{len(workload.jobs)} synthetic jobs written to {target}: {workload.source}")


def _facts(workload: Workload) -> dict[str, Any]:
    submitted_s = np.array([job.submitted_s for job in workload.jobs])
    gpus = np.array([job.gpus for job in workload.jobs])
    duration_s = np.array([truth.duration_s for truth in workload.truths])
    recorded = duration_s[np.isfinite(duration_s)]
    models = sorted({job.model for job in workload.jobs if job.model})
    return {
        "name": workload.name,
        "source": workload.source,
        "synthetic": workload.synthetic,
        "jobs": len(workload.jobs),
        "skipped": len(workload.skipped),
        "hours": float(round((submitted_s.max() - submitted_s.min()) / 3600, 3)),
        "gpus_mean": float(round(gpus.mean(), 3)),
        "gpus_max": int(gpus.max()),
        "models": models,
        "duration_p50_s": float(np.median(recorded)) if len(recorded) else None,
        "duration_p95_s": float(np.percentile(recorded, 95)) if len(recorded) else None,
    }
