"""`stretto reproduce`: a published table, made again."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

if TYPE_CHECKING:
    from stretto.experiments.reproduction import Reproduction


def reproduce(
    name: Annotated[str, typer.Argument(help="sia-table3, sia-table4, sia-fairness or sia-scaling.")],
    data: Annotated[str, typer.Option(help="The folder with the public data sets; else $STRETTO_DATA.")] = "",
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Run made data instead.")] = False,
    scale: Annotated[float, typer.Option(help="Share of the workloads to run, above 0, at most 1.")] = 1.0,
    workers: options.Workers = 0,
    as_json: options.Json = False,
) -> None:
    """Make a table of a paper again and print it beside the published figures."""
    from stretto.experiments.published import experiment_of
    from stretto.experiments.reproduction import Request, data_root
    from stretto.model import InputError

    experiment = experiment_of(name)
    if not 0 < scale <= 1:
        raise InputError(f"--scale must be above 0 and at most 1, got {scale:g}")
    if data and synthetic:
        raise InputError(f"expected --data or --synthetic, got both: --data {data}")
    root = None if synthetic else data_root(data, experiment.data)
    made = experiment.run(Request(root, scale, workers, sys.stderr.isatty()))
    if as_json:
        show_json(made.as_json())
        return
    _print(made)


def _print(made: "Reproduction") -> None:
    header = ["row", "metric", "paper", "ours", "ratio"]
    rows = [
        [one.row, one.metric, _number(one.paper), _number(one.ours), _number(one.ratio)] for one in made.rows
    ]
    show_table(f"{made.name}: {made.paper}", header, rows)
    for one in made.inputs:
        say(f"{'real' if one.real else 'SYNTHETIC'}: {one.what} ({one.note})")
    for note in made.notes:
        say(note)
    say(f"{made.wall_s:.0f} s")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
