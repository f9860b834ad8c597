"""Options that several commands share."""

from typing import Annotated

import typer

NEGATIVE_NUMBERS = {"ignore_unknown_options": True}  # as arguments: -5 is no option
Cluster = Annotated[str, typer.Option("--cluster", "-c", help="A cluster file or a built-in name.")]
Trace = Annotated[
    str,
    typer.Option("--trace", "-t", help="A trace file or a built-in name; @RECIPE:key=value,… may follow."),
]
Policy = Annotated[str, typer.Option("--policy", "-p", help="A policy by name, or FILE.py:Class.")]
Profiles = Annotated[
    str, typer.Option(help="A directory of measured profiles; switches to the artifact's fidelity.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]
Workers = Annotated[int, typer.Option(min=0, help="Simulations at once; 0: one a core.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="SPACE.KEY=VALUE", help="A setting of sim, policy, estimate, place or lend."
    ),
]
Constraints = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="A file of queues, reservations, permitted sizes and priority classes."
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out jobs that cannot be used, and say which.")
]
Fairness = Annotated[bool, typer.Option("--fairness", help="Also simulate every job alone on its share.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
