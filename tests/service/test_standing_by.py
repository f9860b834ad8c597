"""What a standby does when it is to end just when it would lead."""

import asyncio
import os
import signal
from typing import Any, cast

import pytest
from tests.service.test_leadership import PlayedLead

from stretto.service.eventlog import Store
from stretto.service.http.connections import Listener
from stretto.service.http.rate_limits import Limits
from stretto.service.recovery import Recovery
from stretto.service.standby import stand_by

pytestmark = pytest.mark.sockets


class LogWithoutLeader:
    """A log whose last leader has ended; this process is told to end while it takes the lead."""

    def lead(self) -> PlayedLead:
        os.kill(os.getpid(), signal.SIGTERM)
        return PlayedLead()

    def read_on(self) -> None:
        """Nothing new."""


def test_a_standby_that_is_told_to_end_while_it_is_promoted_ends() -> None:
    log: Any = LogWithoutLeader()
    listening = Listener()
    listening.bind(("127.0.0.1", 0))

    async def promoted() -> object:
        return await stand_by(
            cast("Store", log), lambda: cast("Recovery", log), listening, None, Limits(), announce=print
        )

    with listening:
        assert asyncio.run(promoted()) is None
