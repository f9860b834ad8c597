"""`stretto demo`: real jobs that share this machine."""

import dataclasses
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto import defaults
from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

if TYPE_CHECKING:
    from stretto.demo.outcome import Outcome

PROGRAM = ("-m", "stretto.cli.app")
WIDTH_OF_PIPES = 100


def demo(
    examples: Annotated[
        Path | None, typer.Option(help="The folder of the examples; else those of Stretto.")
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy: stretto, sia, …")] = defaults.POLICY,
    slots: Annotated[int, typer.Option(min=4, help="Number of workers at once.")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter trainings.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of undisturbed runs to compare with.")] = 1,
    backend: Annotated[
        str,
        typer.Option(
            help="Where the jobs run: local is this machine; ray, slurm and kubernetes are clusters."
        ),
    ] = "local",
    address: Annotated[
        str, typer.Option(help="Ray only: the cluster, as auto, HOST:PORT, or ray://HOST:PORT.")
    ] = "",
    partition: Annotated[
        list[str],
        typer.Option(
            help="Slurm only: the partition; may be repeated. Else the default one.", metavar="NAME"
        ),
    ] = [],  # noqa: B006  (typer wants a plain default)
    kubeconfig: Annotated[str, typer.Option(help="Kubernetes only: the kubeconfig file.")] = "",
    namespace: Annotated[str, typer.Option(help="Kubernetes only: where the pods of the jobs go.")] = "",
    image: Annotated[
        str, typer.Option(help="Kubernetes only: an image with torch, scikit-learn and Stretto.")
    ] = "",
    host: Annotated[
        str, typer.Option(help="An address of this machine that the nodes of the cluster reach.")
    ] = "127.0.0.1",
    shared: Annotated[
        Path | None,
        typer.Option(help="A folder that this machine and all nodes see; it must contain --examples."),
    ] = None,
    shared_claim: Annotated[
        str, typer.Option(help="Kubernetes only: the claim of the volume that pods are to mount at --shared.")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Train real jobs that compete for this machine, and show how they are resized.

    Leaves with 1 unless every job completes and every sample was trained on exactly once in each epoch.
    """
    from stretto.demo.play import DemoFailed, Play, play
    from stretto.demo.scene import QUICK, SCENE
    from stretto.errors import InputError

    for module in ("torch", "sklearn", "uvicorn"):
        try:
            __import__(module)
        except ModuleNotFoundError:
            raise InputError(f"the demo needs {module}: install stretto[serve] torch scikit-learn") from None
    of_backend: dict[str, str | tuple[str, ...]] = {
        "--address": address,
        "--partition": tuple(partition),
        "--kubeconfig": kubeconfig,
        "--namespace": namespace,
        "--image": image,
        "--shared-claim": shared_claim,
    }
    serve = serve_options(backend, of_backend, shared)
    where = f"{slots} workers" if not serve else f"on {backend}"
    say(f"policy {policy}, {where}; the demo ends and removes all that it starts")
    entries = QUICK if quick else SCENE
    play_it = Play(entries, examples, PROGRAM, policy, slots, seeds, serve, host, shared)
    outcomes = play(play_it, say)
    if as_json:
        show_json({"policy": policy, "jobs": [dataclasses.asdict(outcome) for outcome in outcomes]})
    else:
        _show(policy, outcomes)
    bad = [outcome.name for outcome in outcomes if not outcome.is_good]
    if bad:
        raise DemoFailed(f"not as it should be: {', '.join(bad)}")


def serve_options(
    backend: str, by_option: Mapping[str, str | tuple[str, ...]], shared: Path | None = None
) -> list[str]:
    """What the service is told of a cluster; nothing for this machine. Raises InputError.

    by_option: values of options that mean something with one backend only. Empty ones are left out. shared:
    where pods mount the claim that is named there.
    """
    from stretto.errors import InputError
    from stretto.service.backend_registry import backend_names, backend_options

    if backend == "emulated":
        real = ", ".join(name for name in backend_names() if name != backend)
        raise InputError(f"--backend emulated: expected one where jobs really run: {real}")
    named = {option: value for option, value in by_option.items() if value}
    backend_options(backend, named)
    claim = named.get("--shared-claim")
    if claim and shared is None:
        raise InputError(f"--shared-claim {claim}: expected --shared with the path, too")
    if backend == "local":
        return []
    words = ["--backend", backend]
    for option, value in named.items():
        for each in [value] if isinstance(value, str) else value:
            words += [option, each]
    # The service's own directory is a part of that folder, so that nothing is left in it.
    return [*words, "--set", f"backend.shared_path={shared.absolute()}"] if claim and shared else words


def _show(policy: str, outcomes: "Sequence[Outcome]") -> None:
    from stretto.demo.display import SUMMARY_HEADER, findings, rows_of, timeline

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_PIPES
    say("")
    show_table(f"how the jobs ended under {policy}", SUMMARY_HEADER, rows_of(outcomes))
    for line in [*timeline(outcomes, width), "", *findings(outcomes)]:
        print(line)
