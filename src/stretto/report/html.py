"""Templates and style sheets: what all pages of reports have in common."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stretto.report.charts.figure import policy_class

SHARED = ("palette.css", "charts.css")  # the colours, and how drawings use them


def asset(name: str) -> str:
    """A file beside the templates."""
    return (files("stretto.report") / "templates" / name).read_text(encoding="utf-8")


def style_of(*sheets: str) -> Markup:
    """The style of a page: what all have, then its own sheets."""
    return Markup("".join(map(asset, (*SHARED, *sheets))))


def environment() -> Environment:
    """Templates in which all text is escaped, and every unknown name is an error."""
    made = Environment(
        loader=PackageLoader("stretto.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    kwargs: dict[str, Any] = {"separators": (",", ":"), "sort_keys": False}
    made.policies["json.dumps_kwargs"] = kwargs
    made.filters["policy_class"] = policy_class
    return made
