"""`stretto submit`: a job file, a command, or an interactive session."""

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import completion, options
from stretto.cli.exec_and_forward import Rank, come_back
from stretto.cli.option_classes import with_option_classes
from stretto.cli.printing import say, show_json, show_line
from stretto.cli.service import (
    JobName,
    Token,
    Url,
    clock_of_service,
    one_line,
    promise_in_words,
    service,
    when_of,
)
from stretto.errors import InputError
from stretto.service.state.messages import gpus_of

if TYPE_CHECKING:
    from stretto.client import Client

FAILED, REFUSED = 1, 2
LOOK_S = 0.2
ADDRESS = re.compile(r"https?://\S+(?=\s)")  # whole: its rest may be yet to come


@dataclass(frozen=True)
class CommandOptions:
    """What options say of a command or session. A job file says these things itself, but for the name."""

    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of a command or an interactive session; else 1.")
    ] = None
    gpu_type: Annotated[str, typer.Option("--type", help="Type of these GPUs; else any.")] = ""
    name: Annotated[str, typer.Option(help="Name of the job, also where its file says another one.")] = ""
    queue: Annotated[
        str, typer.Option(help="Queue of a command or session.", autocompletion=completion.queues)
    ] = ""
    priority: Annotated[
        str | None,
        typer.Option(help="Priority of a command or session: a number, larger is sooner, or a class."),
    ] = None
    max_time: Annotated[str, typer.Option(help="Time limit of a command or session, like 4h.")] = ""
    image: Annotated[
        str, typer.Option(help="Container image of a command, like registry.example/team/train:1.2.")
    ] = ""
    hold: Annotated[bool, typer.Option("--hold", help="Hold a command until it is released.")] = False

    def by_option(self) -> dict[str, Any]:
        """Values by the option's name; None or empty where it was not set."""
        return {
            "--gpus": self.gpus,
            "--type": self.gpu_type,
            "--name": self.name,
            "--queue": self.queue,
            "--priority": self.priority,
            "--max-time": self.max_time,
            "--image": self.image,
            "--hold": self.hold or None,
        }


@dataclass(frozen=True)
class Following:
    """What comes of the submission while the command runs."""

    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the job's end, and leave with its exit status.")
    ] = False
    watch: Annotated[bool, typer.Option("--watch", help="Like --wait, and print what happens meanwhile.")] = (
        False
    )
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print where, when and at what size the job would start.")
    ] = False


@dataclass(frozen=True)
class Circumstances:
    """Where the job runs if its file does not say, and by what a repeated submission is known."""

    workdir: Annotated[
        str, typer.Option(help="Working directory, if the file names none; else the present one.")
    ] = ""
    upload: Annotated[
        Path | None,
        typer.Option(
            help="A directory that the job brings along, without what its .strettoignore names: workers "
            "begin in a copy of it.",
            metavar="DIRECTORY",
        ),
    ] = None
    key: Annotated[
        str, typer.Option(help="Idempotency key: repeated submissions with one key make one job.")
    ] = ""


