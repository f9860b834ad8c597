"""A chart with what it shows, what it says and what can be read off it with a pointer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from stretto.model.arrays import FloatArray
from stretto.report.axes import Frame
from stretto.report.svg import element

WIDTH = 640.0  # of a chart that fills half of the page
COLOURS = 8  # as many as stay apart for colour-blind readers; then they repeat, dashed
POINTS = 480  # read-outs along a chart


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """One chart, ready for the page."""

    id: str
    title: str  # what it shows
    lead: str  # what it says, computed from the data; may be empty
    drawing: Markup
    hover: Mapping[str, Any] | None = None  # what the pointer reads; see report.js
    note: str = ""  # how to read it, or what it leaves out


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One policy's share of a row of small charts with common axes."""

    policy: str
    colour: int
    says: str  # a few words beside the name
    drawing: Markup
    hover: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """Small charts with common axes, one for each policy."""

    id: str
    title: str
    lead: str
    panels: tuple[Panel, ...]
    key: tuple[str, ...]  # how to read them, a paragraph each
    counts_have_opacity: bool = False  # the key explains it
    pointing: str = ""  # what a pointer shows, where a script reads it


def svg(id_: str, width: float, height: float, title: str, description: str, *content: Markup) -> Markup:
    """The outer element: scales with the page, and says in words what it shows."""
    return element(
        "svg",
        element("title", title, id=f"{id_}-title"),
        element("desc", description, id=f"{id_}-desc"),
        *content,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_labelledby=f"{id_}-title {id_}-desc",
        class_="chart",
    )


def policy_class(colour: int) -> str:
    """The class that gives a policy its colour, and past the palette a dash."""
    dash = f" dash{min(colour // COLOURS, 3)}" if colour >= COLOURS else ""
    return f"p{colour % COLOURS}{dash}"


def of_policy(colour: int, *content: Markup, **attributes: Any) -> Markup:
    """What disappears when the reader switches the policy off."""
    return element("g", *content, class_=policy_class(colour), data_p=colour, **attributes)


def curve(colour: int, path: str, is_best: bool) -> Markup:
    """A policy's line in a chart that all policies share; the best one's is thicker."""
    return of_policy(colour, element("path", d=path, class_="curve best" if is_best else "curve"))


def readings(
    frame: Frame, series: Sequence[tuple[str, int, FloatArray]], x: str, value: str, **more: Any
) -> dict[str, Any]:
    """What the pointer reads along the x axis.

    series: of each, "p" for a policy or "t" for a GPU type, its position, and values evenly spaced on the
    paper. x, value: how to word them ("time", "clock", "share", "count", "ratio"); shares travel as per
    mille.
    """
    scale = 1_000 if value == "share" else 1
    return {
        "box": [round(edge, 1) for edge in (frame.left, frame.right, frame.top, frame.bottom)],
        "domain": [_rounded(frame.x.low), _rounded(frame.x.high)],
        "log": frame.x.is_log,
        "x": x,
        "value": value,
        "series": [{kind: index, "v": _plain(values * scale)} for kind, index, values in series],
        **more,
    }


def shortened(name: str, most: int = 18) -> str:
    """A name that fits beside a bar; the whole one is in the read-out."""
    return name if len(name) <= most else name[: most - 1] + "…"


def room_for(names: Sequence[str], per_letter: float = 7.9) -> float:
    """Pixels that the longest of these names needs beside a bar, and a gap."""
    return 22 + per_letter * max((len(shortened(name)) for name in names), default=0)


def _plain(values: FloatArray) -> list[float | None]:
    """Three digits of each, None where unknown."""
    return [_rounded(value) if np.isfinite(value) else None for value in values.tolist()]


def _rounded(value: float) -> float:
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short
