"""`stretto policies`: what there is to schedule with."""

from dataclasses import asdict

from stretto.cli import options
from stretto.cli.printing import show_json, show_table


def policies(as_json: options.Json = False) -> None:
    """List the policies, what they need to know and when they want to be asked."""
    from stretto.policies.registry import describe_policies

    found = describe_policies()
    if as_json:
        show_json({"policies": [asdict(one) for one in found]})
        return
    header = ["name", "about", "who comes first", "knows", "asked at", "placer"]
    rows = [
        [one.name, one.summary, one.order, ", ".join(one.views) or "-", ", ".join(one.triggers), one.placer]
        for one in found
    ]
    show_table("Policies", header, rows)
