"""What hides from a killed supervisor: found by a control group, as an orphan, or by the files it holds.

A supervisor finds all that its worker started as long as it lives. If it is killed, a process may have a
session, an environment and a parent of its own. Then no sign is left of where it came from. Where this
machine lets us make control groups (version 2), each run has one, which nothing leaves by itself. Where it
does not, such processes become children of the agent. The agent knows its supervisors: any other child is
what a supervisor has lost.
"""

import os
import secrets
import signal
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stretto.agent.supervisor import Process, process_at, processes, send_to

GROUP = "stretto-"  # begins the name of a run's control group
FIRST_PROCESS = 1  # to which all orphans come, not only ours


def make_group() -> str:
    """The directory of a new control group below our own; "" where none can be made."""
    home = group_of_ours()
    if home is None:
        return ""
    made = home / f"{GROUP}{secrets.token_hex(16)}"
    with suppress(OSError):
        made.mkdir()
        if (made / "cgroup.procs").exists():
            return str(made)
    return ""


def group_of_ours() -> Path | None:
    """The control group (version 2) in which this process is; None where that is not to be seen."""
    with suppress(OSError, ValueError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        ours = next(line[3:] for line in lines if line.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            before, _, after = line.partition(" - ")
            _, _, _, root, point, *_ = before.split(" ")
            if after.startswith("cgroup2 ") and Path(ours).is_relative_to(root):
                return Path(point) / Path(ours).relative_to(root)
    return None


def is_group(path: str) -> bool:
    """Whether this names a control group that was made here."""
    return Path(path).name.startswith(GROUP) and (Path(path) / "cgroup.procs").exists()


def members(group: str) -> list[Process]:
    """The processes in a control group and in those below it."""
    found: list[Process] = []
    for path in Path(group).rglob("cgroup.procs") if is_group(group) else ():
        with suppress(OSError):
            numbers = path.read_text(encoding="ascii").split()
            found += [each for number in numbers if (each := process_at(int(number)))]
    return found


def kill(group: str, left: list[Process]) -> None:
    """SIGKILL to these, and to a whole control group at once where the kernel can."""
    if is_group(group):
        with suppress(OSError):
            (Path(group) / "cgroup.kill").write_text("1", encoding="ascii")
    for each in left:
        send_to(each, signal.SIGKILL)


def remove_group(group: str) -> None:
    """Remove a control group that holds no process any more, and those below it."""
    if is_group(group):
        below = sorted((path for path in Path(group).rglob("*") if path.is_dir()), reverse=True)
        for path in (*below, Path(group)):
            with suppress(OSError):
                path.rmdir()


def strangers(supervisors: Mapping[int, int]) -> list[Process]:
    """Children of ours that are no supervisors (process id: ticks), but orphans of one that was killed."""
    own = os.getpid()
    if own == FIRST_PROCESS:
        return []
    return [each for each in processes() if each.parent == own and supervisors.get(each.pid) != each.ticks]


def writers_of(path: Path, table: list[Process]) -> list[Process]:
    """Those that hold a file open to append to it, as everything does that a worker starts."""
    try:
        file = path.stat()
    except OSError:
        return []
    if not stat.S_ISREG(file.st_mode):
        return []
    return [each for each in table if each.pid != os.getpid() and appends_to(each.pid, file)]


def appends_to(pid: int, file: os.stat_result) -> bool:
    """Whether a process holds a file open to append to it."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError, ValueError):
                if os.path.samestat(each.stat(), file):
                    lines = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text(encoding="ascii").splitlines()
                    flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
                    if flags & os.O_APPEND and flags & os.O_ACCMODE != os.O_RDONLY:
                        return True
    return False
