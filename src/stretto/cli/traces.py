"""`stretto traces`: what arrives when, from files or made."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

if TYPE_CHECKING:
    from stretto.traces import Workload

app = typer.Typer(help="List, show, convert or make traces.", no_args_is_help=True)

Source = Annotated[
    str, typer.Argument(help="A trace file or a built-in name; @RECIPE:key=value,… may follow.")
]
Target = Annotated[Path, typer.Argument(help="Where to write: .csv, .csv.gz or .parquet.")]


@app.command("list")
def list_traces(
    data: Annotated[str, typer.Option(help="The folder with public data sets; else $STRETTO_DATA.")] = "",
    as_json: options.Json = False,
) -> None:
    """List the workloads that can be made here, and the public ones that lie in the data folder."""
    from stretto.errors import InputError
    from stretto.traces import MADE, built_in_traces

    if data and not Path(data).is_dir():
        raise InputError(f"--data {data}: expected a folder with public data sets, there is none")
    abouts = built_in_traces(data or None)
    rows = [{"name": name, "about": about, "synthetic": name in MADE} for name, about in abouts.items()]
    if as_json:
        show_json({"traces": rows})
        return
    show_table("Traces", ["name", "about"], [[str(row["name"]), str(row["about"])] for row in rows])


@app.command()
def recipes(as_json: options.Json = False) -> None:
    """List the recipes that may follow the name of a trace, and their parameters."""
    from dataclasses import MISSING, fields

    from stretto.traces.recipes import RECIPES

    parameters = {
        name: {
            entry.name: str(entry.default)
            for entry in fields(recipe.parameters)
            if entry.default is not MISSING
        }
        for name, recipe in RECIPES.items()
    }
    if as_json:
        rows = [
            {"name": name, "about": recipe.about, "parameters": parameters[name]}
            for name, recipe in RECIPES.items()
        ]
        show_json({"recipes": rows})
        return
    words = {name: ",".join(f"{key}={value}" for key, value in parameters[name].items()) for name in RECIPES}
    table = [[name, recipe.about, words[name]] for name, recipe in RECIPES.items()]
    show_table("Recipes", ["name", "about", "parameters"], table)


def _read(source: str, skip_bad: bool) -> "Workload":
    from stretto.traces import read_trace
    from stretto.traces.recipes import read_prepared

    return read_prepared(source, lambda base: read_trace(base, skip_bad=skip_bad))


@app.command()
def show(source: Source, skip_bad: options.SkipBad = False, as_json: options.Json = False) -> None:
    """Show how many jobs there are, when they come, and what they ask for."""
    workload = _read(source, skip_bad)
    _say_skipped(workload)
    facts = _facts(workload)
    if as_json:
        show_json(facts)
        return
    show_table(workload.name, ["figure", "value"], [[name, _word(value)] for name, value in facts.items()])


@app.command()
def convert(
    source: Source, target: Target, skip_bad: options.SkipBad = False, as_json: options.Json = False
) -> None:
    """Write a trace of any known format in our own schema."""
    from stretto.traces import write_trace

    workload = _read(source, skip_bad)
    _say_skipped(workload)
    write_trace(workload, target)
    _say_written(workload, target, as_json)


@app.command()
def synth(
    name: Annotated[str, typer.Argument(help="A made workload, see `stretto traces list`.")],
    target: Target,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of jobs.")] = None,
    hours: Annotated[float | None, typer.Option(help="Hours over which they arrive.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything that is drawn.")] = None,
    as_json: options.Json = False,
) -> None:
    """Make a workload from published statistics and write it; it says that it is synthetic."""
    from stretto.traces import make_workload, write_trace

    workload = make_workload(name, jobs=jobs, hours=hours, seed=seed)
    write_trace(workload, target)
    _say_written(workload, target, as_json)


def _say_skipped(workload: "Workload") -> None:
    for skipped in workload.skipped:
        say(f"skipped {skipped}")


def _say_written(workload: "Workload", target: Path, as_json: bool) -> None:
    if as_json:
        about = {"source": workload.source, "synthetic": workload.synthetic}
        counts = {"jobs": len(workload.jobs), "skipped": len(workload.skipped)}
        show_json({"name": workload.name, **about, **counts, "written": str(target)})
        return
    made = f", synthetic: {workload.source}" if workload.synthetic else ""
    say(f"{len(workload.jobs)} jobs written to {target}{made}")


def _facts(workload: "Workload") -> dict[str, Any]:
    import numpy as np

    submitted_s = np.array([job.submitted_s for job in workload.jobs])
    gpus = np.array([job.gpus for job in workload.jobs])
    duration_s = np.array([truth.duration_s for truth in workload.truths])
    recorded = duration_s[np.isfinite(duration_s)]
    return {
        "name": workload.name,
        "source": workload.source,
        "synthetic": workload.synthetic,
        "jobs": len(workload.jobs),
        "skipped": len(workload.skipped),
        "hours": float(round((submitted_s.max() - submitted_s.min()) / 3600, 3)),
        "gpus_mean": float(round(gpus.mean(), 3)),
        "gpus_max": int(gpus.max()),
        "models": sorted({job.model for job in workload.jobs if job.model}),
        "duration_p50_s": float(np.median(recorded)) if len(recorded) else None,
        "duration_p95_s": float(np.percentile(recorded, 95)) if len(recorded) else None,
    }


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
