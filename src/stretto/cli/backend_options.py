"""Options of `stretto serve` that backends declare themselves: see `stretto.backends.options`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from stretto.backends.options import CLI, HELP
from stretto.service.backend_registry import command_line_options
from stretto.settings import RANGE

PLACE = "backend_values"  # the parameter in whose place the options of the command line stand
BackendValues = Mapping[str, object] | None  # by option, such as --partition: those that were given


def with_backend_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes one option for each that a backend declares, in place of `backend_values`."""
    declared = {each.metadata[CLI]: (component, each) for component, each in command_line_options()}
    parameters = {option: _parameter(option, *field) for option, field in declared.items()}
    signature = inspect.signature(command)
    in_order: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        in_order += parameters.values() if parameter.name == PLACE else [parameter]

    @wraps(command)
    def run(**arguments: Any) -> None:
        values = {option: arguments.pop(parameter.name) for option, parameter in parameters.items()}
        # An option that says what it would say anyway is as good as none.
        chosen = {option: value for option, value in values.items() if value != parameters[option].default}
        command(**arguments, **{PLACE: chosen})

    run.__signature__ = signature.replace(parameters=in_order)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in in_order} | {"return": None}
    return run


def _parameter(option: str, component: type, field: Field[Any]) -> inspect.Parameter:
    """A parameter as typer reads it; a tuple of texts is an option that may be given several times."""
    hint = get_type_hints(component)[field.name]
    many = get_origin(hint) is tuple
    limits = field.metadata.get(RANGE)
    declaration = typer.Option(option, help=field.metadata[HELP], min=limits.at_least if limits else None)
    return inspect.Parameter(
        option.removeprefix("--").replace("-", "_"),
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=list(field.default) if isinstance(field.default, tuple) else field.default,
        annotation=Annotated[list[get_args(hint)[0]] if many else hint, declaration],  # type: ignore[misc]
    )
