"""`stretto policies`: what there is to schedule with."""

from stretto.cli import options
from stretto.cli.printing import show_json, show_table
from stretto.policies.registry import describe_policies


def policies(as_json: options.Json = False) -> None:
    """List the policies, what they need to know and when they want to be asked."""
    rows = describe_policies()
    if as_json:
        show_json({"policies": rows})
        return
    names = ["name", "about", "views", "triggers", "placer"]
    show_table("Policies", names, [[str(row.get(name, "")) for name in names] for row in rows])
