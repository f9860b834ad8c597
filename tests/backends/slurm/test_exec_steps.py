"""The line through an srun, here through a shell: it is closed while somebody reads, or breaks."""

import asyncio
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from stretto.backends.slurm.exec_steps import StepLine, place_scripts

pytestmark = pytest.mark.processes


async def line_to(script: str) -> StepLine:
    """A line to a shell in the place of an srun."""
    complaints = TemporaryFile()  # noqa: SIM115  (the line closes it)
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=complaints,
        process_group=0,
    )
    return StepLine(process, complaints)


@pytest.mark.parametrize(
    "script",
    ["cat > /dev/null", "yes & cat > /dev/null; kill $!"],
    ids=["a program that says nothing", "one that says much"],
)
def test_a_line_that_is_closed_while_somebody_reads_lets_its_program_end(script: str) -> None:
    async def story() -> None:
        line = await line_to(script)

        async def read() -> None:
            while True:
                await line.readexactly(5)
                await line.readexactly(1000)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.2)  # it waits for more, or is in the midst of much
        line.close()
        assert line.ending is not None
        await line.ending
        assert line.process.returncode == 0
        assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], EOFError)

    asyncio.run(story())


def test_what_the_program_says_as_it_breaks_off_is_why() -> None:
    async def story() -> None:
        line = await line_to("echo 'srun: error: no such job' >&2; exit 1")
        with pytest.raises(OSError, match=r"^srun: error: no such job$"):
            await line.readexactly(5)
        line.close()
        assert line.ending is not None
        await line.ending

    asyncio.run(story())


def test_many_lines_at_once_place_the_scripts_once(tmp_path: Path) -> None:
    async def story() -> None:
        for number in range(20):
            folder = tmp_path / str(number)
            folder.mkdir()
            placed = await asyncio.gather(*(asyncio.to_thread(place_scripts, folder) for _ in range(8)))
            assert len({*placed}) == 1
            assert [each.name for each in folder.iterdir()] == [placed[0].parent.name]

    asyncio.run(story())
