"""What a demonstration shows: a live table or plain lines while jobs change, and a summary in the end."""

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

from collections.abc import Iterator
from itertools import pairwise

from stretto.demo.outcome import Outcome

LIVE_HEADER = ("job", "state", "workers", "progress", "waited", "reason")
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
        for name in LIVE_HEADER:
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


# ── the summary ───────────────────────────────────────────────────────────────────────────────────


SUMMARY_HEADER = ("job", "waited s", "took s", "resizes", "s lost", "reached", "alone")
STEPS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)  # of a column of the timeline
WAITS, ABSENT = ".", " "


def rows_of(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """A row for each job, under `HEADER`."""
    return [
        [
            outcome.name,
            _number(outcome.waited_s, 1),
            _number(outcome.jct_s, 1),
            str(outcome.resizes),
            _number(outcome.lost_s / outcome.resizes if outcome.resizes else None, 2),
            _number(outcome.reached, 4),
            _number(outcome.undisturbed, 4) + ("" if outcome.noise is None else f" ± {outcome.noise:.4f}"),
        ]
        for outcome in outcomes
    ]


def timeline(outcomes: Sequence[Outcome], width: int) -> Iterator[str]:
    """A line for each job: how many workers trained for it, from left to right."""
    names = max(len(outcome.name) for outcome in outcomes)
    end_s = max((at_s for outcome in outcomes for at_s, _ in outcome.sizes), default=0.0)
    columns = max(width - names - 2, 10)
    step_s = next((step for step in STEPS_S if end_s / step < columns), end_s / columns)
    yield f"workers over time, a character for each {step_s:g} s ({WAITS} is waiting)"
    for outcome in outcomes:
        bar = "".join(_during(outcome, index * step_s, (index + 1) * step_s) for index in range(columns))
        yield f"{outcome.name:{names}}  {bar}".rstrip()


def _during(outcome: Outcome, from_s: float, to_s: float) -> str:
    """The size that it had for most of this time; there from its submission until its end."""
    if not outcome.sizes or outcome.jct_s is None:
        return ABSENT
    came_s = outcome.came_s
    if to_s <= came_s or from_s >= came_s + outcome.jct_s:
        return ABSENT
    changes = [(came_s, 0), *outcome.sizes, (float("inf"), 0)]
    seconds_by_size: dict[int, float] = {}
    for (at_s, gpus), (until_s, _) in pairwise(changes):
        seconds_by_size[gpus] = seconds_by_size.get(gpus, 0.0) + max(
            min(until_s, to_s) - max(at_s, from_s), 0.0
        )
    most = max(seconds_by_size, key=lambda gpus: (seconds_by_size[gpus], gpus))
    return WAITS if most == 0 else str(most) if most < 10 else "+"


def findings(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Sentences about what the table does not show."""
    for outcome in outcomes:
        if outcome.state != "COMPLETED":
            yield f"{outcome.name}: {outcome.state}; it said last:"
            yield from (f"    {line}" for line in outcome.last_words)
        remarks = [outcome.samples] if outcome.samples else []
        remarks += [f"deadline {outcome.deadline}"] if outcome.deadline else []
        if remarks:
            yield f"{outcome.name}: {'; '.join(remarks)}"
    resizes = sum(outcome.resizes for outcome in outcomes)
    if resizes:
        lost_s = sum(outcome.lost_s for outcome in outcomes) / resizes
        yield f"{resizes} resizes in place; each cost {lost_s:.2f} s of training on average"
    waits = [(outcome.waited_s, outcome.name) for outcome in outcomes if outcome.waited_s is not None]
    if waits:
        longest_s, name = max(waits)
        yield f"longest wait for a first worker: {longest_s:.1f} s, of {name}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
