"""`stretto demo`: real jobs that share this machine."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

PROGRAM = ("-m", "stretto.cli.app")


def demo(
    examples: Annotated[Path, typer.Option(help="The folder of the examples.")] = Path("examples"),
    policy: Annotated[str, typer.Option(help="Who gets how many workers: sia, cornucopia, …")] = "sia",
    slots: Annotated[int, typer.Option(min=4, help="Workers at once.")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter trainings.")] = False,
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
    say(f"policy {policy} on {slots} workers of this machine; everything is ended and removed afterwards")
    outcomes = play(Play(QUICK if quick else SCENE, examples, PROGRAM, policy, slots), say)
    if as_json:
        show_json({"policy": policy, "jobs": [dataclasses.asdict(one) for one in outcomes]})
    else:
        say("")
        header = [
            "job",
            "state",
            "waited s",
            "jct s",
            "resizes",
            "lost s",
            "reached",
            "alone",
            "samples",
            "sizes",
        ]
        show_table("what became of them", header, [_row(one) for one in outcomes])
    bad = [one.name for one in outcomes if not one.is_good]
    if bad:
        raise DemoFailed(f"not as it should be: {', '.join(bad)}")


def _row(one: Any) -> list[str]:
    return [
        one.name,
        one.state + (f", deadline {one.deadline}" if one.deadline else ""),
        _number(one.waited_s),
        _number(one.jct_s),
        str(one.resizes),
        f"{one.lost_s:.2f}",
        _figure(one.reached),
        _figure(one.undisturbed),
        one.samples or "-",
        " ".join(f"{gpus}@{at_s:.0f}" for at_s, gpus in one.sizes),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
