"""A figure as a file of its own, with its title, legend and notes: SVG without style or script, and PNG."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from xml.etree import ElementTree

from stretto.report.charts.figure import COLOURS, Figure, Panels, policy_class
from stretto.report.style_sheet import NOT_XML, Element, classes_of, colours, inline, paint_of, parsed

EDGE = 24.0
GAP = 28.0
COLUMNS = 2  # small charts beside each other
ZOOM = 2.0  # pixels of a PNG for each of the drawing
# Named one by one: what makes PNG knows no general families, and no machine has all of these.
FONTS = "Inter, Helvetica Neue, Helvetica, Arial, Segoe UI, Roboto, Liberation Sans, Noto Sans, DejaVu Sans"
WIDE_PX = 0.56  # of its size, that a letter takes on average; chosen: DejaVu Sans, the widest of these
SVG = "http://www.w3.org/2000/svg"
PAGE_ONLY = {"class", "aria-hidden", "aria-labelledby", "id"}
POLICY = re.compile(r"p\d")  # the class of one
NO_LIBRARY = "figures are SVG only: for PNG install stretto[png]"
NO_FONT = f"figures are SVG only: PNG needs one of these fonts: {FONTS}"


@dataclass(frozen=True, slots=True)
class Names:
    """What the colours of a figure stand for."""

    policies: Sequence[str] = ()
    gpu_types: Sequence[str] = ()
    parts: Sequence[str] = ()  # of a bar, by their classes
    source: str = ""  # a line at the foot: what this was made from


@dataclass(slots=True)
class Canvas:
    """Grows downwards while parts are put onto it."""

    width: float
    y: float = EDGE
    parts: list[Element] = field(default_factory=list)

    def words(self, text: str, size: float, colour: str = "--quiet", weight: str = "400") -> None:
        """A paragraph, broken into lines."""
        for line in lines_of(text, (self.width - 2 * EDGE) / (size * WIDE_PX)):
            self.y += size * 1.35
            self.parts.append(_text(EDGE, self.y, line, colour, size, weight))


def svg_file(figure: Figure | Panels, names: Names, about: str = "") -> str:
    """The figure as one SVG document that needs nothing else. about: which workload, if there are some."""
    drawings = _drawings(figure)
    columns = min(COLUMNS, len(drawings))
    width = columns * max(_size(drawing)[0] for _, drawing in drawings) + (columns - 1) * GAP
    canvas = Canvas(max(width, 400.0) + 2 * EDGE)
    canvas.words(figure.title, 17, "--ink", "700")
    canvas.y += 3
    canvas.words(about, 13, "--ink")
    canvas.words(figure.lead, 13)
    _legend(canvas, [drawing for _, drawing in drawings], names)
    canvas.y += 14
    for row in range(0, len(drawings), columns):
        _row(canvas, drawings[row : row + columns], width / columns)
    canvas.y += 4
    for note in figure.key if isinstance(figure, Panels) else (figure.note,):
        canvas.words(note, 11.5)
    canvas.y += 4
    canvas.words(names.source, 10.5)
    return _document(canvas, figure.title, [drawing for _, drawing in drawings])


def png_of(document: str) -> bytes | str:
    """The picture of an SVG document, or why there is none."""
    if find_spec("resvg_py") is None:
        return NO_LIBRARY
    import resvg_py

    sample = f'<svg xmlns="{SVG}" width="20" height="20"><text y="15" font-family="{FONTS}">a</text></svg>'
    blank = f'<svg xmlns="{SVG}" width="20" height="20"/>'
    if resvg_py.svg_to_bytes(svg_string=sample) == resvg_py.svg_to_bytes(svg_string=blank):
        return NO_FONT
    return bytes(resvg_py.svg_to_bytes(svg_string=document, zoom=ZOOM))


def lines_of(text: str, most: float) -> list[str]:
    """The words of a text in lines of at most so many letters; a longer word has a line of its own."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= most:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _drawings(figure: Figure | Panels) -> list[tuple[Element | None, Element]]:
    """Each drawing with its colours worked out; before it the words above it, for small charts."""
    if isinstance(figure, Figure):
        return [(None, _inlined(parsed(figure.drawing)))]
    drawings: list[tuple[Element | None, Element]] = []
    for panel in figure.panels:
        caption = ElementTree.Element("g")
        after = 24 + len(panel.policy) * 13 * WIDE_PX * 1.1
        caption.extend(
            (
                _swatch(0, -4, policy_class(panel.colour)),
                _text(14, 0, panel.policy, "--ink", 13, "700"),
                _text(after, 0, panel.says, "--quiet", 12),
            )
        )
        drawings.append((caption, _inlined(parsed(panel.drawing))))
    return drawings


