"""Programs beside workers as steps of their Slurm jobs; `srun` carries the bytes both ways.

A step is in the allocation and in the control groups of its job. So it has the GPUs and the limits of the
worker, and it ends with the job at the latest.
"""

import asyncio
import hashlib
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO

from stretto.agent import container, exec_session, supervisor
from stretto.backends.protocol import BackendUnreachable, Line
from stretto.backends.slurm.client import CREDENTIALS, Commands, words_of
from stretto.errors import InputError

LAST_S = 10.0  # for a step to end once its line is closed, before its srun is killed; chosen
WORDS_S = 2.0  # for srun to say why it has ended; chosen
PIECE = 1 << 16

# --overlap: it shares what the job has, of which its worker has all. --unbuffered: else Slurm holds back
# bytes until a line ends, and frames end none.
STEP = (
    *("srun", "--quiet", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--cpu-bind=none"),
    *("--unbuffered", "--export=ALL", "--job-name=exec"),
)
SCRIPT = """unset {credentials}
python={python}
[ -x "$python" ] || python=python3
exec "$python" -B -I -S {script} {run}
"""


@dataclass(eq=False)
class StepLine:
    """A `Line` through the standard input and output of an srun."""

    process: asyncio.subprocess.Process
    complaints: IO[bytes]
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)  # by one task at a time
    ending: "asyncio.Task[None] | None" = None

    async def readexactly(self, n: int, /) -> bytes:
        """So many bytes, nothing after `close`; raises EOFError, or OSError with what srun said."""
        assert self.process.stdout is not None
        async with self.reading:
            if self.ending is not None:
                raise EOFError
            try:
                return await self.process.stdout.readexactly(n)
            except EOFError:
                with suppress(TimeoutError):
                    async with asyncio.timeout(WORDS_S):
                        await self.process.wait()
                if not self.complaints.closed and (words := self._words()):
                    raise OSError(f"srun: {words}") from None
                raise

    def _words(self) -> str:
        self.complaints.seek(0)
        return words_of(self.complaints.read().decode(errors="replace")).removeprefix("srun: ")

    def write(self, data: bytes, /) -> None:
        """Leave bytes to be sent."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    async def drain(self) -> None:
        """Wait until there is room for more; raises OSError."""
        assert self.process.stdin is not None
        await self.process.stdin.drain()

    def close(self) -> None:
        """Let go of it: the program finds its line closed, and ends."""
        if self.ending is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        assert self.process.stdout is not None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_S), self.reading:  # whoever reads still has what it waits for
                    while await self.process.stdout.read(PIECE):
                        pass  # or an srun that cannot write would not end
                    await self.process.wait()
        finally:
            if self.process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
            self.complaints.close()


@dataclass
class ExecSteps:
    """Begins steps, and ends those that are left."""

    commands: Commands
    folder: Path  # that all nodes see
    lines: set[StepLine] = field(default_factory=set)

    async def begin(self, job_id: int, run: Path) -> Line:
        """A line to an exec session beside the worker of a Slurm job.

        Raises BackendUnreachable, and InputError where this machine has no srun.
        """
        environment = dict(self.commands.environment)
        if shutil.which("srun", path=environment.get("PATH", os.defpath)) is None:
            raise InputError("this needs srun: the machine of the service has none in PATH")
        try:
            script = await asyncio.to_thread(place_scripts, self.folder)
        except OSError as failure:
            raise BackendUnreachable(f"{self.folder} cannot be written to: {failure}") from failure
        complaints = TemporaryFile()  # noqa: SIM115  (the line closes it)
        try:
            process = await asyncio.create_subprocess_exec(
                *STEP,
                f"--jobid={job_id}",
                f"--chdir={run}",
                "/bin/sh",
                "-c",
                script_of(script, run),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=complaints,
                env=environment,
                process_group=0,
            )
        except OSError as failure:
            complaints.close()
            raise BackendUnreachable(f"srun cannot be run: {failure}") from failure
        line = StepLine(process, complaints)
        self.lines = {each for each in self.lines if each.ending is None or not each.ending.done()} | {line}
        return line

    async def close(self) -> None:
        """End all."""
        for line in self.lines:
            line.close()
        await asyncio.gather(*(line.ending for line in self.lines if line.ending), return_exceptions=True)
        self.lines = set()


def script_of(script: Path, run: Path) -> str:
    """What the step runs: the helper, by the Python of the service where its node has it."""
    return SCRIPT.format(
        credentials=" ".join(CREDENTIALS),
        python=shlex.quote(sys.executable),
        script=shlex.quote(str(script)),
        run=shlex.quote(str(run)),
    )


def place_scripts(folder: Path) -> Path:
    """A copy of the helper where all nodes see it, by what it contains; raises OSError."""
    modules = [Path(str(module.__file__)) for module in (exec_session, supervisor, container)]
    texts = {path.name: path.read_bytes() for path in modules}
    digest = hashlib.sha256(b"".join(texts.values())).hexdigest()[:12]
    place = folder / f"exec-{digest}"
    if not place.exists():
        part = Path(mkdtemp(prefix=f"exec-{digest}.", suffix=".part", dir=folder))  # others may do so now
        for name, text in texts.items():
            (part / name).write_bytes(text)
        try:
            part.rename(place)
        except OSError:  # another one was first
            shutil.rmtree(part, ignore_errors=True)
            if not place.exists():
                raise
    return place / modules[0].name
