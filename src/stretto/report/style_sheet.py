"""The sheet of charts, worked out for a drawing that leaves its page: every colour and width on its element.

Only browsers know variables of CSS; viewers, office programs and what makes PNG do not. The sheet is ours, so
that a part of CSS is enough: names, classes and descendants, no media and no states.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from xml.etree import ElementTree

from markupsafe import Markup

from stretto.report.html import asset

Element = ElementTree.Element
VARIABLE = re.compile(r"var\((--[\w-]+)\)")
# What SVG takes as attributes; the sheet says more, such as shadows, that only pages have.
ATTRIBUTES = {
    *("fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "opacity"),
    *("stroke-linejoin", "stroke-linecap", "font-size", "font-weight", "text-anchor"),
}
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Compound:
    """One step of a selector: a tag, or any, with classes."""

    tag: str
    classes: frozenset[str]

    def matches(self, element: Element) -> bool:
        """Whether an element is such a one."""
        return self.tag in ("", element.tag) and self.classes <= classes_of(element)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a selector says of its elements."""

    steps: tuple[Compound, ...]  # from the outermost to the element itself
    declarations: tuple[tuple[str, str], ...]

    @property
    def weight(self) -> tuple[int, int]:
        """Classes, then tags: what weighs more is taken."""
        return sum(len(step.classes) for step in self.steps), sum(bool(step.tag) for step in self.steps)

    def matches(self, path: Sequence[Element]) -> bool:
        """Whether the last element of a path from the root is meant."""
        *outer, own = self.steps
        if not own.matches(path[-1]):
            return False
        above = iter(path[:-1])
        return all(any(step.matches(element) for element in above) for step in outer)


def classes_of(element: Element) -> frozenset[str]:
    """The classes of an element."""
    return frozenset(element.get("class", "").split())


def parsed(drawing: Markup) -> Element:
    """A drawing as elements; signs that XML has no place for become question marks."""
    return ElementTree.fromstring(NOT_XML.sub("\ufffd", drawing))


def inline(root: Element) -> None:
    """Write what the sheet says of each element onto it, in the light colours."""
    _inline([root], dict(colours()))


def resolved(value: str, known: Mapping[str, str]) -> str:
    """A value without variables; empty where one of them is not set there: then nothing is said."""
    while match := VARIABLE.search(value):
        if match[1] not in known:
            return ""
        value = value.replace(match[0], known[match[1]])
    return value


def paint_of(class_: str) -> str:
    """The colour that a class of the sheet gives to what it is on."""
    known = dict(colours())
    marked = ElementTree.Element("g", {"class": class_})
    for rule in rules():
        if rule.matches([marked]):
            known |= {name: value for name, value in rule.declarations if name.startswith("--")}
    return resolved("var(--c)", known)


@cache
def colours() -> Mapping[str, str]:
    """The light colours by variable."""
    (light, *_) = re.findall(r":root \{(.*?)\}", asset("palette.css"), flags=re.DOTALL)
    return dict(re.findall(r"(--[\w-]+): ([^;]+);", light))


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of the sheet, those last that weigh most."""
    sheet = re.sub(r"/\*.*?\*/", "", asset("charts.css"), flags=re.DOTALL)
    made = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet):
        pairs = (line.partition(":") for line in body.split(";") if line.strip())
        declarations = tuple((name.strip(), value.strip()) for name, _, value in pairs)
        made += [Rule(_steps(selector), declarations) for selector in selectors.split(",")]
    return tuple(sorted(made, key=lambda rule: rule.weight))


def _attribute(name: str, value: str) -> str:
    """A value as viewers take it: few fonts have more than two weights, and not all choose the nearer one."""
    if name == "font-weight":
        return "700" if float(value) > 500 else "400"
    return value.removesuffix("px")


def _steps(selector: str) -> tuple[Compound, ...]:
    steps = []
    for word in selector.split():
        tag, *classes = word.split(".")
        steps.append(Compound(tag, frozenset(classes)))
    return tuple(steps)


def _inline(path: Sequence[Element], known: dict[str, str]) -> None:
    element = path[-1]
    declared: dict[str, str] = {}
    for rule in rules():
        if rule.matches(path):
            declared |= rule.declarations
    known |= {name: value for name, value in declared.items() if name.startswith("--")}
    for name, value in declared.items():
        if name in ATTRIBUTES and (plain := resolved(value, known)):
            element.set(name, _attribute(name, plain))
    for child in element:
        _inline([*path, child], dict(known))
