"""What a backend declares of itself: its name, its options, and how it is opened.

A backend is announced by one frozen dataclass. Its fields are the options, with their types and defaults:

    @dataclass(frozen=True)
    class ToyOptions:
        name: ClassVar[str] = "toy"
        workers: int = option(4, help="Workers at once.", at_least=1)

        async def open(self, site: Site) -> Backend:
            return ToyBackend(self.workers, site.state / "toy")

This module imports nothing heavy, and neither should the module of such a class: the command line reads it
whatever is asked of it. What a backend needs is imported when it is opened.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, runtime_checkable

from stretto.agent.inherited_env import OURS
from stretto.errors import InputError
from stretto.settings import RANGE, Range

if TYPE_CHECKING:
    from stretto.backends.protocol import Backend

HELP, CLI = "help", "cli"  # keys of a field's metadata
SERVICE_NAME = "name"  # the file with the name of this service on clusters that it shares with others
VARIABLE = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")

Value = TypeVar("Value")


def option(
    default: Value,
    *,
    help: str = "",  # noqa: A002  (as typer calls it)
    cli: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
) -> Value:
    """A field of an options class.

    help: one line for `stretto serve --help`. cli: the option of `stretto serve` that sets it, such as
    --partition; "": it is set by --set backend.NAME=VALUE only. at_least, at_most: the range of a number.
    """
    metadata: dict[str, object] = {HELP: help, CLI: cli}
    if at_least is not None or at_most is not None:
        metadata[RANGE] = Range(at_least=at_least, at_most=at_most)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Site:
    """Where a backend is opened: what it is told of the service."""

    state: Path  # the service's own directory, on this machine
    shared: Path | None = None  # a directory that all nodes see, as the user says; None: not said
    node_addresses: Mapping[str, str] = field(default_factory=dict)  # by node, of an earlier service
    # By job that has begun, of those that are not retired: the namespace of Kubernetes that it names, or ""
    job_namespaces: Mapping[str, str] = field(default_factory=dict)
    shared_key: bytes = b""  # which a standby with a state directory of its own has, too; b"": there is none

    @property
    def service_name(self) -> str:
        """What the service is called on a shared cluster: drawn once, so that it finds its own again.

        With a shared key the name follows from it: a standby must find what the leader has started.
        """
        path = self.state / SERVICE_NAME
        if not path.exists():
            temporary = path.with_suffix(".new")
            by_key = hmac.new(self.shared_key, b"service name", hashlib.sha256).hexdigest()[:8]
            temporary.write_text(by_key if self.shared_key else secrets.token_hex(4), encoding="ascii")
            temporary.replace(path)
        return path.read_text(encoding="ascii")

    def shared_folder(self) -> Path:
        """The directory that all nodes see, else the state directory. Raises InputError."""
        if self.shared is not None and not self.shared.is_dir():
            raise InputError(f"--shared {self.shared}: expected a directory that is there, on all nodes")
        return (self.shared or self.state).absolute()


class BackendOptions(Protocol):
    """The options of one backend: a frozen dataclass whose fields all have defaults.

    Its `__post_init__` may raise InputError for values that do not go together.
    """

    name: ClassVar[str]  # under which people ask for it, and which the log keeps

    async def open(self, site: Site) -> "Backend":
        """The backend, ready to be asked; called once. Raises InputError where it cannot be used.

        A package that is missing may be left to raise ModuleNotFoundError.
        """
        ...


@runtime_checkable
class RunsAsUsers(Protocol):
    """Options of a backend that can start workers as other Unix users: it heeds `WorkerStart.account`."""

    @property
    def run_as(self) -> tuple[str, ...]:
        """As which users, in the words of --run-as; (): as the service's."""
        ...


def check_passed_variables(names: Sequence[str]) -> None:
    """Raise InputError for what cannot be the name of a variable that jobs inherit, or must not be."""
    for name in names:
        if not VARIABLE.fullmatch(name):
            raise InputError(f"--pass-env {name}: expected the name of a variable, or a pattern with * and ?")
        if name.startswith(OURS):
            raise InputError(f"--pass-env {name}: variables of {OURS}* are never passed on")
