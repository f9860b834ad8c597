"""A submission: which kind of file it is, and what job it describes."""

import os
import re
import stat
from dataclasses import replace
from pathlib import Path, PurePath

from stretto.errors import InputError
from stretto.jobfile.kubeflow import is_kubernetes, spec_of_manifest
from stretto.jobfile.parts import NAME, check_name, plain
from stretto.jobfile.skypilot import is_skypilot, spec_of_task
from stretto.jobfile.slurm_script import spec_of_script
from stretto.jobfile.spec import JobSpec
from stretto.jobfile.stretto_file import spec_of
from stretto.jobfile.yaml_tree import Entry, Section, kind_of, read_tree

MOST_WARNINGS = 100
LONGEST_MESSAGE = 400
MOST_BYTES = 1 << 20  # a job file is written by hand; data belongs elsewhere
# Of a command, or of a variable: Linux starts nothing with a text of 128 KiB or more.
MOST_BYTES_OF_ONE = 120_000

SCRIPT = re.compile(
    r"#!|#SBATCH\b|(?:[^\S\n]*(?:#[^\n]*)?\n)*#SBATCH\b"
)  # SBATCH before anything but comments

# JSON is YAML but for this: a character beyond U+FFFF has two escapes. Before them is no odd backslash.
PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


def read_submission(
    source: Path | str, where: str = "job file", workdir: str = "", name: str = ""
) -> tuple[JobSpec, tuple[str, ...]]:
    """The job in a file (a Path) or a text (a str), and what of it means nothing here.

    It is a job file of ours, a batch script with `#SBATCH` lines, a task of SkyPilot, or a TrainJob or
    PyTorchJob of Kubeflow. They are told apart by what is in them. where: what messages call a text, and the
    name of its file, if it has one. workdir: where the job runs if it does not say so itself; manifests of
    Kubernetes never run there. name: of the job, whatever its file says. Raises InputError.
    """
    if name:
        check_name("name", name)
    if isinstance(source, Path):
        where = plain(str(source), LONGEST_MESSAGE)
        text = _text_of(source)
    else:
        text = source
        if len(text) > MOST_BYTES or len(text.encode(errors="replace")) > MOST_BYTES:
            raise InputError(f"{where}: expected at most {MOST_BYTES} bytes")
    stem = PurePath(source if isinstance(source, Path) else where).name.split(".")[0]
    spec, warnings = _read(text, where, stem if NAME.fullmatch(stem) else "job", workdir)
    spec = replace(spec, name=name) if name else spec
    _check_lengths(spec, where)
    shown_warnings = [plain(warning, LONGEST_MESSAGE) for warning in warnings[:MOST_WARNINGS]]
    more = len(warnings) - len(shown_warnings)
    return spec, (*shown_warnings, *([f"and {more} more of that kind"] if more else []))


def _read(text: str, where: str, default_name: str, workdir: str) -> tuple[JobSpec, tuple[str, ...]]:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if SCRIPT.match(text):
        spec, warnings = spec_of_script(text, where, default_name)
        return _in(spec, workdir), warnings
    if text.startswith("{"):
        text = PAIR.sub(_one_escape, text)
    tree = read_tree(text, where)
    if not isinstance(tree, Section):
        raise InputError(f"{where}: expected keys and values, got {kind_of(tree)}")
    entry = Entry(where, tree)
    if is_kubernetes(tree):
        return spec_of_manifest(entry, default_name)
    if is_skypilot(tree):
        spec, warnings = spec_of_task(entry, default_name)
        return _in(spec, workdir), warnings
    return _in(spec_of(entry, default_name), workdir), ()


def _check_lengths(spec: JobSpec, where: str) -> None:
    """Here and not in the specification, since a log may have longer ones that were taken once."""
    texts = {
        "run, with setup": spec.run + spec.setup,
        **{f"envs.{key}": value for key, value in spec.envs.items()},
    }
    for name, text in texts.items():
        if (count := len(text.encode(errors="replace"))) > MOST_BYTES_OF_ONE:
            raise InputError(
                f"{where}: {name}: expected at most {MOST_BYTES_OF_ONE} bytes, got {count}: keep it in a file"
            )


def _one_escape(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return f"{pair[1]}\\U{0x10000 + (high - 0xD800 << 10) + (low - 0xDC00):08x}"


def _in(spec: JobSpec, workdir: str) -> JobSpec:
    return replace(spec, workdir=workdir) if workdir and not spec.workdir else spec


def _text_of(path: Path) -> str:
    """The text of a plain file, of which never more is read than may be there."""
    try:
        # Without waiting: a pipe that nobody writes to would keep us.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{path}: expected a file")
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read: {reason}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text: {error.reason} at byte {error.start}") from None
