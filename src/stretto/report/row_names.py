"""From the names of a table's rows to where each stands in a figure: on a curve, or as a bar of a group.

A row is named by what it differs in: '320 GPUs: cornucopia', 'bert on 8 t4', 'half load, sia: session'.
What has no such form is a bar.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

FEWEST_POINTS = 3  # chosen: of a curve; two values are read as easily from two bars
MOST_BARS = 60  # chosen: in one chart; with more, what stands first in a name has charts of its own
MOST_SERIES = 8  # chosen: as many colours stay apart
ORDINALS = ("trace", "seed")  # a number behind these counts things, and measures nothing

_SUBFIGURE = re.compile(r"^([a-h](?:, [a-h])*) (?=[A-Z0-9])")  # 'b, c H_SLO: …': parts of the paper's figure
_BETWEEN = re.compile(r": |, | on |(?<=\S)/(?=\S)|\([^)]*\)")  # also what is in brackets, to pass over it
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
_GPU_TYPE = re.compile(r"[a-z]+\d+[a-z]*")
_RATIO = " / "  # 'baseline / lyra': one row over another, in no unit of its metric


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a row stands in its chart."""

    row: str  # its name
    series: str  # what has one colour; "" where there is only one
    category: str = ""  # beside which its bar stands; "" on a curve
    x: float = 0.0  # on a curve


