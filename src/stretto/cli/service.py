"""What the verbs of a running service share: where it is, which user asks, and how often they look again."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stretto.cli import completion
from stretto.cli.printing import say
from stretto.errors import InputError, StrettoError
from stretto.service.state.messages import reason_in_words, span_in_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stretto.client import Client

import inspect
import os
from functools import wraps
from pathlib import Path

Url = Annotated[
    str,
    typer.Option(help="Address of the service.", envvar="STRETTO_URL", show_default="http://127.0.0.1:8700"),
]
Token = Annotated[
    str,
    typer.Option(help="Your token; not needed on loopback with --insecure-loopback.", envvar="STRETTO_TOKEN"),
]
JobName = Annotated[
    str,
    typer.Argument(
        help="The id of a job, or its name (your newest job of that name).",
        metavar="JOB",
        autocompletion=completion.jobs,
    ),
]

SOON_S = 90.0  # what comes so soon is said in seconds, not by the clock
LOOK_S = 1.0  # between two looks of --watch

Found = TypeVar("Found")


@contextmanager
def service(url: str, token: str) -> Iterator["Client"]:
    """A connection to the service. Raises InputError where the package is not installed."""
    try:
        from stretto.client import Client
    except ModuleNotFoundError as missing:
        raise InputError(f"this needs {missing.name}: install stretto[serve]") from None
    with Client(url, token, say=say) as client:
        yield client


@dataclass(frozen=True)
class ServiceClock:
    """What the clock of a service shows: real time, but where it is emulated and faster."""

    now_unix_s: float
    pace: float = 1.0  # in times of real time
    read_s: float = field(default_factory=time.monotonic)  # when that was so, by the clock of this machine

    @property
    def present_unix_s(self) -> float:
        """What it shows at present."""
        return self.now_unix_s + self.pace * (time.monotonic() - self.read_s)

    @property
    def words(self) -> str:
        """By which clock times are, where that is not the one on the wall; "" where it is."""
        if self.pace == 1.0:
            return ""
        now = time.strftime("%a %H:%M", time.localtime(self.now_unix_s))
        return f"times are of the service's clock: {self.pace:g} s there are 1 s here, and it shows {now}"


def clock_of_service(client: "Client") -> ServiceClock:
    """The clock of a service; of one that does not say it, real time."""
    try:
        session = client.ask("GET", "/api/v1/session")
    except StrettoError:
        return ServiceClock(time.time())
    pace = session.get("pace", 1.0)
    return ServiceClock(time.time() if pace == 1.0 else session["now_unix_s"], pace)


def one_line(job: dict[str, Any]) -> str:
    """A job in a line."""
    why = reason_in_words(job["reason"], job["evidence"])
    return f"job {job['id']} {job['name']}: {job['state']}" + (f" ({why})" if why else "")


def clock_of(unix_s: float | None, now_unix_s: float | None = None) -> str:
    """A time of day here, with the day where it is not within half a day; a dash for none."""
    if unix_s is None:
        return "-"
    now = time.time() if now_unix_s is None else now_unix_s
    form = "%H:%M" if abs(unix_s - now) < 12 * 3600 else "%a %H:%M"
    if abs(unix_s - now) > 6 * 86400:
        form = "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(unix_s))


def promise_in_words(outlook: Mapping[str, Any], now: float) -> str:
    """Whether a deadline can be kept, and when the job would end; "" where there is none ahead."""
    if not outlook["promise"]:
        return ""
    due, end = (clock_of(now + outlook[key], now) for key in ("deadline_in_s", "end_in_s"))
    if outlook["promise"] == "yes":
        return f"{due}: yes, at the latest then"
    return f"{due}: {outlook['promise']}, it ends {end} at the earliest"


def ago(seconds: float | None) -> str:
    """A duration for a narrow column; a dash for none."""
    return "-" if seconds is None else span_in_words(seconds).replace(" ", "")


def when_of(span: Mapping[str, float | None], now: float) -> str:
    """A foreseen time: now, in about 40 s, about 14:20 ± 15 min; "" for none."""
    middle, low, high = span["middle"], span["low"], span["high"]
    if middle is None:
        return f"{clock_of(low, now)} at the earliest" if low is not None and low > now else ""
    if middle - now < 1.0:
        return "now"
    when = f"in about {middle - now:.0f} s" if middle - now < SOON_S else f"about {clock_of(middle, now)}"
    if low is None or high is None or high - low < 2.0:
        return when
    return f"{when} ± {span_in_words((high - low) / 2)}"


def when_in_table(span: Mapping[str, float | None], now: float) -> str:
    """The same for a narrow column: now, in 40s ±9s, 14:20 ±15min; a dash for none."""
    words = when_of(span, now).replace("about ", "").removesuffix(" at the earliest") or "-"
    said, sign, spread = words.partition(" ± ")
    said = said.replace(" s", "s") if said.startswith("in ") else said
    return f"{said} ±{spread.replace(' ', '')}" if sign else said


def watch(look: Callable[[], "RenderableType"], plain: Callable[[], list[str]]) -> None:
    """Show again and again until interrupted: in place on a terminal, else lines whenever they change.

    What was shown stays while the service is away for a while.
    """
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(look(), console=Console(highlight=False), auto_refresh=False) as live:
            for screen in again_and_again(look):
                live.update(screen, refresh=True)
    before: list[str] = []
    for lines in again_and_again(plain):
        if lines != before:
            print("\n".join(lines), flush=True)
            before = lines


def again_and_again(look: Callable[[], Found], every_s: float = LOOK_S) -> Iterator[Found]:
    """What is found, again and again; a service that does not answer is asked again for a while."""
    from stretto.client import ServiceError
    from stretto.client.patience import Outage, patience_s

    yield look()
    outage = Outage(patience_s(), lambda _: None)  # what was shown says when that was
    while True:
        time.sleep(every_s)
        try:
            observed = look()
        except ServiceError as failure:
            outage.sit_out(failure)
            continue
        outage.end()
        yield observed


# ── --context, --ca-file and --token-file, by which a token is in no list of processes and no history ──


OPTION, VARIABLE = "--token-file", "STRETTO_CA_FILE"
TokenFile = Annotated[
    Path | None,
    typer.Option(OPTION, help="A file with the token; else the file that STRETTO_TOKEN_FILE names."),
]


CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        help="Certificates of the authorities that certify the service; else the file that STRETTO_CA_FILE "
        "names, else those of the system.",
        metavar="FILE",
    ),
]


ContextName = Annotated[
    str,
    typer.Option(
        "--context",
        help="The service of this name in your contexts (see stretto context); else the one that "
        "STRETTO_CONTEXT names, else the current one.",
        metavar="NAME",
        autocompletion=completion.contexts,
    ),
]


def take_service_options(app: typer.Typer) -> None:
    """Have all commands for services, also in groups, take --token-file, --ca-file and --context."""
    for command in app.registered_commands:
        if command.callback is not None and "token" in inspect.signature(command.callback).parameters:
            command.callback = _with_files(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            take_service_options(group.typer_instance)


def _with_files(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options beside --token; typer reads options from the signature."""

    @wraps(command)
    def asked(
        *arguments: Any,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        service_context: str = "",
        **named: Any,
    ) -> Any:
        if token_file is not None:
            if named["token"] not in ("", os.environ.get("STRETTO_TOKEN")):
                raise InputError(f"{OPTION} {token_file}: expected it without --token")
            from stretto.client.tokens import token_in

            named["token"] = token_in(token_file, OPTION)
        if service_context:
            ca_file = _by_context(service_context, named, ca_file, has_token_file=token_file is not None)
        with _trusting(ca_file):
            return command(*arguments, **named)

    by_name = inspect.Parameter.KEYWORD_ONLY
    added: dict[str, Any] = {"token_file": (TokenFile, None), "ca_file": (CaFile, None)}
    signature = inspect.signature(command)
    if "kube_context" not in signature.parameters:
        added["service_context"] = (ContextName, "")
    parameters = [
        parameter.replace(kind=by_name) if name != "context" else parameter
        for name, parameter in signature.parameters.items()
    ]
    place = [parameter.name for parameter in parameters].index("token") + 1
    parameters[place:place] = [
        inspect.Parameter(name, by_name, default=default, annotation=annotation)
        for name, (annotation, default) in added.items()
    ]
    asked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    annotations = {name: annotation for name, (annotation, _) in added.items()}
    asked.__annotations__ = {**command.__annotations__, **annotations}
    return asked


def _by_context(name: str, named: dict[str, Any], ca_file: Path | None, has_token_file: bool) -> Path | None:
    """Put the URL and the token of a context among a command's options; the file of its authorities."""
    from stretto.client import contexts

    if named["url"] not in ("", os.environ.get("STRETTO_URL")):
        raise InputError(f"{contexts.OPTION} {name}: expected it without --url")
    context = contexts.read().named(name, contexts.OPTION)
    named["url"] = context.addresses
    if not has_token_file and named["token"] in ("", os.environ.get("STRETTO_TOKEN")):
        named["token"] = context.its_token() or named["token"]
    return ca_file or (Path(context.authorities) if context.ca_file else None)


@contextmanager
def _trusting(ca_file: Path | None) -> Iterator[None]:
    """While clients of this command, wherever they are made, trust the authorities of a file."""
    if ca_file is None:
        yield
        return
    from stretto.client.trust import certificates_in

    certificates_in(ca_file)  # what is wrong with it is said with the option's name
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(ca_file)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
