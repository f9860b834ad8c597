"""`stretto reproduce`: a published table, made again."""

import sys
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table
from stretto.experiments import sia
from stretto.experiments.reproduction import Reproduction, Request, data_root, run_experiment
from stretto.model.errors import InputError

EXPERIMENTS = {
    "sia-table3": ("Sia (SOSP 2023), table 3", sia.table3),
    "sia-table4": ("Sia (SOSP 2023), table 4", sia.table4),
    "sia-fairness": ("Sia (SOSP 2023), section 5.5", sia.fairness),
    "sia-scaling": ("Sia (SOSP 2023), section 5.6, figure 9", sia.scaling),
}


def reproduce(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.")],
    data: Annotated[str, typer.Option(help="The folder with the public data sets; else $STRETTO_DATA.")] = "",
    synthetic: Annotated[bool, typer.Option(help="Run made data instead.")] = False,
    scale: Annotated[float, typer.Option(help="Share of the workloads to run, 0 to 1.")] = 1.0,
    workers: Annotated[int, typer.Option(min=0, help="Simulations at once; 0: one a core.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Make a table of a paper again and print it beside the published figures."""
    if name not in EXPERIMENTS:
        raise InputError(f"unknown table {name!r}, expected one of {', '.join(EXPERIMENTS)}")
    if not 0 < scale <= 1:
        raise InputError(f"--scale must lie in (0, 1], got {scale}")
    paper, experiment = EXPERIMENTS[name]
    request = Request(None if synthetic else data_root(data), scale, workers, sys.stderr.isatty())
    made = run_experiment(name, paper, experiment, request)
    if as_json:
        show_json(made.as_json())
        return
    _print(made)


def _print(made: Reproduction) -> None:
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
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
