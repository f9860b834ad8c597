"""The reference, made from the code: commands, settings, keys of job files, requests, and Python's names."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import typer
import typer.main

from stretto.cli.app import app as commands
from stretto.estimate.registry import ESTIMATORS
from stretto.jobfile import schema
from stretto.lend.lending import CapacityLoaning
from stretto.place.registry import PLACERS
from stretto.policies.registry import describe_policies, policy_class
from stretto.settings import describe_settings
from stretto.sim.settings import SimSettings

Table: TypeAlias = Sequence[Sequence[str]]

MADE = "<!-- made from the code by `make docs` -->\n\n"
PYTHON = {  # what programs import, by the page's headings
    "Simulating": ("stretto.notebook.simulate", "stretto.notebook.compare", "stretto.notebook.Run"),
    "Client of a service": (
        "stretto.client.Client",
        "stretto.client.AsyncClient",
        "stretto.client.ServiceError",
        "stretto.client.Refused",
    ),
    "Training script": (
        "stretto.sdk.entry_point.elastic",
        "stretto.sdk.job.ElasticJob",
        "stretto.sdk.batch_inference.infer",
        "stretto.sdk.results.read_results",
    ),
    "Policies, estimators and placers": (
        "stretto.model.policy.Policy",
        "stretto.model.Snapshot",
        "stretto.model.Shares",
        "stretto.model.Speeds",
    ),
    "Backends": ("stretto.backends.protocol.Backend",),
}


def pages() -> dict[str, str]:
    """By file name, every page of the reference."""
    return {
        "commands.md": commands_page(),
        "settings.md": settings_page(),
        "job-file.md": job_file_page(),
        "requests.md": requests_page(),
        "python.md": python_page(),
    }


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────


def commands_page() -> str:
    """Every command with its arguments and options, in the order in which `stretto --help` lists them."""
    root = typer.main.get_command(commands)
    parts = [f"# Every command and option\n\n{MADE}See [commands](../commands.md) for examples of each.\n"]
    with typer.Context(root, info_name="stretto") as context:
        for name, command in leaves(root, context):
            parts.append(_command(name, command))
    return "\n".join(parts)


def leaves(command: Any, context: Any, name: str = "stretto") -> Iterator[tuple[str, Any]]:
    """All commands that are no mere groups, with what one types for them."""
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    for word in command.list_commands(context):
        inner = command.get_command(context, word)
        yield from leaves(inner, context, f"{name} {word}")


def _command(name: str, command: Any) -> str:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        is_argument = parameter.param_type_name == "argument"
        words = (parameter.metavar or parameter.name.upper()) if is_argument else ", ".join(parameter.opts)
        if parameter.secondary_opts:
            words += f" / {', '.join(parameter.secondary_opts)}"
        about = (getattr(parameter, "help", "") or "").strip()
        variable = f" `{parameter.envvar}`" if getattr(parameter, "envvar", None) else ""
        needed = " Required." if parameter.required else ""
        rows.append([f"`{words}`", f"{about}{needed}", variable])
    text = inspect.cleandoc(command.help or "").split("\n\n")[0]
    head = f"## {name}\n\n{text}\n"
    return f"{head}\n{_table(('argument or option', 'is', 'variable'), rows)}\n" if rows else head


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────


def settings_page() -> str:
    """Every setting of `--set SPACE.KEY=VALUE`, by component."""
    parts = [
        f"# Every setting\n\n{MADE}Set one by `--set SPACE.KEY=VALUE`. A simulation has all of these, "
        "a service all but those of `sim`.\n",
        _component("The simulated world: `sim`", SimSettings),
        _component("Lending: `lend`", CapacityLoaning),
    ]
    parts += [
        _component(f"The policy `{policy.name}`: `policy`", policy_class(policy.name), policy.summary)
        for policy in describe_policies()
    ]
    for kind, space, homes in (("estimator", "estimate", ESTIMATORS), ("placer", "place", PLACERS)):
        parts += [
            _component(f"The {kind} `{name}`: `{space}`", _class_at(home)) for name, home in homes.items()
        ]
    return "\n".join(parts)


def _class_at(home: str) -> type:
    """The class that a registry names as MODULE:CLASS."""
    module, _, name = home.partition(":")
    kind: type = getattr(import_module(module), name)
    return kind


def _component(title: str, component: type, about: str = "") -> str:
    rows = [
        [f"`{one.name}`", one.expects, f"`{one.default}`" if one.default else "", one.about]
        for one in describe_settings(component)
    ]
    said = f"{about}\n\n" if about else ""
    table = _table(("setting", "expects", "unless set", "is"), rows) if rows else "It has no settings.\n"
    return f"## {title}\n\n{said}{table}"


# ── job files ─────────────────────────────────────────────────────────────────────────────────────────


def job_file_page() -> str:
    """Every key of a job file, nested ones with a dot."""
    rows = list(_keys(schema.file_schema()["properties"]))
    return (
        f"# Every key of a job file\n\n{MADE}Only `run` is required. [Jobs](../jobs.md) explains them in "
        f"their context. `stretto job-schema` prints the schema.\n\n{_table(('key', 'holds', 'is'), rows)}"
    )


def _keys(properties: Mapping[str, Any], before: str = "") -> Iterator[list[str]]:
    for name, inner in properties.items():
        yield [f"`{before}{name}`", _holds(inner), inner.get("description", "")]
        below = inner if "properties" in inner else inner.get("items", {})
        if "properties" in below:
            yield from _keys(below["properties"], f"{before}{name}.")


def _holds(inner: Mapping[str, Any]) -> str:
    """What a value may be, in a few words."""
    if "enum" in inner:
        return ", ".join(f"`{word}`" for word in inner["enum"])
    if "anyOf" in inner:
        return " or ".join(dict.fromkeys(_holds(each) for each in inner["anyOf"]))
    if "pattern" in inner:
        return "a duration"
    if inner.get("type") == "array":
        return f"a list of {_holds(inner['items'])}" if "items" in inner else "a list"
    if inner.get("type") == "object":
        return "keys and values"
    kinds = inner.get("type", "")
    names = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
    first = kinds if isinstance(kinds, str) else kinds[0]
    least = f" >= {inner['minimum']}" if "minimum" in inner else ""
    return names.get(first, "a text") + least


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


def requests_page() -> str:
    """Every request of the service, from its OpenAPI document."""
    document = openapi()
    parts = [
        f"# Every request of the service\n\n{MADE}The service has this as an OpenAPI document at "
        "`/api/v1/openapi.json`. [Security](../security.md) says which role may ask what.\n"
    ]
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            parts.append(_request(method.upper(), path, operation))
    return "\n".join(parts)


def openapi() -> dict[str, Any]:
    """The document of a service, without one."""
    from fastapi import FastAPI

    from stretto import __version__
    from stretto.service.http.app import ROUTERS
    from stretto.service.http.openapi import describe

    made = FastAPI(title="Stretto", version=__version__)
    for router in ROUTERS:
        made.include_router(router)
    describe(made)
    document: dict[str, Any] = made.openapi()
    return document


def _request(method: str, path: str, operation: Mapping[str, Any]) -> str:
    about = " ".join(str(operation.get("description", "")).split())
    rows = [
        [f"`{each['name']}`", each["in"], "yes" if each.get("required") else "", _type(each["schema"])]
        for each in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        rows.append(["body", "JSON", "yes", _type(body)])
    head = f"## `{method} {path}`\n\n{about}\n"
    return f"{head}\n{_table(('parameter', 'in', 'required', 'type'), rows)}" if rows else head


def _type(inner: Mapping[str, Any]) -> str:
    if "$ref" in inner:
        return f"`{str(inner['$ref']).rpartition('/')[2]}`"
    if "anyOf" in inner:
        return " or ".join(_type(each) for each in inner["anyOf"])
    return str(inner.get("type", "any"))


# ── Python ────────────────────────────────────────────────────────────────────────────────────────────


def python_page() -> str:
    """What programs import, by the docstrings."""
    parts = [f"# Names for programs\n\n{MADE}"]
    for heading, names in PYTHON.items():
        parts.append(f"## {heading}\n")
        parts += [f"::: {name}\n" for name in names]
    return "\n".join(parts)


def _table(header: Sequence[str], rows: Table) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
