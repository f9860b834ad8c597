"""Workers as real processes, forked from one that has imported torch, which takes seconds."""

import json
import multiprocessing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from stretto.testing.conductor import Conductor

PATIENCE_S = 120.0  # for what takes a second on a machine that has nothing else to do


@dataclass
class Scene:
    """Workers of one job, and what they saw."""

    folder: Path
    context: ForkServerContext
    conductor: Conductor
    workers: dict[str, ForkServerProcess] = field(default_factory=dict)

    @property
    def checkpoint_dir(self) -> Path:
        return self.folder / "checkpoints"

    def start(self, *names: str, env: Mapping[str, str] | None = None, **arguments: Any) -> None:
        """Workers of the conductor's job; env: what the service says beside how it is reached."""
        for name in names:
            own = self.conductor.environment_of(name) | {"STRETTO_CHECKPOINT_DIR": str(self.checkpoint_dir)}
            self.start_with(name, {**own, **(env or {})}, **arguments)

    def start_with(self, name: str, env: dict[str, str], **arguments: Any) -> None:
        from tests.sdk import digits

        worker = self.context.Process(target=digits.run, args=(env, self.folder, arguments))
        worker.start()
        self.workers[name] = worker

    def publish(self, *names: str, **more: Any) -> int:
        """A new generation, once all of it train."""
        number = self.conductor.publish(names, **more)
        try:
            self.conductor.wait_joined(number, PATIENCE_S)
        except TimeoutError as late:
            for name in names:
                status = self.workers[name].exitcode
                late.add_note(f"{name} ended with {status}; it printed:\n{self.printed(name)}")
            raise
        return number

    def wait_ready(self, *names: str) -> None:
        self.conductor.wait_until(lambda: {*names} <= {*self.conductor.ready}, PATIENCE_S, f"ready: {names}")

    def wait_seen(self, name: str, key: str) -> None:
        """Until that worker wrote a line with that key."""
        self.conductor.wait_until(
            lambda: any(key in line for line in self.lines(name)), PATIENCE_S, f"{key} of {name}"
        )

    def status(self, name: str) -> int | None:
        """How the worker ended; what it printed, where it does not end."""
        worker = self.workers[name]
        worker.join(PATIENCE_S)
        if worker.exitcode is None:
            pytest.fail(f"{name} does not end; it printed:\n{self.printed(name)}")
        return worker.exitcode

    def printed(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        return log.read_text() if log.exists() else ""

    def lines(self, *names: str) -> list[dict[str, Any]]:
        """What these workers wrote, or all of them."""
        files = [file for name in names or ("*",) for file in sorted(self.folder.glob(f"{name}.*.jsonl"))]
        return [line for file in files for line in written(file)]

    def lines_of(self, name: str) -> list[dict[str, Any]]:
        """What the process that is known by this name wrote."""
        files = self.folder.glob(f"*.{self.workers[name].pid}.jsonl")
        return [line for file in files for line in written(file)]

    def taken(self, epoch: int, up_to_step: int | None = None) -> list[int]:
        """Samples of an epoch that any worker trained on."""
        return sorted(
            index
            for line in self.lines()
            if line.get("epoch") == epoch and (up_to_step is None or line["step"] < up_to_step)
            for index in line["indices"]
        )

    def end(self) -> None:
        for worker in self.workers.values():
            if worker.is_alive():
                worker.kill()
            worker.join()
            worker.close()


def written(file: Path) -> list[dict[str, Any]]:
    """The lines of a file that are whole."""
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture(scope="session")
def nursery() -> ForkServerContext:
    """Where workers are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sdk.preload"])
    return context


@pytest.fixture
def scene(nursery: ForkServerContext, tmp_path: Path) -> Iterator[Scene]:
    with Conductor() as conductor:
        made = Scene(tmp_path, nursery, conductor)
        yield made
        made.end()
