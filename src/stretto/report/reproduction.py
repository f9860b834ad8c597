"""A published table beside ours: what the page is told, and what it makes of the ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log

import numpy as np

from stretto.report.content import Note
from stretto.report.wording import digits, plain, plural, times
from stretto.sim.summary import BY_KEY

# Chosen: how many times too large or too small a figure may be, and what the page calls that.
NEARNESS = (
    (1.1, "within 10 %"),
    (1.5, "within 1.5×"),
    (3.0, "within 3×"),
    (float("inf"), "farther off"),
)
# In which the name of a metric may end, as they are written.
UNITS = {"h": "h", "min": "min", "s": "s", "ms": "ms", "gpus": "gpus", "bytes": "bytes", "percent": "%"}


@dataclass(frozen=True, slots=True)
class Published:
    """One figure of the paper and ours."""

    row: str
    metric: str
    paper: float | None  # None: not published
    ours: float | None  # None: it does not apply
    bound: str = ""  # "at most", "at least": the paper states a limit, and no figure

    @property
    def is_kept(self) -> bool | None:
        """Whether ours keeps the paper's limit; None where it states none, or ours is not known."""
        if not self.bound or self.paper is None or self.ours is None or self.ours != self.ours:
            return None
        return self.ours <= self.paper if self.bound == "at most" else self.ours >= self.paper

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        if self.paper is None or self.ours is None or self.paper == 0:
            return None
        return self.ours / self.paper

    @property
    def factor(self) -> float | None:
        """How many times too large or too small ours is, at least 1; infinite for zero or a changed sign.

        None beside a limit, which is kept or not.
        """
        ratio = self.ratio
        if self.bound or ratio is None or not isfinite(ratio):
            return None
        return max(ratio, 1 / ratio) if ratio > 0 else float("inf")

    @property
    def nearness(self) -> int | None:
        """The position in NEARNESS; None where there is nothing to compare."""
        factor = self.factor
        return None if factor is None else next(n for n, (most, _) in enumerate(NEARNESS) if factor <= most)


@dataclass(frozen=True, slots=True)
class Source:
    """Something that was read."""

    what: str
    is_real: bool
    note: str


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A published table that was made again."""

    name: str
    paper: str
    figures: tuple[Published, ...]
    sources: tuple[Source, ...]
    notes: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()  # a few words each, for the line under the title
    method: tuple[Note, ...] = ()
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    made: str = ""  # when, in words; passed in, so that the same table gives the same bytes
    policies: tuple[str, ...] = ()  # that ran, as rows name them

    @property
    def compared(self) -> tuple[Published, ...]:
        """The figures of which the paper has a value to compare with."""
        return tuple(one for one in self.figures if one.factor is not None)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that have the same metrics, as one table."""

    metrics: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Published, ...]], ...]  # name, a figure for each metric


@dataclass(frozen=True, slots=True)
class Count:
    """How many figures come out so near."""

    nearness: int
    words: str
    figures: int
    part: float  # of all that can be compared


def blocks_of(figures: Sequence[Published]) -> tuple[Block, ...]:
    """The figures as tables, rows and metrics in the order in which they first appear."""
    rows: dict[str, dict[str, Published]] = {}
    for figure in figures:
        rows.setdefault(figure.row, {})[figure.metric] = figure
    blocks: dict[tuple[str, ...], list[tuple[str, tuple[Published, ...]]]] = {}
    for name, by_metric in rows.items():
        blocks.setdefault(tuple(by_metric), []).append((name, tuple(by_metric.values())))
    return tuple(Block(metrics, tuple(named_rows)) for metrics, named_rows in blocks.items())


def counts_of(figures: Sequence[Published]) -> tuple[Count, ...]:
    """How many figures come out how near, the nearest first."""
    found = [one.nearness for one in figures if one.nearness is not None]
    return tuple(
        Count(nearness, words, found.count(nearness), found.count(nearness) / max(len(found), 1))
        for nearness, (_, words) in enumerate(NEARNESS)
    )


