"""`stretto demo`: real jobs that share this machine."""

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

if TYPE_CHECKING:
    from stretto.demo.outcome import Outcome

PROGRAM = ("-m", "stretto.cli.app")
WIDTH_OF_PIPES = 100


def demo(
    examples: Annotated[Path, typer.Option(help="The folder of the examples.")] = Path("examples"),
    policy: Annotated[str, typer.Option(help="Who gets how many workers: sia, cornucopia, …")] = "sia",
    slots: Annotated[int, typer.Option(min=4, help="Workers at once.")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter trainings.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Undisturbed runs to compare with.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Train real jobs that compete for this machine, and show how they are resized.

    Leaves with 1 unless every job completes and every sample was trained on exactly once in each epoch.
    """
    from stretto.demo.play import DemoFailed, Play, play
    from stretto.demo.scene import QUICK, SCENE
    from stretto.model import InputError

    for module in ("torch", "sklearn", "uvicorn"):
        try:
            __import__(module)
        except ModuleNotFoundError:
            raise InputError(f"the demo needs {module}: install stretto[serve] torch scikit-learn") from None
    say(f"policy {policy}, {slots} workers; all that is started is ended and removed again")
    outcomes = play(Play(QUICK if quick else SCENE, examples, PROGRAM, policy, slots, seeds), say)
    if as_json:
        show_json({"policy": policy, "jobs": [dataclasses.asdict(one) for one in outcomes]})
    else:
        _show(policy, outcomes)
    bad = [one.name for one in outcomes if not one.is_good]
    if bad:
        raise DemoFailed(f"not as it should be: {', '.join(bad)}")


def _show(policy: str, outcomes: "Sequence[Outcome]") -> None:
    from stretto.demo.summary import HEADER, findings, rows_of, timeline

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_PIPES
    say("")
    show_table(f"what became of them under {policy}", HEADER, rows_of(outcomes))
    for line in [*timeline(outcomes, width), "", *findings(outcomes)]:
        print(line)
