"""`stretto version`."""

import typer

from stretto import __version__
from stretto.cli import options
from stretto.cli.printing import show_json


def version(as_json: options.Json = False) -> None:
    """Print the version."""
    if as_json:
        show_json({"version": __version__})
        return
    typer.echo(__version__)
