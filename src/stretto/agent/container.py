"""The container of a worker: how its command is run in an image, by what its node has for that.

The supervisor stays outside: signals, exit status and what outlives the command are seen as ever. Standard
library only, beside supervisor.py. No command line has anything of the environment: apptainer and
srun pass it on.

A start.json with a `container` names the `image`, `by` which tool it runs and perhaps the `program`. `binds`
are folders that are to be seen inside beside those that the worker needs. The first process inside writes its
id to the file `inside` of the run. As long as that is missing, the container has not begun.
"""

from __future__ import annotations  # nodes of a cluster may have an older Python than we

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

BY = (APPTAINER := "apptainer", PYXIS := "pyxis")  # singularity has the options of apptainer
PROGRAMS = ("apptainer", "singularity")
INSIDE = "inside"  # the file of a run
NO_CONTAINER, NOT_BEGUN = 127, 126  # how a worker ends whose node can run no container, or not this one
MOST_WORDS = 400  # of what a tool says; chosen
TAIL_BYTES = 16_384  # of a log, where a tool has said it; chosen

# Of the node's own surroundings, what means nothing inside, or something else. What a job's file names stays.
NODES_OWN = (
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "MODULEPATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
NODES_OWN_BEGIN = ("PYTHON", "CONDA_")
OF_IMAGE = ("PATH", "LD_LIBRARY_PATH")  # that a tool sets by the image, unless it is told by another name

# Set inside by apptainer and by singularity, and of no use to another one that is begun from there.
SET_INSIDE = frozenset(
    f"{tool.upper()}_{name}"
    for tool in PROGRAMS
    for name in ("APPNAME", "COMMAND", "CONTAINER", "ENVIRONMENT", "NAME")
) | {"PS1", "PROMPT_COMMAND"}

# Further folders. Inside, these list every folder by where it is seen there, and none of those outside.
BINDING = tuple(f"{tool.upper()}_{name}" for tool in PROGRAMS for name in ("BIND", "BINDPATH"))

FIRST = """echo $$ >"$1" && shift
[ -e "${SSL_CERT_FILE:-/}" ] || unset SSL_CERT_FILE
[ -e "${SSL_CERT_DIR:-/}" ] || unset SSL_CERT_DIR
[ -d "${TMPDIR:-/}" ] || unset TMPDIR
exec "$@"
"""
STEP = (
    *("srun", "--quiet", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--cpu-bind=none"),
    *("--unbuffered", "--export=ALL", "--job-name=container"),
)
LIBRARIES = (("/dev/nvidiactl", "--nv"), ("/dev/kfd", "--rocm"))  # by a device, the option for its libraries


class NoContainer(Exception):
    """Why a node cannot run a container."""


def enter(run: Path, start: dict[str, Any]) -> None:
    """Change a start so that its command runs in its container, or only ends where there can be none.

    `container.enter` of it is then how another command gets in, before its working directory and the image.
    `container.binding` has the variables by which the tool was told of further folders.
    """
    wanted = start["container"]
    asked = start.get("asked_env") or {}
    cwd = start["cwd"] or str(run)
    how: list[str] = []
    try:
        folders = folders_of(run, start)
        if wanted["by"] == PYXIS:
            outer = srun_of(wanted["image"], folders, cwd)
        else:
            how = apptainer_of(program_of(wanted.get("program") or ""), folders, bool(start["gpus"]))
            outer = inside(how, cwd, wanted["image"])
    except (NoContainer, OSError) as failure:
        wanted["why"] = f"cannot start: {failure}"
        start["command"] = ["/bin/sh", "-c", f"exit {NO_CONTAINER}"]
        return
    wanted["enter"] = how
    seen = {**os.environ, **start["env"]}
    wanted["binding"] = {name: seen[name] for name in BINDING if name in seen}
    command = start["command"]
    if isinstance(command, str):
        command = ["/bin/sh", "-c", command]
    start["command"] = [*outer, "/bin/sh", "-c", FIRST, "sh", str(run / INSIDE), *command]
    for name in [name for name in (*os.environ, *start["env"]) if is_nodes_own(name) and name not in asked]:
        os.environ.pop(name, None)
        start["env"].pop(name, None)
    if how:
        start["env"] = kept_inside(start["env"], asked)


def kept_inside(env: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """An environment in which those of these variables that the image has, too, keep their values inside."""
    told = {name: env[name] for name in OF_IMAGE if name in names and name in env}
    others = {name: value for name, value in env.items() if name not in told}
    return {**others, **{f"{tool.upper()}ENV_{name}": told[name] for tool in PROGRAMS for name in told}}


def outside(env: Mapping[str, str], node: Mapping[str, str], binding: Mapping[str, str]) -> dict[str, str]:
    """What begins another container with the environment that is inside of one.

    node: the node's own. binding: what named further folders as the other one began.
    """
    own = {name: value for name, value in env.items() if name not in SET_INSIDE and name not in BINDING}
    return {**kept_inside(own, OF_IMAGE), **binding, "PATH": node.get("PATH", os.defpath)}


def is_nodes_own(name: str) -> bool:
    """Whether a variable is about files that the node has, and no image."""
    return name in NODES_OWN or name.startswith(NODES_OWN_BEGIN)


def folders_of(run: Path, start: dict[str, Any]) -> list[str]:
    """What of the node is seen inside, under its own name. Raises NoContainer, OSError."""
    env = start["env"]
    checkpoints = env.get("STRETTO_CHECKPOINT_DIR", "")
    if checkpoints:
        Path(checkpoints).mkdir(parents=True, exist_ok=True)
    named = [str(run), env.get("STRETTO_SETUP_DIR", ""), checkpoints, start["cwd"]]
    folders = [each for each in dict.fromkeys([*named, *start["container"].get("binds", ())]) if each]
    for folder in folders:
        if "," in folder or ":" in folder:
            raise NoContainer(f"{folder}: its container can see no folder with a comma or colon in its name")
        if not Path(folder).is_dir():
            raise NoContainer(f"{folder}: its container is to see this folder, which its node has not")
    return folders


def program_of(asked: str) -> str:
    """What runs containers here; raises NoContainer."""
    names = (asked,) if asked else PROGRAMS
    found = next((path for path in map(shutil.which, names) if path), "")
    if not found:
        raise NoContainer(f"its node has no {' or '.join(names)} to run its image")
    return found


def apptainer_of(program: str, folders: list[str], has_gpus: bool) -> list[str]:
    """How apptainer, or singularity, runs something, but for the working directory and the image."""
    libraries = [option for device, option in LIBRARIES if has_gpus and Path(device).exists()]
    return [program, "exec", *libraries, *(part for each in folders for part in ("--bind", each))]


def inside(how: list[str], cwd: str, image: str) -> list[str]:
    """The beginning of a command in a container of apptainer."""
    return [*how, "--pwd", cwd, address_of(image)]


def srun_of(image: str, folders: list[str], cwd: str) -> list[str]:
    """How pyxis runs a command: as a step of its job. It calls one of a registry REGISTRY#IMAGE."""
    registry, slash, rest = image.partition("/")
    if slash and registry and ("." in registry or ":" in registry) and "://" not in image:
        image = f"{registry}#{rest}"
    mounts = ",".join(f"{each}:{each}" for each in folders)
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")  # of its job, which steps do not inherit
    return [
        *STEP,
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        f"--container-image={image}",
        f"--container-mounts={mounts}",
        f"--container-workdir={cwd}",
    ]


def address_of(image: str) -> str:
    """An image for apptainer: a file or a folder by its path, anything else is of a registry."""
    is_path = image.startswith(("/", ".")) or image.endswith((".sif", ".simg", ".sqsh"))
    return image if is_path or "://" in image else f"docker://{image}"


def why_not_begun(run: Path, wanted: dict[str, Any]) -> str:
    """Why a container has not begun, by what its tool said last; "" where it has."""
    if first_process(run):
        return ""
    return wanted.get("why") or f"cannot start: {words_in(run / 'log') or 'its container did not begin'}"


def first_process(run: Path) -> int:
    """The id of the first process inside; 0 while there is none."""
    with suppress(OSError, ValueError):
        return int((run / INSIDE).read_text(encoding="ascii"))
    return 0


def group_of_step(first: int, start: dict[str, Any]) -> int:
    """The process group that a step of Slurm has on this node; 0 where the container is no such step.

    srun would end its step at once by what it is to pass on. The mark of the run tells that it is this one.
    """
    if start["container"]["by"] != PYXIS:
        return 0
    with suppress(OSError):
        if f"STRETTO_RUN={start.get('mark')}".encode() in Path(f"/proc/{first}/environ").read_bytes():
            return os.getpgid(first)
    return 0


def words_in(log: Path) -> str:
    """What a tool said of its failure, in one line; "" for nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    plain_lines = ["".join(filter(str.isprintable, uncoloured(line))).strip() for line in lines]
    for sign in ("FATAL", "[ERROR]", "error:", ""):
        if signed := [line for line in plain_lines if line and sign in line]:
            return " ".join(signed[-1].split())[:MOST_WORDS]
    return ""


def uncoloured(line: str) -> str:
    """A line without what gives it a colour on a terminal."""
    first, *others = line.split("\x1b[")
    return first + "".join(each.partition("m")[2] for each in others)
