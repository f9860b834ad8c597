"""Options of a command that dataclasses declare: its own in groups, and those of backends.

    @dataclass(frozen=True)
    class Place:
        state: Annotated[Path, typer.Option(help="Where the log is kept.")] = Path("stretto-state")

    @with_option_classes
    def serve(*, place: Place) -> None: ...

A field is an option: its name, type, help, range and default stand there and nowhere else. Options stand in
`--help` in the order of the command's parameters, and of the fields of each.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from stretto.backends.options import CLI, HELP
from stretto.service.backend_registry import command_line_options
from stretto.settings import RANGE

BackendValues = Mapping[str, object]  # by option, such as --partition: those that were given


def with_option_classes(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the options which its parameters stand for.

    A parameter whose type is a dataclass stands for one option for each field, and gets an object of it. One
    of type `BackendValues` stands for those that backends declare. Any other parameter stays as it is.
    """
    signature = inspect.signature(command)
    # By parameter: those in its place, by field or option
    expanded: dict[str, dict[str, inspect.Parameter]] = {}
    in_order: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            expanded[parameter.name] = _parameters_of(parameter.annotation)
        elif parameter.annotation == BackendValues:
            expanded[parameter.name] = _parameters_of_backends()
        in_order += expanded.get(parameter.name, {parameter.name: parameter}).values()

    @wraps(command)
    def run(**arguments: Any) -> None:
        for name, parameters in expanded.items():
            values = {key: arguments.pop(parameter.name) for key, parameter in parameters.items()}
            declared = signature.parameters[name].annotation
            if is_dataclass(declared):
                arguments[name] = declared(**values)  # type: ignore[operator]  # it is a class
            else:  # an option of a backend that says what it would say anyway is as good as none
                arguments[name] = {
                    key: value for key, value in values.items() if value != parameters[key].default
                }
        command(**arguments)

    run.__signature__ = signature.replace(parameters=in_order)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in in_order} | {"return": None}
    return run


def _parameters_of(group: Any) -> dict[str, inspect.Parameter]:
    """One parameter for each field of a dataclass, by its name."""
    hints = get_type_hints(group, include_extras=True)
    return {
        each.name: inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default if each.default_factory is MISSING else each.default_factory(),
            annotation=hints[each.name],
        )
        for each in fields(group)
    }


def _parameters_of_backends() -> dict[str, inspect.Parameter]:
    """One parameter for each option that a backend declares for the command line, by the option."""
    declared = {each.metadata[CLI]: (component, each) for component, each in command_line_options()}
    return {option: _parameter(option, *field) for option, field in declared.items()}


def _parameter(option: str, component: type, field: Field[Any]) -> inspect.Parameter:
    """A parameter as typer reads it; a tuple of texts is an option that may be given several times."""
    hint = get_type_hints(component)[field.name]
    many = get_origin(hint) is tuple
    limits = field.metadata.get(RANGE)
    declaration = typer.Option(option, help=field.metadata[HELP], min=limits.at_least if limits else None)
    return inspect.Parameter(
        option.removeprefix("--").replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=list(field.default) if isinstance(field.default, tuple) else field.default,
        annotation=Annotated[list[get_args(hint)[0]] if many else hint, declaration],  # type: ignore[misc]
    )
