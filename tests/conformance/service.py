"""The service of the shipped suite, whose clock, open files and log tests can reach."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.world import World
from tests.service.crash.strikes import JUMPING
from tests.service.running import PROGRAM, Running

from stretto.service.emulated.truth import DURATION, SAVING
from stretto.testing.services.fixture import BEAT_S, DEAD_AFTER_S, ENDLESS, LOOK_S, ServiceFixture

__all__ = ["BEAT_S", "DEAD_AFTER_S", "ENDLESS", "LOOK_S", "StruckService"]

LIMITED = str(Path(__file__).with_name("limited.py"))
EMULATED_TRAINING = {"model": "resnet18-cifar10", "batch": {"policy": "adaptive", "init": 256}, "labels": {}}


class StruckService(ServiceFixture):
    """One service for all tests over one cluster; each leaves it without open jobs.

    files: that the service may have open; 0: as many as there may be.
    """

    running: Running

    def __init__(
        self, world: World, folder: Path, dead_after_s: float = DEAD_AFTER_S, files: int = 0
    ) -> None:
        self.files, self.clocks = files, folder / "clocks"
        self.clocks.mkdir(parents=True, exist_ok=True)
        super().__init__(world, folder, dead_after_s)

    def own_service(self, options: Sequence[str]) -> Running:
        """The service, which does not run yet."""
        usual = tuple(self.world.program) == PROGRAM
        program = (str(JUMPING),) if usual else tuple(self.world.program)
        if self.files:
            program = (LIMITED, str(self.files), *program)
        return Running(self.folder, *options, program=program, env={**os.environ, "CLOCKS": str(self.clocks)})

    def set_clock(self, by_s: float) -> None:
        """Set the time of day that the service sees, as somebody does who sets it wrong, or right again."""
        wall = self.clocks / "wall"
        known_s = float(wall.read_text(encoding="ascii")) if wall.exists() else 0.0
        wall.write_text(str(known_s + by_s), encoding="ascii")

    @property
    def tells(self) -> bool:
        """Whether workers are processes, which leave notes."""
        return self.world.name != "emulated"

    def entries_of(self, manner: str, lasts_s: float, arguments: Sequence[float]) -> Mapping[str, Any]:
        """Labels say what an emulated cluster is to make of a job."""
        saving = {SAVING: f"{arguments[0] if arguments else ENDLESS:g}"} if manner == "polite" else {}
        labels = {"labels": {DURATION: f"{lasts_s:g}", **saving}}
        return {**labels, **({} if self.tells or manner != "train" else EMULATED_TRAINING)}
