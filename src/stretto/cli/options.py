"""Options that several commands share, and how a group of commands reads its own."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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
Bounds = Annotated[
    bool, typer.Option("--bounds", help="Also compute how far the figures are from the best possible.")
]
NoBounds = Annotated[
    bool, typer.Option("--no-bounds", help="Do not compute how far the figures are from the best possible.")
]
Fairness = Annotated[bool, typer.Option("--fairness", help="Also simulate every job alone on its share.")]
Figures = Annotated[
    Path | None,
    typer.Option(
        "--figures", metavar="DIR", help="Also write every figure as SVG and PNG there, and its data as CSV."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


# ── groups that list where no command is named ────────────────────────────────────────────────────


LIST = "list"


class Listing(TyperGroup):
    """A group whose options without a command are those of its command `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line, which may begin with an option of `list`."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [LIST, *args]
        return super().parse_args(ctx, args)
