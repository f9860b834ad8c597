"""The command `stretto`: every command by name, and the one place where errors become exit statuses."""

import sys

import typer
from rich.console import Console

from stretto import __version__
from stretto.cli import bench, clusters, compare, policies, reproduce, simulate, traces
from stretto.model.errors import InputError, StrettoError

app = typer.Typer(
    name="stretto",
    help="An elastic scheduler for deep-learning training on shared GPU clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(simulate.simulate)
app.command()(compare.compare)
app.command()(reproduce.reproduce)
app.command()(policies.policies)
app.add_typer(clusters.app, name="clusters")
app.add_typer(traces.app, name="traces")
app.add_typer(bench.app, name="bench")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run a command: status 0 done, 1 it failed, 2 the input is wrong (one line says what)."""
    try:
        app(standalone_mode=True)
    except InputError as wrong:
        complain(str(wrong))
        sys.exit(2)
    except StrettoError as failed:
        complain(str(failed))
        sys.exit(1)


def complain(message: str) -> None:
    """One line to standard error, never wrapped."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"stretto: {message}", markup=False)


if __name__ == "__main__":
    main()
