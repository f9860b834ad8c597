"""The verbs for what jobs run on and which users may run them: nodes, queues, token."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from stretto.cli import completion, options
from stretto.cli.options import Listing
from stretto.cli.printing import say, show_json, show_line, show_table
from stretto.cli.service import Token, Url, clock_of, service
from stretto.errors import InputError

nodes = typer.Typer(help="Nodes of a running service; lists them.", cls=Listing)
queues = typer.Typer(help="Queues of a running service; lists them.", cls=Listing)
token = typer.Typer(help="Tokens of a running service.", no_args_is_help=True)

NodeName = Annotated[
    str, typer.Argument(help="The name of a node.", metavar="NODE", autocompletion=completion.nodes)
]
QueueName = Annotated[
    str, typer.Argument(help="The name of a queue.", metavar="QUEUE", autocompletion=completion.queues)
]
Why = Annotated[str, typer.Option(help="The reason that is shown.")]


@nodes.command("list")
def list_nodes(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List nodes with the GPUs that are held there."""
    with service(url, token) as client:
        listed = client.nodes()
    if as_json:
        show_json({"nodes": listed})
        return
    show_table("", *table_of_nodes(listed), none="no node has shown itself yet")


def table_of_nodes(listed: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows; where nodes are in the network has a column if that is known of any."""
    header = ["node", "type", "gpus", "free", "busy", "state", "jobs", "why"]
    rows = [_node_row(node) for node in listed]
    places = [_place_of(node) for node in listed]
    if not any(places):
        return header, rows
    return [*header, "place"], [[*row, place or "-"] for row, place in zip(rows, places, strict=True)]


def _place_of(node: dict[str, Any]) -> str:
    """Zone, rack and NVLink domain of a node, as far as its cluster says them."""
    named = (("zone", "zone"), ("rack", "rack"), ("nvlink", "nvlink_domain"))
    return ", ".join(f"{word} {node[key]}" for word, key in named if node.get(key))


def _node_row(node: dict[str, Any]) -> list[str]:
    of_no_job = {name: node[name] for name in ("others", "ending") if node.get(name)}
    jobs = ", ".join(f"{job} ({gpus})" for job, gpus in {**node["jobs"], **of_no_job}.items())
    return [
        node["name"],
        node["gpu_type"],
        str(node["gpus"]),
        str(node["free"]),
        busy_in_words(node.get("busy")),
        state_of_node(node),
        jobs or "-",
        node["why"] or "-",
    ]


def busy_in_words(busy: float | None) -> str:
    """A share of the time."""
    return "unknown" if busy is None else f"{100 * busy:.0f}%"


def state_of_node(node: dict[str, Any]) -> str:
    """up, tainted, cordoned, drained, down, or with its lender."""
    if not node["up"]:
        return "down"
    if node.get("lender") and not node["on_loan"]:
        return "lender's"
    if node.get("taints"):
        return "tainted"
    return "drained" if node["drained"] else "cordoned" if node["closed"] else "up"


def state_with_taints(node: dict[str, Any]) -> str:
    """The same with its taints, where no other column says why."""
    state = state_of_node(node)
    return f"{state}: {', '.join(node['taints'])}" if state == "tainted" else state


@nodes.command()
def cordon(
    node: NodeName, why: Why = "", url: Url = "", token: Token = "", as_json: options.Json = False
) -> None:
    """Let a node take no new jobs; jobs that run there go on."""
    _close(node, True, False, why, url, token, as_json)


@nodes.command()
def drain(
    node: NodeName, why: Why = "", url: Url = "", token: Token = "", as_json: options.Json = False
) -> None:
    """Let a node take no new jobs, and move the running ones away."""
    _close(node, True, True, why, url, token, as_json)


@nodes.command()
def uncordon(node: NodeName, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Let a node take jobs again."""
    _close(node, False, False, "", url, token, as_json)


def _close(node: str, closed: bool, drained: bool, why: str, url: str, token: str, as_json: bool) -> None:
    with service(url, token) as client:
        found = client.close_node(node, closed, drained, why)
    if as_json:
        show_json(found)
    else:
        show_line(f"node {node}: {'drained' if drained else 'cordoned' if closed else state_of_node(found)}")


@queues.command("list")
def list_queues(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List queues with their quotas and the GPUs that they hold."""
    with service(url, token) as client:
        listed = client.queues()
    if as_json:
        show_json({"queues": listed})
        return
    header = ["queue", "in", "quota", "borrows", "weight", "users", "held", "jobs"]
    rows = [
        [
            queue["name"] or "(none)",
            queue.get("parent") or "-",
            _quota_of(queue),
            str(queue["borrow_gpus"]),
            f"{queue['weight']:g}",
            _users_of(queue),
            str(queue.get("held_gpus", "-")),
            str(queue.get("jobs", "-")),
        ]
        for queue in listed
    ]
    show_table("", header, rows, none="no queue has been set")


@queues.command("set")
def set_queue(
    name: QueueName,
    quota: Annotated[
        str | None, typer.Option(help="Quota: GPUs that its jobs may hold together, or none.")
    ] = None,
    borrow: Annotated[
        int | None, typer.Option(min=0, help="GPUs beyond the quota while other queues leave them idle.")
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e6, help="Weight of its jobs, for policies that weigh jobs."),
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option(help="A user that may use it; may be repeated. Else its users stay.")
    ] = None,
    parent: Annotated[str | None, typer.Option(help="Its parent queue, or none.", metavar="QUEUE")] = None,
    everybody: Annotated[bool, typer.Option("--everybody", help="Let everybody use it.")] = False,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Set the quota, limits and users of a queue; other settings stay."""
    if quota not in (None, "none") and not quota.isdecimal():
        raise InputError(f"--quota {quota}: expected a number of GPUs or none")
    if parent == "":
        raise InputError("--parent '': expected the name of a queue, or none")
    if everybody and user:
        raise InputError(f"--everybody: excludes --user {user[0]}")
    bounds: dict[str, Any] = {"borrow_gpus": borrow, "weight": weight, "users": user}
    bounds = {key: value for key, value in bounds.items() if value is not None}
    if quota is not None:
        bounds["quota_gpus"] = None if quota == "none" else int(quota)
    if everybody:
        bounds["users"] = None
    if parent is not None:
        bounds["parent"] = "" if parent == "none" else parent
    with service(url, token) as client:
        queue = client.set_queue(name, **bounds)
    if as_json:
        show_json(queue)
    else:
        inside = f" in {queue['parent']}" if queue["parent"] else ""
        show_line(
            f"queue {name}{inside}: quota {_quota_of(queue)}, borrows {queue['borrow_gpus']}, "
            f"weight {queue['weight']:g}, for {_users_of(queue)}"
        )


@queues.command("delete")
def delete_queue(
    name: QueueName,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Delete a queue without jobs and without other queues in it."""
    with service(url, token) as client:
        client.delete_queue(name)
    if as_json:
        show_json({"deleted": name})
    else:
        show_line(f"queue {name}: deleted")


def _quota_of(queue: dict[str, Any]) -> str:
    if queue["quota_gpus"] is not None:
        return str(queue["quota_gpus"])
    return "rest" if queue.get("is_default") else "none"


def _users_of(queue: dict[str, Any]) -> str:
    users = queue.get("users")
    return "everybody" if users is None else ", ".join(users) or "nobody"


@token.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="The name of the token in lists.", metavar="NAME")],
    user: Annotated[str, typer.Option(help="The user whose jobs it submits; else its name.")] = "",
    role: Annotated[str, typer.Option(help="Its role: user, operator or admin.")] = "user",
    scope: Annotated[
        str,
        typer.Option(help="What of its role it opens: all, read (changes nothing) or jobs (and reading)."),
    ] = "all",
    expires: Annotated[
        str, typer.Option(help="How long it is valid, like 30d, or never (it does not expire).")
    ] = "never",
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Create a token. It is shown only this once, and not stored."""
    if role not in ("user", "operator", "admin"):
        raise InputError(f"--role {role}: expected user, operator or admin")
    if scope not in ("all", "read", "jobs"):
        raise InputError(f"--scope {scope}: expected all, read or jobs")
    with service(url, token) as client:
        created = client.make_token(name, user or name, role, _lasts_s(expires), scope)
    if as_json:
        show_json(created)
        return
    say(f"{role} token of {user or name}, shown this once:")
    show_line(created["token"])


def _lasts_s(expires: str) -> float | None:
    """For how long a token opens anything; None: for ever. Raises InputError."""
    from stretto.jobfile.quantities import duration_s

    if expires == "never":
        return None
    try:
        lasts_s = duration_s(expires)
    except ValueError:
        lasts_s = 0.0
    if lasts_s <= 0:
        raise InputError(f"--expires {expires}: expected a duration like 12h or 30d, or never")
    return lasts_s


@token.command("list")
def list_tokens(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List tokens by name; the tokens themselves are not stored."""
    with service(url, token) as client:
        tokens = client.tokens()
    if as_json:
        show_json({"tokens": tokens})
        return
    header = ["name", "user", "role", "scope", "expires", "last used"]
    show_table("", header, [_token_row(entry) for entry in tokens])


def _token_row(token: dict[str, Any]) -> list[str]:
    """A token as cells; a service of an older version does not say when it ends and was used."""
    expires, used = token.get("expires"), token.get("last_used")
    end = "never" if expires is None else "expired" if expires <= time.time() else clock_of(expires)
    last = "never" if used is None else clock_of(used)
    return [token["name"], token["user"], token["role"], token.get("scope", "all"), end, last]


@token.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(help="The name of a token.", metavar="NAME")],
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Revoke a token."""
    with service(url, token) as client:
        client.revoke_token(name)
    if as_json:
        show_json({"revoked": name})
    else:
        show_line(f"token {name}: revoked")


def webhook_secrets(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Show the secrets that your webhooks are signed with, the newest first."""
    with service(url, token) as client:
        secrets = client.webhook_secrets()
    if as_json:
        show_json({"secrets": secrets})
        return
    for secret in secrets:
        show_line(secret)
