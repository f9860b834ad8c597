"""`stretto compare`: several policies on the same workload, as a table and a page."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import console, say, show_json
from stretto.experiments.present import comparison
from stretto.experiments.spec import RunSpec, parse_settings
from stretto.experiments.sweep import run_all
from stretto.model.errors import InputError
from stretto.report import comparison_table, write_report


def compare(
    cluster: options.Cluster,
    trace: Annotated[list[str], typer.Option("--trace", "-t", help="A trace; may be given several times.")],
    policies: Annotated[str, typer.Option(help="Policies by name, separated by commas.")],
    out: Annotated[Path, typer.Option(help="The directory for the report and the figures.")],
    profiles: options.Profiles = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 1,
    seed: options.Seed = 0,
    workers: Annotated[int, typer.Option(min=0, help="Simulations at once; 0: one a core.")] = 0,
    settings: options.Set = [],  # noqa: B006  (typer wants a plain default)
    skip_bad: options.SkipBad = False,
    fairness: options.Fairness = False,
    as_json: options.Json = False,
) -> None:
    """Run several policies side by side; print a table and write one self-contained HTML report."""
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names:
        raise InputError("--policies must name at least one policy, got none")
    chosen = parse_settings(settings)
    specs = [
        RunSpec(cluster, one, name, profiles, seed + shift, chosen, skip_bad, fairness)
        for name in names
        for one in trace
        for shift in range(seeds)
    ]
    results = run_all(specs, workers, show=sys.stderr.isatty())
    title = f"{', '.join(names)} on {', '.join(dict.fromkeys(result.trace for result in results))}"
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    content = comparison(title, results, "stretto " + " ".join(sys.argv[1:]), made)
    try:
        out.mkdir(parents=True, exist_ok=True)
        report = out / "report.html"
        write_report(content, report)
    except OSError as wrong:
        raise InputError(f"--out {out}: cannot be written: {wrong.strerror}") from None
    summaries = [result.summary() for result in results]
    for skipped in dict.fromkeys(line for result in results for line in result.skipped):
        say(f"skipped {skipped}")
    if as_json:
        show_json({"runs": summaries, "report": str(report)})
        return
    console().print(comparison_table(content))
    say(f"report: {report}")