def _inlined(drawing: Element) -> Element:
    inline(drawing)
    return drawing


def _row(canvas: Canvas, drawings: Sequence[tuple[Element | None, Element]], apart: float) -> None:
    """Drawings beside each other, each below its words."""
    top = canvas.y + (18 if any(caption is not None for caption, _ in drawings) else 0)
    for column, (caption, drawing) in enumerate(drawings):
        left = EDGE + column * (apart + GAP / 2)
        if caption is not None:
            caption.set("transform", f"translate({left:.1f} {canvas.y + 12:.1f})")
            canvas.parts.append(caption)
        placed = ElementTree.Element("g", {"transform": f"translate({left:.1f} {top:.1f})"})
        placed.extend(child for child in drawing if child.tag not in ("title", "desc"))
        canvas.parts.append(placed)
    canvas.y = top + max(_size(drawing)[1] for _, drawing in drawings) + 12


def _legend(canvas: Canvas, drawings: Sequence[Element], names: Names) -> None:
    """What colours stand for, where the drawing does not say so itself."""
    used = {name for drawing in drawings for element in drawing.iter() for name in classes_of(element)}
    entries = [(policy_class(colour), names.policies[colour]) for colour in _unnamed(drawings)]
    marked = [(f"t{index % COLOURS}", name) for index, name in enumerate(names.gpu_types)]
    marked += [(part, part) for part in names.parts]
    entries += [(class_, name) for class_, name in marked if class_ in used]
    if not entries:
        return
    canvas.y += 23
    x = EDGE
    for class_, name in entries:
        taken = 32 + len(name) * 12.5 * WIDE_PX * 1.05
        if x > EDGE and x + taken > canvas.width - EDGE:
            x, canvas.y = EDGE, canvas.y + 18
        canvas.parts.append(_swatch(x, canvas.y - 4, class_))
        canvas.parts.append(_text(x + 14, canvas.y, name, "--ink", 12.5))
        x += taken


def _unnamed(drawings: Sequence[Element]) -> list[int]:
    """Policies by colour whose part of a drawing does not have their name."""
    silent = {
        int(element.get("data-p", "0"))
        for drawing in drawings
        for element in drawing.iter()
        if "data-p" in element.attrib and not any("name" in classes_of(inner) for inner in element.iter())
    }
    return sorted(silent)


def _document(canvas: Canvas, title: str, drawings: Sequence[Element]) -> str:
    width, height = canvas.width, canvas.y + EDGE
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}", "viewBox": f"0 0 {width:.0f} {height:.0f}"}
    root = ElementTree.Element("svg", {"xmlns": SVG, **size, "font-family": FONTS, "role": "img"})
    ElementTree.SubElement(root, "title").text = NOT_XML.sub("\ufffd", title)
    described = " ".join(drawing.findtext("desc") or "" for drawing in drawings)
    ElementTree.SubElement(root, "desc").text = described
    ElementTree.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    root.extend(canvas.parts)
    for element in root.iter():
        for name in [name for name in element.attrib if name in PAGE_ONLY or name.startswith("data-")]:
            del element.attrib[name]
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _size(drawing: Element) -> tuple[float, float]:
    _, _, width, height = drawing.get("viewBox", "0 0 0 0").split()
    return float(width), float(height)


def _swatch(x: float, y: float, class_: str) -> Element:
    """A disc for a policy, hollow where its lines are dashed; a square for a GPU type or a part of a bar."""
    paint = paint_of(class_)
    if not POLICY.match(class_):
        place = {"x": f"{x:.1f}", "y": f"{y - 5:.1f}", "width": "10", "height": "10", "rx": "3"}
        return ElementTree.Element("rect", {**place, "fill": paint})
    place = {"cx": f"{x + 5:.1f}", "cy": f"{y:.1f}"}
    if "dash" in class_:
        hollow = {"r": "4", "fill": "none", "stroke": paint, "stroke-width": "2"}
        return ElementTree.Element("circle", {**place, **hollow})
    return ElementTree.Element("circle", {**place, "r": "5", "fill": paint})


def _text(x: float, y: float, words: str, colour: str, size: float, weight: str = "400") -> Element:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "fill": colours()[colour]}
    text = ElementTree.Element("text", {**place, "font-size": f"{size:g}", "font-weight": weight})
    text.text = NOT_XML.sub("\ufffd", words)
    return text
