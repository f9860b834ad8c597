"""The command `stretto`: every command by name, and the one place where errors become exit statuses."""

import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from stretto import __version__
from stretto.cli.commands import ELSEWHERE, CommandsByName
from stretto.cli.printing import say, shortened
from stretto.errors import StrettoError

DONE, FAILED, WRONG_INPUT = 0, 1, 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
NO_SUCH_FILE = {errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ELOOP}
NO_COMMAND = re.compile(r"No such command '([\w-]+)'")
LONGEST_PATH = 200  # characters that are shown of one
NUMBERS = {  # what typer's parser of numbers calls a wrong one -> what was expected
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}

# What typer raises where the words make no sense; it exports one leaf of that tree only.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="stretto",
    cls=CommandsByName,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help that reads the same on a pipe, without the import of its painter
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def stretto(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """An elastic scheduler for deep-learning training on shared GPU clusters."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its status: 0 done, 1 failed, 2 the input is wrong, 69 no service.

    Wrong input and failures are one line on standard error; what is a bug of ours is a traceback.
    """
    if sys.stdout is None:  # closed by a shell's >&-
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  (as long as we are)
    for stream in (sys.stdout, sys.stderr):  # a terminal shows what it can of what jobs print or are called
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(status_of(sys.argv[1:] if arguments is None else arguments))


def status_of(arguments: Sequence[str]) -> int:
    """The exit status of a command, after it has run and said what it has to say."""
    try:
        status = app(args=list(arguments), prog_name="stretto", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone away is noticed
    except StrettoError as failed:
        return _complain(str(failed), failed.exit_status)
    except UsageError as wrong:
        return _usage(wrong)
    except BrokenPipeError:
        _forget_output()
        return FAILED  # as typer does where it notices first
    except OSError as failed:
        return _outside(failed)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # which typer may turn into an exit status of its own
        return _complain("interrupted", INTERRUPTED)
    return int(status or DONE)


def _usage(wrong: Exception) -> int:
    """Help where nothing was asked for, else one line and where to read on."""
    message = wrong.format_message() if hasattr(wrong, "format_message") else str(wrong)
    if type(wrong).__name__ == "NoArgsIsHelpError":
        typer.echo(message, err=True)
        return WRONG_INPUT
    context = getattr(wrong, "ctx", None)
    command = context.command_path if context is not None else "stretto"
    unknown = NO_COMMAND.match(message)
    if (refused := _refused_value(wrong)) is not None:
        message = refused
    if unknown is not None and command == "stretto" and (ours := ELSEWHERE.get(unknown[1])):
        message = f"{unknown[0]}: expected 'stretto {ours}'"
    return _complain(f"{message.rstrip('.')} (see {command} --help)", WRONG_INPUT)


def _refused_value(wrong: Exception) -> str | None:
    """Which option has which value, and what is expected; None where the parser's own words say it."""
    errors = getattr(wrong.__cause__ or wrong.__context__, "errors", None)
    parameter = getattr(wrong, "param", None)
    if errors is None or parameter is None:
        return None
    error = errors()[0]
    if (expected := NUMBERS.get(error["type"])) is None:
        return None
    is_option = parameter.opts[0].startswith("-")
    name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
    got = shortened(str(error["input"]), LONGEST_PATH)
    return f"{name}: expected {expected.format(**error.get('ctx', {}))}, got {got!r}"


def _outside(failed: OSError) -> int:
    """What the machine refuses: a path that a user gave is wrong input, a full disk is a failure."""
    if failed.filename is None:
        _forget_output()  # what could not be written must not be tried again at the end
        return _complain(f"standard output: {failed.strerror or failed}", FAILED)
    path = shortened(str(failed.filename), LONGEST_PATH)
    status = WRONG_INPUT if failed.errno in NO_SUCH_FILE else FAILED
    return _complain(f"{path}: {failed.strerror}", status)


class _ClosedOutput(io.TextIOBase):
    """Stands for a standard output that is closed: a command that says nothing does not notice."""

    def write(self, text: str) -> int:
        """Refuse."""
        raise OSError(errno.EBADF, "it is closed")

    def fileno(self) -> int:
        """The number that it would have."""
        return 1


def _complain(message: str, status: int) -> int:
    """Say on one line what is wrong; the status to leave with."""
    say(f"stretto: {' '.join(message.split())}")
    return status


def _forget_output() -> None:
    """The output is read no more; what is still buffered goes nowhere, and nothing is said about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