@with_option_classes
def submit(
    *,
    job: Annotated[
        list[str] | None,
        typer.Argument(help="Job files, or -- and a command.", metavar="FILE... | -- COMMAND"),
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="Attach to a shell on GPUs, or to a notebook's command."),
    ] = False,
    command: CommandOptions,
    following: Following,
    circumstances: Circumstances,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Submit a job, or several that files describe."""
    if not interactive and len(job or []) > 1 and all(_is_named_as_job_file(word) for word in job or []):
        _submit_files(
            [Path(word) for word in job or []], command, following, circumstances, (url, token), as_json
        )
        return
    upload = circumstances.upload
    workdir = circumstances.workdir if upload else _working_directory(circumstances.workdir)
    wanted = submission(job or [], interactive, workdir, command.by_option())
    name = command.name if isinstance(wanted, Path) else ""  # a command's own text has it
    with service(url, token) as client:
        if following.dry_run:
            _show_dry_run(client.dry_run(wanted, workdir, name), as_json)
            if not as_json and (words := clock_of_service(client).words):
                say(words)
            return
        submitted = client.submit(wanted, circumstances.key, workdir, upload or "", name)
        _show_remarks(submitted)
        if interactive and not as_json:
            say(one_line(submitted))
            submitted = _notebook(client, submitted) if job else _session(client, submitted)
        else:
            if not as_json:
                show_line(submitted["array"] or submitted["id"])
                sys.stdout.flush()  # a user may interrupt the wait, and knows then what goes on
            if following.watch or following.wait:
                submitted = _awaited(client, submitted, following.watch)
    _show_submitted(submitted, as_json, is_shown=interactive or following.watch)
    if submitted["ended_s"] is not None or following.wait or following.watch:
        leave_with(submitted)


def _submit_files(
    files: list[Path],
    command: CommandOptions,
    following: Following,
    circumstances: Circumstances,
    target: tuple[str, str],
    as_json: bool,
) -> None:
    """Submit job files together: each is taken or refused by itself.

    target: the address of the service, and a token. Leaves with 2 where some file was refused.
    """
    of_one = {"--watch": following.watch, "--dry-run": following.dry_run, "--upload": circumstances.upload}
    for option, value in {**command.by_option(), **of_one}.items():
        if value not in (None, "", False):
            raise InputError(f"{option}: expected one job file with it, got {len(files)}")
    with service(*target) as client:
        outcomes = client.submit_all(files, circumstances.key, _working_directory(circumstances.workdir))
        for file, outcome in zip(files, outcomes, strict=True):
            for warning in outcome["warnings"]:
                say(f"{file}: ignored {warning}")
            if outcome["detail"]:
                say(_named(file, outcome["detail"]))
            elif not as_json:
                show_line(outcome["array"] or outcome["id"])
        if as_json:
            named = zip(files, outcomes, strict=True)
            show_json({"jobs": [{"file": str(file), **outcome} for file, outcome in named]})
        if not all(outcome["id"] for outcome in outcomes):
            raise typer.Exit(REFUSED)
        if following.wait:
            sys.stdout.flush()  # a user may interrupt the wait, and knows then what goes on
            ended = [client.wait(name) for outcome in outcomes for name in outcome["ids"]]
            leave_with(next((each for each in ended if each["state"] != "COMPLETED"), ended[-1]))


def _named(file: Path, detail: str) -> str:
    """Why a file was refused; most reasons name it already."""
    return detail if detail.startswith(str(file)) else f"{file}: {detail}"


def _show_remarks(submitted: dict[str, Any]) -> None:
    """What of the file means nothing here, and whether a deadline can be promised."""
    for warning in submitted.get("warnings", ()):
        say(f"ignored {warning}")
    if (outlook := submitted.get("outlook")) and outlook["promise"]:
        say(f"deadline {promise_in_words(outlook, time.time())}")


def _show_submitted(submitted: dict[str, Any], as_json: bool, is_shown: bool) -> None:
    if as_json:
        show_json(submitted)
    elif not is_shown:
        say(one_line(submitted))


def _working_directory(given: str) -> str:
    """Where a job runs whose file does not say: where this command was told, else where it is called."""
    try:
        here = Path(given).absolute() if given else Path.cwd()
        return str(here.resolve() if ".." in here.parts else here)
    except FileNotFoundError:
        raise InputError("the working directory is gone: go to another one, or give --workdir") from None


def attach(job: JobName, rank: Rank = None, url: Url = "", token: Token = "") -> None:
    """Come back to a terminal of exec, or that of an interactive job; ctrl-] leaves it running."""
    from stretto.cli.attaching import attach

    with service(url, token) as client:
        described = client.describe(job)
        if described["kind"] != "interactive" and described["ended_s"] is None:
            raise typer.Exit(come_back(client, job, rank))
        left = client.wait(job) if attach(client, job) else client.describe(job)
    say(one_line(left))
    leave_with(left)


def job_schema() -> None:
    """Print the JSON Schema of a job file, for editors and programs that write one."""
    from stretto.jobfile.schema import file_schema

    print(json.dumps(file_schema(), indent=2))


def leave_with(job: dict[str, Any]) -> None:
    """Leave with the status of a job that has ended otherwise than well."""
    if job["ended_s"] is not None and job["state"] != "COMPLETED":
        raise typer.Exit(job["status"] or FAILED)


def submission(
    job: list[str], interactive: bool, workdir: str, options_set: Mapping[str, Any] | None = None
) -> Path | str:
    """What is to be submitted: a job file, or the text of one for a command or a session.

    options_set: by option; what is None or empty was not set. A file says these things itself; only a name
    comes beside it.
    """
    by_option = {option: value for option, value in (options_set or {}).items() if value not in (None, "")}
    if not job and not interactive:
        raise InputError("expected a job file, -- and a command, or --interactive")
    if not interactive and len(job) == 1 and _is_file(job[0]):
        for option, value in by_option.items():
            if option == "--name":
                continue
            spelled = option if value is True else f"{option} {value}"
            raise InputError(f"{spelled}: is for commands; expected it in {job[0]}")
        return Path(job[0])
    if len(job) == 1 and Path(job[0]).is_dir() and shutil.which(job[0]) is None:
        raise InputError(f"{job[0]}: expected a job file, or -- and a command, got a directory")
    if interactive and not job and "--image" in by_option:
        raise InputError(
            "--image: expected a command with --interactive; stretto exec gives a shell beside it"
        )
    gpus, gpu_type = by_option.get("--gpus", 1), by_option.get("--type", "")
    entries: dict[str, Any] = {
        "name": by_option.get("--name", name_of(job)),
        "run": _line(job),
        "workdir": workdir,
        "resources": {"accelerators": f"{gpu_type}:{gpus}" if gpu_type else gpus},
    }
    if interactive:  # one process with all the GPUs: a shell to attach to, or what was given
        entries |= {"kind": "interactive", "preemptible": False}
        entries["resources"]["gpus_per_worker"] = gpus
    for key in ("queue", "priority", "max_time", "image", "hold"):
        option = f"--{key.replace('_', '-')}"
        if option in by_option:
            entries[key] = by_option[option]
    return in_yaml(entries)


def in_yaml(entries: dict[str, Any]) -> str:
    """Entries as YAML, where a character beyond U+FFFF has one escape, and not two as in JSON."""
    text = json.dumps(entries, ensure_ascii=False)
    return re.sub(r"[^\x20-\x7e]", lambda found: f"\\U{ord(found[0]):08x}", text)


def _is_named_as_job_file(word: str) -> bool:
    """Whether a word names a file that is no program: of several such words none is a command."""
    return not re.search(r"\s", word) and word.endswith((".yaml", ".yml", ".json", ".sbatch"))


def _is_file(word: str) -> bool:
    """Whether a word is a job file; one that is missed by its name is said to be missing later."""
    return not re.search(r"\s", word) and (
        Path(word).is_file() or word.endswith((".yaml", ".yml", ".json", ".sh", ".sbatch"))
    )


def _line(command: list[str]) -> str:
    """A command for a shell: one word with spaces in it is a line already, as for ssh."""
    if not command:
        return shlex.join([sys.executable, "-m", "stretto.agent.terminal"])
    return command[0] if len(command) == 1 and re.search(r"\s", command[0]) else shlex.join(command)


def name_of(command: list[str]) -> str:
    """The program's name, as far as a job's name may be so; variables that are set before it are no name."""
    words = command[0].split() if len(command) == 1 else command
    programs = [word for word in words if not re.match(r"[A-Za-z_]\w*=", word)]
    word = Path(programs[0] if programs else "command").name if command else "shell"
    plain = "".join(one for one in word if one.isascii() and (one.isalnum() or one in "._-"))[:63]
    return plain.lstrip("._-") or "command"


def _session(client: "Client", found: dict[str, Any]) -> dict[str, Any]:
    from stretto.cli.attaching import attach

    if attach(client, found["id"]):
        return client.wait(found["id"])
    say(f"job {found['id']} goes on; stretto attach {found['id']} comes back, stretto cancel ends it")
    return client.describe(found["id"])


def _notebook(client: "Client", submitted: dict[str, Any]) -> dict[str, Any]:
    print_address(client, submitted["id"])
    return client.describe(submitted["id"])


def print_address(client: "Client", job: str) -> None:
    """Wait for the first address that the command prints, and pass it on."""
    unfinished = ""  # of the line that is being written
    for piece in client.log(job, follow=True):
        unfinished += piece
        address = ADDRESS.search(unfinished)
        if address:
            show_line(address[0])
            say(f"job {job} runs there; stretto logs -f {job} follows it, stretto cancel {job} ends it")
            return
        sys.stderr.write(piece)
        unfinished = unfinished[unfinished.rfind("\n") + 1 :]


def _awaited(client: "Client", submitted: dict[str, Any], watch: bool) -> dict[str, Any]:
    """The job once it has ended; of an array, the first task that has not ended well, else the last one."""
    try:
        if watch:
            return _watched(client, submitted)
        ended = [client.wait(task) for task in submitted["ids"]]
    except KeyboardInterrupt:
        name = submitted["array"] or submitted["id"]
        say(f"job {name} goes on; stretto cancel {name} ends it")
        raise
    return next((task for task in ended if task["state"] != "COMPLETED"), ended[-1])


def _watched(client: "Client", job: dict[str, Any]) -> dict[str, Any]:
    before = ""
    while True:
        size = f" on {gpus_of(job['gpus'], job['gpu_type'])}" if job["gpus"] else ""
        line = one_line(job) + size
        if line != before:
            say(line)
            before = line
        if job["ended_s"] is not None:
            return job
        time.sleep(LOOK_S)
        job = client.describe(job["id"], patiently=True)


def _show_dry_run(preview: dict[str, Any], as_json: bool) -> None:
    for warning in preview["warnings"]:
        say(f"ignored {warning}")
    if as_json:
        show_json(preview)
        return
    if preview["gpus"]:
        nodes = ", ".join(f"{gpus} on {node}" for node, gpus in preview["nodes"].items())
        when = when_of(preview["start"], preview["now"])
        gpus = gpus_of(preview["gpus"], preview["gpu_type"])
        show_line(f"{preview['name']} would start {when} with {gpus} ({nodes})")
        end = when_of(preview["end"], preview["now"])
        show_line(f"it would end {end}" if end else "when it would end is not foreseen")
    else:
        show_line(f"{preview['name']} would wait; when it would start is not foreseen")
    for line in preview["assumed"]:
        say(f"assumed: {line}")
