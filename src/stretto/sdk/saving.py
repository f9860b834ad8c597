"""When checkpoints are written, what is in them, and how a training goes on from one."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto.sdk import group, state
from stretto.sdk.checkpoint import read_newest, write_checkpoint
from stretto.sdk.training import Training

log = logging.getLogger("stretto.sdk")


class Checkpoints:
    """Of one training, in one folder; None: there are none. Only rank 0 reads and writes."""

    def __init__(
        self, folder: Path | None, every_s: float, training: Training, tell: Callable[[int, Path], None]
    ) -> None:
        self.folder = folder
        self._every_s = every_s
        self._training = training
        self._tell = tell
        self._saved_step = 0
        self._saved_s = time.monotonic()
        self._writer: threading.Thread | None = None
        self._random: list[dict[str, Any]] | None = None  # by rank, of the checkpoint that this began from
        self._writing = threading.Lock()

    @property
    def is_due(self) -> bool:
        """Whether the last one is old enough."""
        return (
            self.folder is not None
            and time.monotonic() - self._saved_s >= self._every_s
            and self._training.progress.step > self._saved_step
        )

    def restore(self, rank: int) -> None:
        """As the rank that all others will take the state from: go on from the newest, if there is one."""
        found = read_newest(self.folder) if self.folder else None
        if found is None:
            return
        self._saved_step = found["other"]["progress"]["step"]  # first: nobody saves what is half adopted
        self._training.adopt_model(found["model"])
        self._training.adopt_other(found["other"])
        self._random = found["random"]
        self._set_random(rank)

    def share_random(self, rank: int, source: int) -> None:
        """Give each rank of a first generation the generators it had, or new ones where it had none."""
        self._random = group.tell(self._random, source)
        self._set_random(rank)

    def _set_random(self, rank: int) -> None:
        if self._random is not None and rank < len(self._random):
            state.set_random_state(self._random[rank], self._training.device)
        elif rank:
            state.seed_afresh(self._training.progress.seed, self._training.progress.step, rank)

    def save_together(self, rank: int, wait: bool) -> None:
        """All ranks at the same step: rank 0 writes, in the background unless it shall `wait`."""
        self._saved_s = time.monotonic()
        if self.folder is None:
            return
        random = group.gather(self._training.random_tree())
        if rank:
            return
        self.wait()
        content, step = self._content(random), self._training.progress.step
        self._writer = threading.Thread(
            target=self._write, args=(step, content), name="stretto-writer", daemon=True
        )
        self._writer.start()
        if wait:
            self.wait()

    def save_alone(self) -> None:
        """As rank 0, when no agreement is to be had: the last step that ended.

        Parameters change only in the optimiser's step, so they are those of that step even in the middle of
        the next; running averages of normalisation layers and the generators may be a pass ahead.
        """
        if self.folder is None:
            return
        writer = self._writer
        if writer is not None:  # perhaps of this very step
            writer.join()
        with self._training.changing:
            step = self._training.progress.step
            if step == self._saved_step:
                return
            with self._training.aside():
                content = self._content([self._training.random_tree()])
            self._write(step, content)

    def wait(self) -> None:
        """Until what is being written is complete."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _content(self, random: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "model": state.on_cpu(self._training.model_tree()),
            "other": state.on_cpu(self._training.other_tree()),
            "random": random,
        }

    def _write(self, step: int, content: dict[str, Any]) -> None:
        assert self.folder is not None
        with self._writing:
            try:
                path = write_checkpoint(self.folder, step, content)
            except OSError as failed:  # training goes on: the next one may find room
                log.error("no checkpoint of step %d: %s", step, failed)
                return
        self._saved_step = step
        self._tell(step, path)
