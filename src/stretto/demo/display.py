"""The jobs as they change: a live table on a terminal, plain lines on a pipe."""

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

HEADER = ("job", "state", "workers", "progress", "waited", "reason")
WIDTHS = {"job": 11, "state": 10, "progress": 15, "waited": 6}  # so that columns stay where they are


class Screen:
    """Where the jobs are shown; a context manager."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.live: Live | None = None
        self.shown: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, message: str) -> None:
        """A line above the table."""
        if self.live is not None:
            self.live.console.print(message, highlight=False, markup=False)
        else:
            print(message, flush=True)

    def show(self, at_s: float, jobs: Sequence[Mapping[str, Any]]) -> None:
        """How the jobs stand now."""
        if self.live is not None:
            self.live.update(self._table(at_s, jobs))
            return
        for job in jobs:
            now = (str(job["state"]), int(job["gpus"]))
            if self.shown.get(job["id"]) != now:
                before = self.shown.get(job["id"], ("", 0))[1]
                self.shown[job["id"]] = now
                size = f"{before} -> {now[1]}" if before != now[1] else f"{now[1]}"
                line = f"{at_s:6.1f} s  {job['name']:12} {now[0]:10} workers {size:7} {progress_of(job)}"
                print(line.rstrip(), flush=True)

    def _table(self, at_s: float, jobs: Sequence[Mapping[str, Any]]) -> "Table":
        from rich import box
        from rich.table import Table

        widths = {**WIDTHS, "workers": self.slots + 2}
        busy = sum(int(job["gpus"]) for job in jobs)
        title = f"{at_s:.0f} s, {busy} of {self.slots} workers are given"
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for name in HEADER:
            table.add_column(name, min_width=widths.get(name), no_wrap=True, overflow="ellipsis")
        for job in jobs:
            gpus = int(job["gpus"])
            bar = "■" * gpus + "·" * (min(int(job["gpus_max"]), self.slots) - gpus)
            cells = (job["name"], job["state"], f"{gpus} {bar}", progress_of(job))
            table.add_row(*map(str, cells), f"{job['waited_s']:.1f} s", _words(job["reason"]))
        return table


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


def progress_of(job: Mapping[str, Any]) -> str:
    """Epoch and figure, where the job has told them."""
    progress = job["progress"]
    parts = [f"epoch {progress['epoch']}"] if progress.get("epoch") is not None else []
    parts += [f"{progress['metric']:.4g}"] if progress.get("metric") is not None else []
    return ", ".join(parts)
