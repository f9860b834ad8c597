"""A PostgreSQL server of the tests' own, on loopback, as an unprivileged user where we are root."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.service.ports import free_ports

BINARIES = "/usr/lib/postgresql/*/bin"  # where Debian puts them
TRIES = 5  # servers of tests that run beside each other may be given the same free port
RUNS_AS = ("postgres", "nobody")  # whoever of them there is: the server refuses to run as root


class PortTaken(Exception):
    """Somebody listens there since it was looked at."""


def binaries() -> Path | None:
    """The folder of the newest server's programs; None where none is installed."""
    found = [path for path in Path("/").glob(BINARIES.lstrip("/")) if (path / "initdb").exists()]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).parent)
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


@dataclass
class PostgreSQL:
    """A server that can be stopped, killed and started again on the same port."""

    programs: Path
    folder: Path
    port: int
    user: str | None
    durable: bool = False  # as a server is by default; tests do not wait for the disk

    @property
    def url(self) -> str:
        """Of its first database."""
        return self.url_of("postgres")

    def url_of(self, database: str, port: int | None = None) -> str:
        """Of a database, also through somebody else's port."""
        return f"postgresql://test@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder} "
            "-c max_connections=60"
        )
        options += "" if self.durable else " -c fsync=off -c full_page_writes=off"
        self._call(
            "pg_ctl",
            "-D",
            str(self.data),
            "-w",
            "-t",
            "120",
            "-l",
            str(self.folder / "log"),
            "-o",
            options,
            "start",
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop; `immediate` is as good as kill -9 of all its processes. Ends what its own pid file names."""
        if (self.data / "postmaster.pid").exists():
            self._call("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-m", mode, "stop")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def make(self) -> None:
        """Initialise an empty cluster of databases."""
        self._call("initdb", "-D", str(self.data), "-U", "test", "-A", "trust", "--no-sync", "-E", "UTF8")

    def _call(self, program: str, *arguments: str) -> None:
        prefix = (
            ["setpriv", f"--reuid={self.user}", f"--regid={pwd.getpwnam(self.user).pw_gid}", "--clear-groups"]
            if self.user
            else []
        )
        done = subprocess.run(
            [*prefix, str(self.programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE
            if program == "initdb"
            else subprocess.DEVNULL,  # the server keeps pipes open
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd="/",
            timeout=180,
        )
        if done.returncode != 0:
            said = done.stdout or (self.folder / "log").read_text()
            raise (
                PortTaken(said) if "Address already in use" in said else AssertionError(f"{program}: {said}")
            )


def new_server(skip: Callable[[str], None], durable: bool = False) -> PostgreSQL:
    """A running server in a folder of its own; `skip` is told where there can be none."""
    programs = binaries()
    user = None
    if programs is None:
        skip("no PostgreSQL server here (Debian: apt-get install postgresql)")
    elif os.getuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in RUNS_AS if name in names), None)
        if user is None or not shutil.which("setpriv"):
            skip("PostgreSQL refuses to run as root, and there is no setpriv or no other user here")
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="stretto-pg-"))  # not below pytest's, which others cannot enter
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    server = PostgreSQL(programs, folder, free_port(), user, durable)
    server.make()
    for _ in range(TRIES):
        try:
            server.start()
        except PortTaken:
            server.port = free_port()
        else:
            return server
    raise AssertionError(f"somebody else was quicker {TRIES} times")


def free_port() -> int:
    """A port that nobody listens on just now."""
    (port,) = free_ports("127.0.0.1", 1)
    return port