def claim(figures: Sequence[Published]) -> str:
    """The result in one sentence."""
    factors = [figure.factor for figure in figures if figure.factor is not None]
    if not factors:
        return limits(figures) or "The paper prints no figure to compare with."
    if len(factors) == 1:
        return f"The one figure comes out within {times(factors[0])} of the paper's."
    middle = times(float(np.median(factors)))
    return f"Half of the {len(factors)} figures come out within {middle} of the paper's."


def limits(figures: Sequence[Published]) -> str:
    """How many limits of the paper's text are kept, in a sentence; empty where it states none."""
    kept = [one.is_kept for one in figures if one.is_kept is not None]
    if not kept:
        return ""
    if len(kept) == 1:
        return f"The one limit that the paper's text states is {'' if kept[0] else 'not '}kept."
    return f"{sum(kept)} of {len(kept)} limits that the paper's text states are kept."


def farthest(figures: Sequence[Published]) -> str:
    """Which figure is farthest off, in a sentence; empty where all are near."""
    known = [one for one in figures if one.nearness]
    if not known:
        return ""
    worst = max(known, key=lambda one: one.factor or 0.0)
    ratio = worst.ratio if worst.ratio is not None else float("nan")
    return f"Farthest off: {title_of(worst.metric)} of {worst.row}, {times(ratio)} of the paper's."


def metrics_of(figures: Sequence[Published]) -> Mapping[str, tuple[Published, ...]]:
    """The figures that can be compared, by metric."""
    found: dict[str, list[Published]] = {}
    for one in figures:
        if one.factor is not None:
            found.setdefault(one.metric, []).append(one)
    return {metric: tuple(ones) for metric, ones in found.items()}


def title_of(metric: str) -> str:
    """A metric as readers know it, without its unit."""
    stem, unit = _split(metric)
    for key in (metric, f"{stem}_s", stem):
        if key in BY_KEY and (unit or key == metric):
            return BY_KEY[key].title
    return stem.replace("_", " ")


def unit_of(metric: str) -> str:
    """The unit that the name of a metric ends in; empty without one."""
    if metric in BY_KEY and BY_KEY[metric].quantity == "ms":
        return "ms"
    return _split(metric)[1]


def definition_of(metric: str) -> str:
    """What a metric means, where the reports know it; else its name."""
    stem, unit = _split(metric)
    known = BY_KEY.get(metric) or (BY_KEY.get(f"{stem}_s") if unit else None)
    return f"{known.definition} ({metric})" if known else metric


def spread_of(figures: Sequence[Published]) -> str:
    """Between which ratios the figures lie, in words."""
    ratios = [one.ratio for one in figures if one.ratio is not None and isfinite(one.ratio)]
    if len(ratios) < 2:
        return ""
    middle = float(np.exp(np.mean([log(ratio) for ratio in ratios]))) if min(ratios) > 0 else float("nan")
    mean = f", geometric mean {times(middle)}" if isfinite(middle) else ""
    return f"{plural(len(ratios), 'figure')} between {times(min(ratios))} and {times(max(ratios))}{mean}."


def number(value: float | None) -> str:
    """One of our figures as the table prints it."""
    return digits(float("nan") if value is None else value)


def published(value: float | None) -> str:
    """One of the paper's figures, without digits that it does not have: 0.6, not 0.600."""
    if value is None or not isfinite(value):
        return number(value)
    return plain(round(value) if abs(value) >= 1_000 else float(f"{value:.3g}"))


def _split(metric: str) -> tuple[str, str]:
    stem, _, unit = metric.rpartition("_")
    is_part = stem.endswith(("_per", "_gpu"))  # of a unit of two words: 'samples_per_s', 'batch_gpu_min'
    return (stem, UNITS[unit]) if stem and unit in UNITS and not is_part else (metric, "")