@dataclass(frozen=True, slots=True)
class Layout:
    """One chart: its rows as curves over a number, or as bars."""

    about: str  # what all its rows have in common; may be empty
    axis: str  # what the number is, with its unit; "" for bars
    spots: tuple[Spot, ...]
    is_ratio: bool = False  # each row is one over another


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A name as a number and what stands around it."""

    before: str  # up to the part with the number
    prefix: str  # of the number, in its own part
    value: float
    unit: str
    rest: str  # of its part, behind a unit that others have too
    after: str

    @property
    def key(self) -> tuple[str, str]:
        """What the number measures."""
        return self.prefix, self.unit

    @property
    def series(self) -> tuple[str, str, str]:
        """All but the number."""
        return self.before, self.rest, self.after


def layouts_of(rows: Sequence[str], policies: Collection[str] = ()) -> tuple[Layout, ...]:
    """The charts of rows that have one metric, each row in one of them.

    policies: names that make a series where the parts of a name could be either.
    """
    groups: dict[tuple[str, bool], list[str]] = {}
    for row in dict.fromkeys(rows):
        match = _SUBFIGURE.match(row)
        groups.setdefault((match[1] if match else "", _RATIO in row), []).append(row)
    return tuple(
        layout
        for (subfigure, is_ratio), names in groups.items()
        for layout in _of_group(subfigure, is_ratio, names, policies)
    )


def parts_of(name: str) -> tuple[str, ...]:
    """A name at its colons, commas, slashes and 'on', but for those in brackets: 'bert/sia, t4' has three."""
    return tuple(name[start:end] for start, end in _spans(name))


def _of_group(
    subfigure: str, is_ratio: bool, rows: Sequence[str], policies: Collection[str]
) -> Iterable[Layout]:
    """Curves while some rows differ by a number, then bars of what is left."""
    names = {row: row[len(subfigure) + 1 :] if subfigure else row for row in rows}
    about = f"({subfigure})" if subfigure else ""
    left = dict(names)
    while key := _best_key(left.values()):
        on_curves = {
            row: numbered for row, name in left.items() if (numbered := _numbered(name, key)) is not None
        }
        yield from _curves(about, is_ratio, key, on_curves, policies)
        left = {row: name for row, name in left.items() if row not in on_curves}
    if left:
        yield from _bars(about, is_ratio, left, policies)


# ── curves ──────────────────────────────────────────────────────────────────────────────────────────────────


def _best_key(names: Iterable[str]) -> tuple[str, str] | None:
    """The number over which most rows make curves; None where no curve has enough points."""
    points: dict[tuple[str, str], dict[tuple[str, str, str], set[float]]] = {}
    for name in names:
        for numbered in _numbers(name):
            points.setdefault(numbered.key, {}).setdefault(numbered.series, set()).add(numbered.value)
    scores = {
        key: sum(len(values) for values in curves.values() if len(values) >= FEWEST_POINTS)
        for key, curves in points.items()
    }
    best = max(scores, key=lambda key: scores[key], default=None)  # the first of equals
    return best if best is not None and scores[best] else None


def _curves(
    about: str,
    is_ratio: bool,
    key: tuple[str, str],
    rows: dict[str, _Numbered],
    policies: Collection[str],
) -> Iterable[Layout]:
    """A chart for each panel: of what stands before and behind the number one is the series."""
    prefix, unit = key
    rests = {numbered.rest for numbered in rows.values()}
    slots = {
        row: tuple(
            part
            for part in (numbered.before, numbered.rest if len(rests) > 1 else "", numbered.after)
            if part
        )
        for row, numbered in rows.items()
    }
    if prefix.endswith("/"):  # 'baseline / 20%': the series is one row over another
        slots = {row: (*parts, f"{prefix} …") for row, parts in slots.items()}
        prefix = ""
    axis = _axis(prefix, " ".join(part for part in (unit, *(rests if len(rests) == 1 else ())) if part))
    panels: dict[tuple[str, ...], list[Spot]] = {}
    for row, (panel, series) in _panel_and_series(slots, policies).items():
        panels.setdefault(panel, []).append(Spot(row, series, x=rows[row].value))
    for panel, spots in panels.items():
        names = {spot.series for spot in spots}
        common = names.pop() if len(names) == 1 else ""
        in_order = [
            replace(spot, series="") if common else spot for spot in sorted(spots, key=lambda spot: spot.x)
        ]
        yield Layout(_joined(about, *panel, common), axis, tuple(in_order), is_ratio)


def _numbered(name: str, key: tuple[str, str]) -> _Numbered | None:
    return next((numbered for numbered in _numbers(name) if numbered.key == key), None)


def _numbers(name: str) -> Iterable[_Numbered]:
    """Each part that has a number."""
    spans = _spans(name)
    for index, (start, end) in enumerate(spans):
        part = name[start:end]
        match = _NUMBER.search(part)
        prefix = part[: match.start()].strip() if match else ""
        if match is None or prefix.split(" ")[-1] in ORDINALS:
            continue
        unit, rest = _unit_and_rest(part[match.end() :].strip())
        before = name[: spans[index - 1][1]] if index else ""
        after = name[spans[index + 1][0] :] if index + 1 < len(spans) else ""
        yield _Numbered(before, prefix, float(match[0].replace(",", "")), unit, rest, after)


def _unit_and_rest(suffix: str) -> tuple[str, str]:
    if suffix.startswith("%"):
        return "%", suffix[1:].strip()
    if _GPU_TYPE.fullmatch(suffix):
        return "GPUs", suffix
    return suffix, ""


def _axis(prefix: str, unit: str) -> str:
    """'GPUs', 'noise, %', 'lease, min', 'T'."""
    named = prefix.removesuffix(" of").removesuffix(" at").rstrip("[(").strip()
    return ", ".join(part for part in (named, unit.strip("])")) if part) or "number"


# ── bars ────────────────────────────────────────────────────────────────────────────────────────────────────


def _bars(about: str, is_ratio: bool, names: dict[str, str], policies: Collection[str]) -> Iterable[Layout]:
    """Grouped bars where names are a grid of their parts; else each row is a bar with its whole name."""
    slots = {row: parts_of(name) for row, name in names.items()}
    by_length: dict[int, dict[str, tuple[str, ...]]] = {}
    for row, parts in slots.items():
        by_length.setdefault(len(parts), {})[row] = parts
    # Some rows with more parts than others, such as means beside each trace, have a chart of their own.
    if all(length == 1 or _is_grid(group, len(by_length) > 1) for length, group in by_length.items()):
        for group in by_length.values():
            yield from _grid(about, is_ratio, group, policies)
        return
    if len(slots) > 1 and len({parts[0] for parts in slots.values()}) == 1 and 1 not in by_length:
        about = _joined(about, *{parts[0] for parts in slots.values()})
        names = {row: name[_spans(name)[1][0] :] for row, name in names.items()}
    yield Layout(about, "", tuple(Spot(row, "", name) for row, name in names.items()), is_ratio)


def _is_grid(slots: dict[str, tuple[str, ...]], whole: bool) -> bool:
    """Whether most combinations of the parts of several names are there; whole: all of them."""
    columns = [values for values in zip(*slots.values(), strict=True) if len(set(values)) > 1]
    # Those that change together, such as '2 workers' and 'batch 64', are one.
    apart = {tuple(values.index(value) for value in values): len(set(values)) for values in columns}
    cells = prod(apart.values())
    return (
        len(apart) >= min(2, len(columns))
        and len(slots) > 1
        and (len(slots) == cells if whole else 2 * len(slots) > cells)
    )


def _grid(
    about: str, is_ratio: bool, slots: dict[str, tuple[str, ...]], policies: Collection[str]
) -> Iterable[Layout]:
    by_slot = list(zip(*slots.values(), strict=True))
    varying = [place for place, values in enumerate(by_slot) if len(set(values)) > 1 or len(slots) == 1]
    shared = [values[0] for place, values in enumerate(by_slot) if place not in varying]
    slots = {row: tuple(parts[place] for place in varying) for row, parts in slots.items()}
    about = _joined(about, *shared)
    if len(varying) < 2 or len(slots) == 1:
        yield Layout(
            about, "", tuple(Spot(row, "", ", ".join(parts)) for row, parts in slots.items()), is_ratio
        )
        return
    panels: dict[str, list[Spot]] = {}
    for row, (others, series) in _panel_and_series(slots, policies).items():
        is_split = len(others) > 1 and len(slots) > MOST_BARS
        panel, beside = (others[0], others[1:]) if is_split else ("", others)
        panels.setdefault(panel, []).append(Spot(row, series, ", ".join(beside)))
    for panel, shown in panels.items():
        yield Layout(_joined(about, panel), "", tuple(shown), is_ratio)


def _panel_and_series(
    slots: dict[str, tuple[str, ...]], policies: Collection[str]
) -> dict[str, tuple[tuple[str, ...], str]]:
    """Of each row: which part has a colour, and the others. It is that of policies, else the last."""
    placed: dict[str, tuple[tuple[str, ...], str]] = {}
    for row, parts in slots.items():
        alike = [other for other in slots.values() if len(other) == len(parts)]
        columns = [set(values) for values in zip(*alike, strict=True)]
        shares = [sum(_is_policy(value, policies) for value in values) / len(values) for values in columns]
        # Many values make a poor legend, and better names beside bars.
        place = max(
            range(len(parts)),
            key=lambda slot: (shares[slot], len(columns[slot]) <= MOST_SERIES, slot),
            default=None,
        )
        if place is None:
            placed[row] = ((), "")
        else:
            placed[row] = (parts[:place] + parts[place + 1 :], parts[place])
    return placed


def _is_policy(words: str, policies: Collection[str]) -> bool:
    """Whether they begin with one: 'chronus + estimator', 'srtf, interactive first'."""
    return re.split(r"[ ,+]", words, maxsplit=1)[0] in policies


def _spans(name: str) -> list[tuple[int, int]]:
    """Where the parts of a name begin and end."""
    starts, ends = [0], []
    for match in _BETWEEN.finditer(name):
        if not match[0].startswith("("):
            ends.append(match.start())
            starts.append(match.end())
    return list(zip(starts, [*ends, len(name)], strict=True))


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)
