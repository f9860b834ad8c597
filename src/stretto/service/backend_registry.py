"""Which backends are there, and how does one get the options of one by its name?

A backend of this package is one line in BACKENDS. One of another package is an entry point of the group
`stretto.backends`; any other is named `module:Class`. Each is a class of options: see
`stretto.backends.options`.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import Field, is_dataclass
from importlib.metadata import entry_points
from typing import Any, cast

from stretto.backends.options import CLI, BackendOptions
from stretto.errors import InputError
from stretto.settings import setting_fields, settings_of

BACKENDS: dict[str, str] = {
    "local": "stretto.backends.local.options:LocalOptions",
    "emulated": "stretto.service.emulated.options:EmulatedOptions",
    "ray": "stretto.backends.ray.options:RayOptions",
    "slurm": "stretto.backends.slurm.options:SlurmOptions",
    "kubernetes": "stretto.backends.kubernetes.options:KubernetesOptions",
}
GROUP = "stretto.backends"
SPACE = "backend"  # of settings: --set backend.NAME=VALUE


def backend_names() -> tuple[str, ...]:
    """Every registered name: ours, which win over another package's, then those in alphabetical order."""
    return (*BACKENDS, *sorted({*_from_entry_points()} - {*BACKENDS}))


def backend_class(name: str) -> type[BackendOptions]:
    """The options class behind a name. Raises InputError where there is none."""
    target = BACKENDS.get(name) or _from_entry_points().get(name) or name
    where, colon, attribute = target.rpartition(":")
    if not colon:
        raise InputError(f"--backend {name}: expected one of {', '.join(backend_names())}, or module:Class")
    try:
        component = getattr(importlib.import_module(where), attribute, None)
    except ModuleNotFoundError as missing:
        raise InputError(f"--backend {name}: cannot be imported: {missing}") from None
    if not (
        inspect.isclass(component) and is_dataclass(component) and callable(getattr(component, "open", None))
    ):
        raise InputError(f"--backend {name}: expected a dataclass {attribute!r} with open() in {where}")
    return cast("type[BackendOptions]", component)


def backend_options(
    name: str, on_command_line: Mapping[str, object] | None = None, settings: Mapping[str, str] | None = None
) -> BackendOptions:
    """The options of a backend, with some of them set.

    on_command_line: values by their options of `stretto serve`, such as --partition. settings: texts by
    field, as --set backend.FIELD=VALUE gives them. Raises InputError for what the backend does not have,
    for a value that does not fit, and for one that is given twice.
    """
    component = backend_class(name)
    by_option = {each.metadata.get(CLI): each.name for each in setting_fields(component)}
    given: dict[str, object] = {}
    for option, value in (on_command_line or {}).items():
        if option not in by_option:
            having = " or ".join(each for each in BACKENDS if option in _cli_options(each))
            raise InputError(f"{option}: means something with --backend {having} only")
        given[by_option[option]] = value
    if twice := sorted({*given} & {*(settings or {})}):
        named = next(each for each, name_of_field in by_option.items() if name_of_field == twice[0])
        raise InputError(f"--set {SPACE}.{twice[0]}: expected instead of {named}, not beside it")
    return component(**settings_of(component, {**given, **(settings or {})}, SPACE))


def command_line_options() -> Iterator[tuple[type[BackendOptions], Field[Any]]]:
    """(class, field) of our own backends for each that is an option of `stretto serve`, with its help."""
    for name in ("ray", "slurm", "kubernetes", "emulated", "local"):  # as they stand in --help
        component = backend_class(name)
        yield from (
            (component, each)
            for each in setting_fields(component)
            if each.metadata.get("help") and each.metadata["cli"]
        )


def _cli_options(name: str) -> set[str]:
    return {each.metadata.get(CLI, "") for each in setting_fields(backend_class(name))}


def _from_entry_points() -> dict[str, str]:
    """`module:Class` by name, as installed packages announce them."""
    return {point.name: point.value for point in entry_points(group=GROUP)}
