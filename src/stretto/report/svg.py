"""SVG as text: elements with escaped attributes, and paths with short numbers."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from stretto.model.arrays import FloatArray


def element(tag: str, *content: Any, **attributes: Any) -> Markup:
    """One element; content that is no markup is escaped, and `None` attributes are left out.

    `class_` and `data_t` become `class` and `data-t`.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(part) for part in content)
    return Markup(f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>")


def group(*content: Any, **attributes: Any) -> Markup:
    """A `g` element."""
    return element("g", *content, **attributes)


def joined(parts: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("").join(parts)


def text(x: float, y: float, words: str, class_: str = "", **attributes: Any) -> Markup:
    """A line of text; `class_` places its anchor."""
    return element("text", words, x=x, y=y, class_=class_ or None, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str, **attributes: Any) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, **attributes)


def rect(x: float, y: float, width: float, height: float, class_: str, **attributes: Any) -> Markup:
    """A rectangle; a negative width or height is drawn as none."""
    return element(
        "rect", x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=class_, **attributes
    )


def polyline(x: FloatArray, y: FloatArray) -> str:
    """Path data through the points."""
    xs, ys = numbers(x), numbers(y)
    return "M" + "L".join(f"{a} {b}" for a, b in zip(xs, ys, strict=True)) if xs else ""


def staircase(x: FloatArray, y: FloatArray) -> str:
    """Path data that keeps each height until the next x, leaving out steps that cannot be seen."""
    xs, ys = numbers(x), numbers(y)
    if not xs:
        return ""
    parts = [f"M{xs[0]} {ys[0]}"]
    level = ys[0]
    for a, b in zip(xs[1:], ys[1:], strict=True):
        if b != level:
            parts.append(f"H{a}V{b}")
            level = b
    return "".join([*parts, f"H{xs[-1]}"])


def numbers(values: FloatArray) -> list[str]:
    """Coordinates to a tenth of a pixel, as short as they can be written."""
    return [_short(value) for value in np.round(values, 1).tolist()]


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    written = f"{value:.1f}".removesuffix(".0")
    return "0" if written == "-0" else written
