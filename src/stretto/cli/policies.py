"""`stretto policies`: what there is to schedule with."""

from dataclasses import asdict
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import show_json, show_table


def policies(
    name: Annotated[str, typer.Argument(help="A policy, whose settings are listed instead.")] = "",
    as_json: options.Json = False,
) -> None:
    """List the policies, what they need to know and when they want to be asked; or the settings of one."""
    from stretto.policies.registry import describe_policies

    if name:
        _settings(name, as_json)
        return
    described = describe_policies()
    if as_json:
        show_json({"policies": [asdict(policy) for policy in described]})
        return
    header = ["name", "about", "who comes first", "knows", "asked at", "placer"]
    rows = [
        [
            policy.name,
            policy.summary,
            policy.order,
            ", ".join(policy.views) or "-",
            ", ".join(policy.triggers),
            policy.placer,
        ]
        for policy in described
    ]
    show_table("Policies", header, rows)


def _settings(name: str, as_json: bool) -> None:
    """The settings of one policy, with what each expects."""
    from stretto.policies.registry import policy_class
    from stretto.settings import describe_settings

    settings = describe_settings(policy_class(name))
    if as_json:
        show_json({"policy": name, "settings": [asdict(each) for each in settings]})
        return
    rows = [
        [f"policy.{each.name}", each.default or "-", each.expects, each.about or "-"] for each in settings
    ]
    show_table(
        f"Settings of {name}", ["setting", "default", "expects", "about"], rows, none="It has no settings."
    )
