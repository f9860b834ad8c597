"""`stretto bench`: how fast, and how near to the best, are solver and decisions here?"""

from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import show_json, show_table

app = typer.Typer(help="Measure the solver, or whole decisions.", no_args_is_help=True)


@app.command()
def solver(
    jobs: Annotated[int, typer.Option(min=1, help="Rows of the program.")],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of all types together.")],
    types: Annotated[int, typer.Option(min=1, help="GPU types.")] = 3,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Solve one program of a fixed seeded family, fast and exactly, side by side."""
    from stretto.experiments.bench import bench_solver

    figures = bench_solver(jobs, gpus, types, seed)
    if as_json:
        show_json(figures)
        return
    rows = [[name, _word(value)] for name, value in figures.items()]
    show_table(f"{jobs} jobs, {gpus} GPUs of {types} types", ["figure", "value"], rows)


@app.command()
def decide(
    cluster: options.Cluster,
    trace: options.Trace,
    policy: options.Policy = "sia",
    profiles: options.Profiles = "",
    seed: options.Seed = 0,
    settings: options.Set = [],  # noqa: B006  (typer wants a plain default)
    most: Annotated[int, typer.Option(min=1, help="Decisions to measure, from the first.")] = 500,
    as_json: options.Json = False,
) -> None:
    """Measure the steps of the decisions of a simulation, in milliseconds."""
    from stretto.experiments.bench import decision_times
    from stretto.experiments.spec import RunSpec, parse_settings

    spec = RunSpec(cluster, trace, policy, profiles, seed, parse_settings(settings))
    steps, decisions = decision_times(spec, most)
    if as_json:
        show_json({"policy": policy, "trace": trace, "cluster": cluster, "decisions": decisions, **steps})
        return
    header = ["step", "p50_ms", "p95_ms", "max_ms"]
    rows = [[step, *(f"{times[name]:.3f}" for name in header[1:])] for step, times in steps.items()]
    show_table(f"{decisions} decisions of {policy} on {cluster}", header, rows)


def _word(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
