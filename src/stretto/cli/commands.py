"""Every command of `stretto` by its name, and how one is built: only when its name is asked for.

The modules of all commands take most of a second to import, and one command needs one of them.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from stretto.cli import options
from stretto.cli.service import take_service_options

# By name, in the order of `stretto --help`: `module:function` here, or `module:app` of a group of commands.
PLACES = {
    "simulate": "simulate:simulate",
    "compare": "compare:compare",
    "reproduce": "reproduce:reproduce",
    "policies": "policies:policies",
    "demo": "demo:demo",
    "serve": "serve:serve",
    "operator": "kubernetes_operator:operator",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "submit": "submit:submit",
    "attach": "submit:attach",
    "exec": "exec_and_forward:execute",
    "forward": "exec_and_forward:forward",
    "job-schema": "submit:job_schema",
    "list": "jobs:list_jobs",
    "describe": "jobs:describe",
    "explain": "forecast:explain",
    "logs": "jobs:logs",
    "events": "events:events",
    "cancel": "jobs:cancel",
    "hold": "jobs:hold",
    "release": "jobs:release",
    "requeue": "jobs:requeue",
    "scale": "jobs:scale",
    "priority": "jobs:priority",
    "top": "top:top",
    "usage": "usage:usage",
    "webhook-secrets": "cluster:webhook_secrets",
    "whatif": "forecast:whatif",
    "version": "version:version",
    "nodes": "cluster:nodes",
    "queues": "cluster:queues",
    "priority-classes": "priority_classes:app",
    "reserve": "reserve:app",
    "lenders": "lenders:app",
    "gpu-prices": "usage:prices",
    "budgets": "budgets:app",
    "shares": "shares:app",
    "secret": "secrets:app",
    "token": "cluster:token",
    "context": "contexts:app",
    "clusters": "clusters:app",
    "traces": "traces:app",
    "bench": "bench:app",
}
CONTEXT_SETTINGS = {"priority": options.NEGATIVE_NUMBERS}


class CommandsByName(TyperGroup):
    """A group that knows the names of its commands, and imports one when it is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]  # nothing is ever added to it

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the help."""
        return list(PLACES)


# What users of other systems type first, and the command of ours.
ELSEWHERE = {
    **dict.fromkeys(("squeue", "jobs", "ps", "ls", "get", "qstat"), "list"),
    **dict.fromkeys(("sbatch", "apply", "run", "create", "launch", "qsub"), "submit"),
    **dict.fromkeys(("scancel", "kill", "delete", "rm", "stop", "qdel"), "cancel"),
    **dict.fromkeys(("status", "show", "inspect", "info"), "describe"),
    **dict.fromkeys(("srun", "ssh", "shell"), "exec"),
    **dict.fromkeys(("sinfo", "node"), "nodes"),
    **dict.fromkeys(("sacct", "sreport"), "usage"),
    **dict.fromkeys(("suspend", "pause"), "hold"),
    **dict.fromkeys(("resume", "unpause"), "release"),
    **dict.fromkeys(("requeuehold", "restart"), "requeue"),
    "port-forward": "forward",
    "tail": "logs",
    "why": "explain",
    "config": "context",
}


class Commands(Mapping[str, Any]):
    """What click calls commands, by name."""

    def __getitem__(self, name: str) -> Any:
        if name not in PLACES:
            raise KeyError(name)
        return _built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


@cache  # the service's options are added once to one command
def _built(name: str) -> Any:
    module, _, attribute = PLACES[name].partition(":")
    command = getattr(import_module(f"stretto.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name)
    else:
        alone.command(name, context_settings=CONTEXT_SETTINGS.get(name))(command)
    take_service_options(alone)
    return get_group(alone).commands[name]
