"""GPU time that was used, row by row, and what a report makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.report.wording import digits, plural, share

USES = ("useful", "unsaved", "lost", "idle")  # what GPUs are held for; every second is one of them
MEANINGS = {
    "useful": "Training up to a checkpoint, or up to an end with success.",
    "unsaved": "Training since the last checkpoint of an attempt that goes on. It becomes useful or lost.",
    "lost": "Training since the last checkpoint when an attempt was stopped or failed, and GPUs held until "
    "all workers train again, and pauses for resizes in place.",
    "idle": "GPUs held before the first start, while workers come up.",
    "charged": "What a row has to answer for: lost time is charged to whoever caused it, all else to the "
    "user and queue of the job. Over all rows it is what was held.",
}
NOBODY = "(none)"  # the cluster itself, or a job without a queue


@dataclass(frozen=True, slots=True)
class Use:
    """GPU-hours of one row, or of several together."""

    hours: Mapping[str, float]  # by use
    charged_h: float
    cost: float | None  # None: nothing has a price
    unpriced_h: float

    @property
    def held_h(self) -> float:
        """GPU-hours of all uses."""
        return sum(self.hours.values())

    def part(self, use: str) -> float:
        """The share of what was held; NaN where nothing was."""
        return self.hours[use] / self.held_h if self.held_h else float("nan")


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What `stretto usage` was told, and what the service answered."""

    by: tuple[str, ...]  # as they were asked for, a period among them
    period: str  # "day", "week", "month", or "" without one
    rows: Sequence[Mapping[str, Any]]  # as the service answers
    start: str = ""  # "": from the first usage on
    end: str = ""  # "": until now
    zone: str = "UTC"
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    made: str = ""  # when, in words

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of a row that name it."""
        return tuple("period" if word == self.period else word for word in self.by)

    @property
    def span(self) -> str:
        """From when to when, in words."""
        start = f"from {self.start}" if self.start else "from the first job on"
        return f"{start} {f'to {self.end}' if self.end else 'until now'}, {self.zone}"

    @property
    def total(self) -> Use:
        """All rows together."""
        return together(self.rows)

    @property
    def groups(self) -> dict[str, Use]:
        """By all but the period, most GPU-hours first; empty where only a period was asked for."""
        names = [name for name in self.names if name != "period"]
        if not names:
            return {}
        found = _grouped(self.rows, names)
        return dict(sorted(found.items(), key=lambda item: (-item[1].held_h, item[0])))

    @property
    def periods(self) -> dict[str, Use]:
        """By period, the earliest first; empty without one."""
        return dict(sorted(_grouped(self.rows, ["period"]).items())) if self.period else {}

    @property
    def title(self) -> str:
        """GPU time by what."""
        return f"GPU time by {' and '.join(self.by)}"


def together(rows: Sequence[Mapping[str, Any]]) -> Use:
    """The sum of rows; its cost is what those with a price cost."""
    costs = [row["cost"] for row in rows if row["cost"] is not None]
    return Use(
        {use: sum(row[f"{use}_gpu_seconds"] for row in rows) / 3_600 for use in USES},
        sum(row["charged_gpu_seconds"] for row in rows) / 3_600,
        sum(costs) if costs else None,
        sum(row["unpriced_gpu_seconds"] or 0.0 for row in rows) / 3_600,
    )


def claim(report: UsageReport) -> str:
    """The result in one sentence."""
    total = report.total
    if not total.held_h:
        return "No GPU was used."
    wasted = total.part("lost") + total.part("idle")
    useful = f"{share(total.part('useful'))} of them trained usefully"
    return f"{digits(total.held_h)} GPU-hours were held: {useful}, {share(wasted)} were lost or idle."


def most(report: UsageReport) -> str:
    """Which row has the most, in a sentence; empty where there is one row or none."""
    groups = report.groups
    if len(groups) < 2 or not report.total.held_h:
        return ""
    name, use = next(iter(groups.items()))
    what = " and ".join(word for word in report.by if word != report.period)
    return (
        f"Of {plural(len(groups), 'row')} by {what}, {name} has the most: "
        f"{share(use.held_h / report.total.held_h)}."
    )


def name_of(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """What a row is called."""
    return " · ".join(str(row[name]) or NOBODY for name in names)


def _grouped(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Use]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(name_of(row, names), []).append(row)
    return {name: together(members) for name, members in groups.items()}
