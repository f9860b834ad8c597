"""`stretto simulate`: one workload under one policy."""

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import console, job_bar, say, show_json
from stretto.experiments.log import LogWriter, decide_again
from stretto.experiments.present import run_series
from stretto.experiments.spec import RunSpec, parse_settings, run_spec
from stretto.model.errors import InputError
from stretto.report import run_summary


def simulate(
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
    if from_log is not None:
        _again(from_log, as_json)
        return
    if not cluster or not trace:
        raise InputError(
            f"--{'trace' if cluster else 'cluster'} is missing: expected a file or a built-in name"
        )
    spec = RunSpec(cluster, trace, policy, profiles, seed, parse_settings(settings), skip_bad, fairness)
    log = LogWriter(out, spec) if out is not None else None
    with job_bar(f"{policy} · {trace}") as progress:
        result = run_spec(spec, progress, log.record if log is not None else None)
    if log is not None:
        log.finish(result)
    for skipped in result.skipped:
        say(f"skipped {skipped}")
    if as_json:
        show_json(result.summary())
        return
    console().print(run_summary(run_series(result)))
    if out is not None:
        say(f"written to {out}")


def _again(directory: Path, as_json: bool) -> None:
    result, decisions, different = decide_again(directory)
    if as_json:
        show_json({**result.summary(), "decisions": decisions, "differences": len(different)})
    else:
        say(f"{decisions} decisions made again, {len(different)} differ")
        for line in different[:10]:
            say(line)
    if different:
        raise typer.Exit(1)
