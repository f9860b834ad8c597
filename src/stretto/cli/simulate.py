"""`stretto simulate`: one workload under one policy."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import job_bar, say, show_json, show_report


def simulate(
    context: typer.Context,
    cluster: options.Cluster = "",
    trace: options.Trace = "",
    policy: options.Policy = "sia",
    profiles: options.Profiles = "",
    seed: options.Seed = 0,
    settings: options.Set = [],  # noqa: B006  (typer wants a plain default)
    out: Annotated[Path | None, typer.Option(help="Write the summary, jobs and decisions here.")] = None,
    from_log: Annotated[
        Path | None, typer.Option(help="Decide again what a run written with --out decided, and compare.")
    ] = None,
    skip_bad: options.SkipBad = False,
    fairness: options.Fairness = False,
    as_json: options.Json = False,
) -> None:
    """Replay a trace on a cluster and print how the jobs fared."""
    from stretto.experiments.log import LogWriter
    from stretto.experiments.present import run_series
    from stretto.experiments.spec import RunSpec, parse_settings, run_spec
    from stretto.model import InputError
    from stretto.report import run_summary

    if from_log is not None:
        _refuse_beside_a_log(context)
        _again(from_log, as_json)
        return
    if not cluster or not trace:
        missing = "--trace" if cluster else "--cluster"
        raise InputError(f"missing option {missing}: expected a file or a built-in name")
    spec = RunSpec(cluster, trace, policy, profiles, seed, parse_settings(settings), skip_bad, fairness)
    with LogWriter(out, spec) if out is not None else nullcontext() as log:
        with job_bar(f"{policy} · {trace}") as progress:
            result = run_spec(spec, progress, log.record if log is not None else None)
        if log is not None:
            log.finish(result)
    for skipped in result.skipped:
        say(f"skipped {skipped}")
    if as_json:
        show_json(result.summary())
        return
    show_report(run_summary(run_series(result)))
    say(f"settings: {' '.join(f'{name}={value}' for name, value in result.settings.items())}")
    if out is not None:
        say(f"written to {out}")


def _refuse_beside_a_log(context: typer.Context) -> None:
    """A log says all about its run; another word about it would be ignored."""
    from stretto.model import InputError

    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in ("from_log", "as_json"):
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            raise InputError(f"--from-log takes its run from the log: expected no {option}, got {value}")


def _again(directory: Path, as_json: bool) -> None:
    from stretto.experiments.log import decide_again

    with job_bar(f"again · {directory}") as progress:
        result, decisions, different = decide_again(directory, progress)
    for line in different[:MOST_SHOWN]:
        say(line)
    if as_json:
        show_json({**result.summary(), "decisions": decisions, "differences": len(different)})
    else:
        print(f"{decisions} decisions made again, {len(different)} differ")
    if different:
        raise typer.Exit(1)


MOST_SHOWN = 10  # chosen: differing decisions to print; after the first, others often follow from it
