"""A real service for tests: one that can be killed and started again, and whose log can be read."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.demo.own_service import OwnService, until
from stretto.service.eventlog import Recorded, open_store
from stretto.service.scheduling.replay import Difference, Replay
from stretto.service.state.state import State

PROGRAM = ("-m", "stretto.cli.app")


class Running(OwnService):
    """A service, its agent, and its log."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        store: str = "",
        program: Sequence[str] = PROGRAM,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.store = store or str(folder / "state" / "stretto.db")
        super().__init__(folder, [*options, "--store", self.store], program, env)

    def differences(self) -> tuple[int, int]:
        """Of the log decided again: how many decisions, and how many came out otherwise."""
        replay = Replay(State())
        with open_store(self.store) as store:
            for recorded in store.read():
                replay.next(recorded)
        replay.finish()
        return replay.decisions, len(replay.differences)

    def decided_otherwise(self, **rules: str) -> list[Difference]:
        """Decisions that come out otherwise where the configuration has these rules instead of its own."""

        def with_rules(recorded: Recorded) -> Recorded:
            if recorded.kind != "Configured":
                return recorded
            return replace(recorded, body={**recorded.body, **rules})

        return self.decided_from(with_rules)

    def decided_from(self, changed: Callable[[Recorded], Recorded]) -> list[Difference]:
        """Decisions that come out otherwise where events of the log are changed so."""
        replay = Replay(State())
        with open_store(self.store) as store:
            for recorded in store.read():
                replay.next(changed(recorded))
        replay.finish()
        return replay.differences

    def log_of_all(self) -> Iterator[tuple[int, float, str, dict[str, Any]]]:
        """(number, time, kind, body) of everything that has happened."""
        with open_store(self.store) as store:
            for one in store.read():
                yield one.seq, one.at_s, one.kind, dict(one.body)

    def stop_gently(self) -> None:
        """End the service and its agent as a person would, once no job is left."""
        assert self.kill(signal.SIGTERM) == 0
        if agent := self.agent():
            os.kill(agent, signal.SIGTERM)
        until(lambda: not self.agent(), what="the agent ends")
