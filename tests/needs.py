"""What a test needs of a machine, and a guard under which a test fails that needs more than its markers say.

The markers decide which lane runs a test (see `tests/lanes.py`), so they must be true. The guard listens to
the audit events of Python while a test runs. What a fixture of a module or session has needed is needed by
every test that uses it, whichever of them ran first.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# What every machine has. A test that says one of these is in the lane of the others too, and may use them.
HERE = frozenset({"processes", "sockets", "sqlite"})
# Marker → what it allows. A marked test is in a lane that has processes, so that it may use them.
NEEDS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(sorted(HERE), HERE),
    "torch": frozenset({"torch"}),
    "parquet": frozenset({"parquet"}),
    "notebook": frozenset({"notebook"}) | HERE,
    "postgres": frozenset({"postgres"}),
    "ray": frozenset({"ray"}),
    "slurm": frozenset({"slurm"}),
    "kubernetes": frozenset({"kubernetes"}),
}
EVENTS = {
    "subprocess.Popen": "processes",
    "os.fork": "processes",
    "os.forkpty": "processes",
    "os.posix_spawn": "processes",
    "os.system": "processes",
    "socket.bind": "sockets",
    "socket.connect": "sockets",
    "sqlite3.connect": "sqlite",
}
# Packages of the extra `dev` that the extra `check` leaves out.
PACKAGES = {
    "torch": "torch",
    "transformers": "torch",
    "accelerate": "torch",
    "lightning": "torch",
    "sklearn": "torch",
    "pyarrow": "parquet",
    **dict.fromkeys(("pandas", "IPython", "nbclient", "nbformat", "resvg_py"), "notebook"),
    "psycopg": "postgres",
    "ray": "ray",
}
PROGRAMS = {
    **dict.fromkeys(("postgres", "pg_ctl"), "postgres"),
    **dict.fromkeys(("slurmctld", "slurmd"), "slurm"),
    **dict.fromkeys(("etcd", "kube-apiserver", "kubelet"), "kubernetes"),
}

IMPORTS = "imports "
Found = dict[str, str]  # need → the first event that shows it


def need_of(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    """The marker that an audit event asks for, and the event in words."""
    if event == "import":
        package = str(arguments[0]).partition(".")[0]
        return (PACKAGES[package], f"{IMPORTS}{package}") if package in PACKAGES else None
    if event not in EVENTS:
        return None
    if event == "subprocess.Popen":
        program = Path(os.fsdecode(arguments[0])).name
        return PROGRAMS.get(program, "processes"), f"starts {program}"
    return EVENTS[event], f"calls {event}{f' {arguments[-1]!r}' if len(arguments) > 1 else ''}"


def missing(found: Mapping[str, str], markers: set[str]) -> Found:
    """What was needed and is not allowed by the markers of a test.

    Of a marked test imports do not count: only the first test of a process that imports a package is seen to.
    """
    declared = markers & NEEDS.keys()
    allowed = HERE.union(*(NEEDS[marker] for marker in declared)) if declared else frozenset()
    return {
        need: event
        for need, event in found.items()
        if need not in allowed and not (declared and event.startswith(IMPORTS))
    }


def complaint(lacking: Mapping[str, str]) -> str:
    """One line that says which markers a test lacks, and why."""
    why = "; ".join(f"{event}: mark it pytest.mark.{need}" for need, event in lacking.items())
    return f"needs more than its markers say: it {why}"


class Listener:
    """Collects the needs of the test that runs now; events of older threads are not its own."""

    def __init__(self) -> None:
        self.open: list[Found] = []  # of the test, and of the shared fixtures that are being set up for it
        self.older: set[int] = set()
        self.paused: dict[object, list[Found]] = {}

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """As `sys.addaudithook` calls it, for everything that Python does: it must be quick."""
        if not self.open or (event not in EVENTS and event != "import"):
            return
        need = need_of(event, arguments)
        if need and threading.get_ident() not in self.older:
            for found in self.open:
                found.setdefault(*need)

    def begin(self, found: Found) -> None:
        """From now on, what happens is needed by this one too."""
        if not self.open:
            self.older = {thread.ident for thread in threading.enumerate() if thread.ident is not None}
            self.older.discard(threading.get_ident())
        self.open.append(found)

    def end(self) -> None:
        """Until now."""
        self.open.pop()

    def pause(self, why: object) -> None:
        """What happens until it is resumed is needed by nobody who is open now."""
        self.paused[why], self.open = self.open, []

    def resume(self, why: object) -> None:
        """Go on, where this has paused."""
        if why in self.paused:
            self.open = self.paused.pop(why)


class Guard:
    """The plugin: fails a test, or its teardown, that has needed what no marker of it allows."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.shared: dict[tuple[str, str, str], Found] = {}  # fixture, where it is defined, parameter → needs

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Every test begins with no needs."""
        item.stash[FOUND] = {}
        self.listener.begin(item.stash[FOUND])
        try:
            return (yield)
        finally:
            self.listener.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """A fixture that is shared keeps what it has needed."""
        if fixturedef.scope == "function":
            return (yield)
        key = (fixturedef.argname, fixturedef.baseid, repr(getattr(request, "param", None)))
        self.listener.begin(self.shared.setdefault(key, {}))
        try:
            return (yield)
        finally:
            self.listener.end()
            # It is cleared in the teardown of whichever test runs last, which may not even use it. What is
            # added last is done first.
            fixturedef.addfinalizer(partial(self.listener.pause, fixturedef))

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """A fixture has been cleared."""
        self.listener.resume(fixturedef)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """After the test itself."""
        return (yield from self.checked(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """After what it has left to clear; nothing that it was already told of."""
        return (yield from self.checked(item))

    def checked(self, item: pytest.Item) -> Iterator[None]:
        """Let a step of a test run, and fail it where markers are missing."""
        failure: BaseException | None = None
        answer = None
        try:
            answer = yield
        except BaseException as why:
            failure = why
        found = item.stash[FOUND]
        for key, needs in self.shared.items():
            if is_used(key, item):
                found |= {need: event for need, event in needs.items() if need not in found}
        told = item.stash.setdefault(TOLD, set())
        lacking = missing(found, {marker.name for marker in item.iter_markers()})
        lacking = {need: event for need, event in lacking.items() if need not in told}
        told |= {*lacking}
        if failure is not None:
            if lacking:
                failure.add_note(complaint(lacking))
            raise failure
        if lacking:
            pytest.fail(complaint(lacking), pytrace=False)
        return answer


FOUND, TOLD = pytest.StashKey[Found](), pytest.StashKey[set[str]]()


def is_used(key: tuple[str, str, str], item: pytest.Item) -> bool:
    """Whether a test uses a shared fixture, with that parameter."""
    name, where, param = key
    params = getattr(getattr(item, "callspec", None), "params", {})
    is_asked = name in getattr(item, "fixturenames", ()) and item.nodeid.startswith(where)
    return is_asked and param == repr(params.get(name))


def audited(spawn: Callable[..., int]) -> Callable[..., int]:
    """A function of `multiprocessing` that starts a process, which Python itself does not report."""

    def reported(path: Any, *arguments: Any) -> int:
        sys.audit("subprocess.Popen", path, arguments, None, None)
        return spawn(path, *arguments)

    return reported


def pytest_configure(config: pytest.Config) -> None:
    """Listen from now on: an audit hook cannot be taken back."""
    from multiprocessing import util

    listener = Listener()
    sys.addaudithook(listener.hook)
    util.spawnv_passfds = audited(util.spawnv_passfds)
    config.pluginmanager.register(Guard(listener), "needs-guard")
