"""What a service wants of worker jobs of Slurm after another has followed it is refused."""

import asyncio
from pathlib import Path

import pytest

from stretto.backends.protocol import Fences, StaleLeader, WorkerStart
from stretto.backends.slurm.backend import SlurmBackend
from stretto.backends.slurm.options import SlurmOptions

pytestmark = [pytest.mark.slurm, pytest.mark.large]


def test_commands_of_a_leader_that_was_followed_by_another_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        first, second = (SlurmBackend(SlurmOptions(), "s", tmp_path) for _ in range(2))
        assert isinstance(first, Fences)
        for one in (first, second):
            one.adopt()
        first.epoch, second.epoch = 1, 2
        await first.delete_logs("1")
        assert first.looking.leads()
        await second.delete_logs("1")
        with pytest.raises(StaleLeader, match="leader 1 has been followed by leader 2") as refused:
            await first.delete_logs("1")
        assert refused.value.epoch == 2
        with pytest.raises(StaleLeader):
            await first.start(WorkerStart("1.1.0", "1", "n1", (0,), "true", {}))
        assert not first.looking.leads()
        assert second.looking.leads()

    asyncio.run(story())
