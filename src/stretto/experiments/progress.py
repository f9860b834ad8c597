"""How far many simulations are: bars on a terminal, a line for each finished one elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stretto.experiments.spec import RunSpec
from stretto.report.wording import duration, plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Say = Callable[[str], None]

LEAST_WORK = 0.02  # chosen: of one simulation, before an estimate of the time left is worth a word


class Watcher:
    """Is told how far each simulation is, from any thread; keeps count and says nothing."""

    def __init__(self, specs: Sequence[RunSpec], reused: int) -> None:
        """`specs` are to be simulated, `kept` others need not be any more."""
        self.specs, self.kept = specs, reused
        self.done = 0
        self.parts: dict[int, float] = {}  # of each simulation that runs: the share of its jobs that ended
        self.lock = threading.RLock()
        self._over: set[int] = set()
        self._began = time.monotonic()

    def advance(self, index: int, done: int, jobs: int) -> None:
        """A simulation has so many of its jobs behind it."""
        with self.lock:
            if index not in self._over:  # what comes late must not bring it back
                self.parts[index] = done / max(jobs, 1)
                self.running(index, done, jobs)

    def finish(self, index: int, wall_s: float) -> None:
        """A simulation has ended after so many seconds."""
        with self.lock:
            self._over.add(index)
            self.parts.pop(index, None)
            self.done += 1
            self.ended(index, wall_s)

    def running(self, index: int, done: int, jobs: int) -> None:
        """Show it."""

    def ended(self, index: int, wall_s: float) -> None:
        """Show it."""

    @property
    def work(self) -> float:
        """Simulations done, with the shares of those that run."""
        return self.done + sum(self.parts.values())

    @property
    def how_far(self) -> str:
        """'13 of 90 done, about 40 min left'."""
        count = f"{self.kept + self.done} of {self.kept + len(self.specs)} done"
        left_s = time_left_s(time.monotonic() - self._began, self.work, len(self.specs))
        return count if left_s is None else f"{count}, about {duration(left_s, 2)} left"


def time_left_s(elapsed_s: float, work: float, simulations: int) -> float | None:
    """What is left if the rest goes on at the same pace; None while that is a guess, or nothing is left.

    Simulations of one table differ by more than ten times in length, so this is no more than about right.
    """
    if work < LEAST_WORK or work >= simulations:
        return None
    return elapsed_s / work * (simulations - work)


class Lines(Watcher):
    """A line for each simulation that has ended."""

    def __init__(self, specs: Sequence[RunSpec], reused: int, say: Say) -> None:
        """`say` is given the lines."""
        super().__init__(specs, reused)
        self._say = say

    def ended(self, index: int, wall_s: float) -> None:
        """Policy, trace and seconds, and how far all are."""
        spec = self.specs[index]
        self._say(f"{spec.policy} on {short(spec.trace)}, seed {spec.seed}: {wall_s:.1f} s; {self.how_far}")


class Bars(Watcher):
    """A bar for each simulation that runs, and one for all."""

    def __init__(self, specs: Sequence[RunSpec], reused: int, progress: "Progress") -> None:
        """The bars appear in `progress`."""
        super().__init__(specs, reused)
        self._progress = progress
        self._bars: dict[int, TaskID] = {}
        self._all: TaskID | None = None
        if len(specs) + reused > 1:
            total = reused + len(specs)
            self._all = progress.add_task("all", total=total, completed=reused, words=self.how_far)

    def running(self, index: int, done: int, jobs: int) -> None:
        """Move its bar."""
        from rich.markup import escape

        if index not in self._bars:
            spec = self.specs[index]
            title = escape(f"{spec.policy} · {short(spec.trace)}")
            self._bars[index] = self._progress.add_task(title, total=None, words="")
        if jobs:
            self._progress.update(self._bars[index], completed=done, total=jobs, words=f"{done}/{jobs} jobs")
        self._move_all()

    def ended(self, index: int, wall_s: float) -> None:
        """Take its bar away."""
        if index in self._bars:
            self._progress.remove_task(self._bars.pop(index))
        self._move_all()

    def _move_all(self) -> None:
        if self._all is not None:
            self._progress.update(self._all, completed=self.kept + self.work, words=self.how_far)


@contextmanager
def watching(specs: Sequence[RunSpec], reused: int, show: bool, say: Say | None) -> Iterator[Watcher]:
    """The watcher of their progress: bars where they can be shown, else lines where they can be said."""
    if say is not None and (reused or specs):
        before = "" if not reused else f", {reused if specs else 'all'} of them done before"
        say(f"{plural(reused + len(specs), 'simulation')}{before}")
    if not show or not specs:
        yield Watcher(specs, reused) if say is None else Lines(specs, reused, say)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bars(specs, reused, progress)


def short(trace: str) -> str:
    """A trace by its last folder and its name."""
    return "/".join(trace.split("/")[-2:]).removesuffix(".csv")
