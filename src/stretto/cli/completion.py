"""What a shell may complete: ids and names of jobs, nodes, queues and contexts.

A shell waits for the answer of a service only for a moment, and never sees an error. With --url, --token-file
and the like on the command line they are not looked at: what the environment and the contexts say counts.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.client import Client

SHELL_WAITS_S = 1.5  # chosen: a person who has pressed the tab key waits no longer
MOST = 200  # that a terminal can still show; chosen

Word = tuple[str, str]  # and what it is


def contexts(incomplete: str) -> list[str]:
    """Names of contexts that begin so."""
    from stretto.client import contexts
    from stretto.errors import InputError

    try:
        return [name for name in sorted(contexts.read().by_name) if name.startswith(incomplete)]
    except InputError:
        return []


def jobs(incomplete: str) -> list[Word]:
    """Ids of one's own open jobs that begin so, else names that do, with what each is and does."""

    def words(client: "Client") -> Iterable[Word]:
        going = list(client.jobs())
        ids = [(job["id"], f"{job['name']}: {job['state']}") for job in going]
        names = [(job["name"], f"job {job['id']}: {job['state']}") for job in going if ":" not in job["name"]]
        return [*ids, *names] if incomplete else ids

    return _asked(words, incomplete)


def nodes(incomplete: str) -> list[Word]:
    """Names of nodes that begin so."""
    return _asked(
        lambda client: [(node["name"], f"{node['gpus']} x {node['gpu_type']}") for node in client.nodes()],
        incomplete,
    )


def queues(incomplete: str) -> list[str]:
    """Names of queues that begin so."""
    return [
        name for name, _ in _asked(lambda client: [(one["name"], "") for one in client.queues()], incomplete)
    ]


def secrets(incomplete: str) -> list[str]:
    """Names of secrets that begin so."""
    return [
        name for name, _ in _asked(lambda client: [(one["name"], "") for one in client.secrets()], incomplete)
    ]


def _asked(words: Callable[["Client"], Iterable[Word]], incomplete: str) -> list[Word]:
    from stretto.client import Client
    from stretto.errors import StrettoError

    try:
        with Client(patience_s=0) as client:
            client.http.timeout = SHELL_WAITS_S
            offered = dict(words(client))
    except (StrettoError, ModuleNotFoundError, KeyError, TypeError):
        return []
    return [(word, what) for word, what in offered.items() if word.startswith(incomplete)][:MOST]
