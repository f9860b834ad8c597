"""`stretto compare`: several policies on the same workload, as a table and a page."""

import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_report
from stretto.whole_files import write_whole


def compare(
    cluster: options.Cluster,
    trace: Annotated[
        list[str], typer.Option("--trace", "-t", help="A trace, as in simulate; may be given several times.")
    ],
    policies: Annotated[str, typer.Option(help="Policies by name, separated by commas.")],
    out: Annotated[Path, typer.Option(help="The directory for the report and the figures.")],
    profiles: options.Profiles = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 1,
    seed: options.Seed = 0,
    workers: options.Workers = 0,
    ray: Annotated[
        str, typer.Option(help="Simulate on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")
    ] = "",
    settings: options.Set = [],  # noqa: B006  (typer wants a plain default)
    constraints: options.Constraints = "",
    skip_bad: options.SkipBad = False,
    fairness: options.Fairness = False,
    no_bounds: options.NoBounds = False,
    figures: options.Figures = None,
    as_json: options.Json = False,
) -> None:
    """Run several policies side by side; print a table and write one self-contained HTML report.

    A setting of `policy` or `place` goes to those of the policies that have it.
    """
    from stretto.errors import InputError
    from stretto.experiments.bounds import with_bounds
    from stretto.experiments.comparison import specs_of
    from stretto.experiments.figure_export import write_comparison_figures
    from stretto.experiments.json_text import json_text
    from stretto.experiments.log import check_writable
    from stretto.experiments.present import comparison
    from stretto.experiments.spec import parse_settings
    from stretto.experiments.sweep import run_all
    from stretto.report import comparison_table, write_report

    check_writable(out)
    if figures is not None:
        check_writable(figures, "--figures")
    connect = to_ray(ray) if ray else None
    specs = specs_of(
        [name.strip() for name in policies.split(",") if name.strip()],
        trace,
        range(seed, seed + seeds),
        parse_settings(settings),
        cluster=cluster,
        profiles=profiles,
        skip_bad=skip_bad,
        fairness=fairness,
        constraints=constraints,
    )
    results = run_all(specs, workers, show=sys.stderr.isatty(), ray=connect)
    if not no_bounds:
        results = with_bounds(results, specs)
    summaries = [result.summary() for result in results]
    content = comparison(
        title=f"{', '.join(dict.fromkeys(result.policy for result in results))} on "
        f"{', '.join(dict.fromkeys(result.trace for result in results))}",
        results=results,
        command=shlex.join(["stretto", *sys.argv[1:]]),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    report = out / "report.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_report(content, report)
        write_whole(out / "runs.json", json_text({"runs": summaries}) + "\n")
    except OSError as wrong:
        raise InputError(f"--out {out}: cannot be written: {wrong.strerror}") from None
    if figures is not None and (no_png := write_comparison_figures(content, results, figures)):
        say(no_png)
    for skipped in dict.fromkeys(
        f"{result.trace}: skipped {line}" for result in results for line in result.skipped
    ):
        say(skipped)
    if as_json:
        written = {} if figures is None else {"figures": str(figures)}
        show_json({"runs": summaries, "report": str(report), **written})
        return
    show_report(comparison_table(content))
    say(f"report: {report}")
    if figures is not None:
        say(f"figures: {figures}")


def to_ray(address: str) -> Callable[[], object]:
    """Connects this process to a Ray cluster when it is called; raises InputError where there is none."""
    from stretto.backends.ray.connection import check_address, connect
    from stretto.errors import InputError

    if find_spec("ray") is None:
        raise InputError("--ray needs ray: install stretto[ray]")
    check_address(address, "--ray")
    return partial(connect, address, "stretto-compare", "--ray")
