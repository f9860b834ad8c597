"""Programs of Slurm that are wrapped by scripts of a site, as many are."""

import asyncio
import os
from pathlib import Path

import pytest

from stretto.agent import supervisor
from stretto.backends.protocol import BackendUnreachable
from stretto.backends.slurm.client import Commands
from stretto.backends.slurm.options import SlurmOptions

pytestmark = [pytest.mark.slurm, pytest.mark.large]

PATIENCE_S = 60.0
# The program below it goes on when the script is killed, and holds what the script was given to write to.
WRAPPER = "#!/bin/sh\necho $$ >{begun}\nsleep 600\necho never\n"


@pytest.fixture
def wrapped(tmp_path: Path) -> Path:
    """A command that does not answer, by a script with a program below it."""
    path = tmp_path / "squeue"
    path.write_text(WRAPPER.format(begun=tmp_path / "begun"))
    path.chmod(0o700)
    return path


def group_of(wrapped: Path) -> list[int]:
    """Processes of the script's group."""
    group = int((wrapped.parent / "begun").read_text())
    return [one.pid for one in supervisor.processes() if group_id(one.pid) == group]


def group_id(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def test_a_wrapped_command_that_does_not_answer_in_time_is_given_up_with_all_below_it(wrapped: Path) -> None:
    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(BackendUnreachable, match=r"did not answer .*squeue within 1 s"):
                await Commands(SlurmOptions(answer_s=1.0)).run(str(wrapped), text="asked")

    asyncio.run(story())
    assert group_of(wrapped) == []


def test_whoever_waits_for_a_wrapped_command_can_be_cancelled(wrapped: Path) -> None:
    async def story() -> None:
        asking = asyncio.create_task(Commands(SlurmOptions(answer_s=600.0)).run(str(wrapped)))
        async with asyncio.timeout(PATIENCE_S):
            while not (wrapped.parent / "begun").exists():
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(story())
    assert group_of(wrapped) == []


def test_what_is_asked_and_said_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "sbatch"
    path.write_text("#!/bin/sh\ncat\necho complaint >&2\n")
    path.chmod(0o700)
    text = "x" * 3_000_000
    assert asyncio.run(Commands(SlurmOptions()).run(str(path), text=text)) == text
