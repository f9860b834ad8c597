"""A figure that leaves its page: the same colours, a legend, and nothing that only a browser understands."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from stretto.report import Comparison
from stretto.report.charts.figure import Figure, Panels, curve, svg
from stretto.report.charts.ratios import ratio_charts
from stretto.report.charts.value_figures import value_figures
from stretto.report.comparison_figures import drawn_of, names_of, policy_columns
from stretto.report.export import Drawn, write_figures
from stretto.report.figure_file import NO_FONT, NO_LIBRARY, Names, lines_of, png_of, svg_file
from stretto.report.html import asset, style_of
from stretto.report.sheet import Sheet, cell
from stretto.report.standings import standings_of
from stretto.report.style_sheet import colours, inline, parsed, rules
from stretto.report.value_charts import charts_of

from .made_runs import a_comparison
from .test_browser import BROWSER
from .test_page import HOSTILE
from .test_reproduction_page import FIGURES
from .test_value_charts import VALUES

NAMESPACE = "{http://www.w3.org/2000/svg}"
# Compares what a page draws with what the file does, element by element.
COMPARED = """
const properties = ["fill", "fillOpacity", "stroke", "strokeOpacity", "strokeWidth", "strokeDasharray",
  "opacity", "strokeLinejoin", "strokeLinecap", "fontSize", "textAnchor"];
const differing = [];
let compared = 0;
const painted = (node) => getComputedStyle(node);
for (const pair of document.querySelectorAll(".both")) {
  const [page, file] = [...pair.children].map((side) => [...side.querySelectorAll("svg, svg *")]);
  page.forEach((node, index) => {
    if (["title", "desc", "svg"].includes(node.tagName)) return;
    for (const property of properties) {
      const here = painted(node)[property], there = painted(file[index])[property];
      compared += 1;
      if (here !== there) differing.push([node.outerHTML.slice(0, 90), property, here, there]);
    }
  });
}
document.title = "TRIAL " + JSON.stringify({compared, differing: differing.slice(0, 5)});
"""


def comparison() -> Comparison:
    return a_comparison(("stretto", "sia", "fifo"), jobs=40)


def drawn(content: Comparison) -> list[Drawn]:
    return drawn_of(content, standings_of(content))


def words(document: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(document).iter(f"{NAMESPACE}text")]


def test_the_sheet_of_charts_has_only_what_can_be_worked_out() -> None:
    sheet = re.sub(r"/\*.*?\*/", "", asset("charts.css"), flags=re.DOTALL)
    selectors = [each.strip() for words in re.findall(r"([^{}]+)\{", sheet) for each in words.split(",")]
    assert len(selectors) == len(rules()) > 60
    assert [each for each in selectors if not re.fullmatch(r"[\w.-]+( [\w.-]+)*", each)] == []


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_every_element_has_the_colours_and_widths_that_a_browser_gives_it_on_the_page(tmp_path: Path) -> None:
    figures: list[Figure | Panels] = [each.figure for each in drawn(a_comparison(jobs=40))]
    figures += [*ratio_charts(FIGURES), *value_figures(charts_of(VALUES))]
    drawings = [
        drawing
        for figure in figures
        for drawing in (
            [figure.drawing] if isinstance(figure, Figure) else [panel.drawing for panel in figure.panels]
        )
    ]
    pairs = []
    for drawing in drawings:
        alone = parsed(drawing)
        inline(alone)
        for element in alone.iter():
            element.attrib.pop("class", None)
        file = ElementTree.tostring(alone, encoding="unicode")
        pairs.append(f'<div class="both"><div>{drawing}</div><div>{file}</div></div>')
    page = tmp_path / "page.html"
    style = style_of().replace("prefers-color-scheme: dark", "max-width: 0px")
    page.write_text(
        f"<meta charset=utf-8><style>{style}</style>{''.join(pairs)}<script>{COMPARED}</script>",
        encoding="utf-8",
    )
    flags = f"--headless --no-sandbox --disable-gpu --user-data-dir={tmp_path / 'profile'} --dump-dom"
    command = [str(BROWSER), *flags.split(), page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    trial = re.search(r"<title>TRIAL (.*?)</title>", dom, re.DOTALL)
    assert trial
    result = json.loads(trial[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert result["compared"] > 10_000
    assert result["differing"] == []


def test_a_file_needs_neither_style_nor_script_nor_anything_from_elsewhere() -> None:
    content = comparison()
    for each in drawn(content):
        document = svg_file(each.figure, names_of(content))
        root = ElementTree.fromstring(document)
        assert {element.tag for element in root.iter()} <= {
            f"{NAMESPACE}{tag}"
            for tag in ("svg", "title", "desc", "g", "path", "rect", "line", "circle", "text", "tspan")
        }
        assert not re.search(r"var\(|class=|style=|href|data-|url\(", document)
        assert words(document)[0] == each.figure.title


def test_the_legend_names_policies_that_the_drawing_does_not_name() -> None:
    content = comparison()
    by_name = {each.name: words(svg_file(each.figure, names_of(content))) for each in drawn(content)}
    assert {name: by_name[name].count("sia") for name in ("jct-cdf", "where-time-goes", "timelines")} == {
        "jct-cdf": 1,  # the legend
        "where-time-goes": 1,  # beside its bar
        "timelines": 1,  # above its panel
    }
    assert by_name["gpu-hours"].count("a100") == by_name["utilisation"].count("a100") == 1
    assert "a100" not in by_name["jct-cdf"]


def test_a_policy_beyond_the_palette_is_dashed_and_its_mark_hollow() -> None:
    lines = [curve(colour, "M0 0H9", is_best=False) for colour in (0, 8)]
    figure = Figure("f", "Lines", "", svg("f", 100, 50, "Lines", "", *lines))
    document = svg_file(figure, Names([f"policy {number}" for number in range(9)]))
    paths = re.findall(r"<path [^>]*>", document)
    blue = colours()["--p0"]
    assert [f'stroke="{blue}"' in path for path in paths] == [True, True]
    assert ["stroke-dasharray" in path for path in paths] == [False, True]
    assert re.findall(r"<circle [^>]*fill=\"([^\"]+)\"", document) == [blue, "none"]


def test_names_from_outside_stay_words_and_signs_that_xml_lacks_are_replaced() -> None:
    bell = f"{HOSTILE}\x07"
    lines = curve(0, "M0 0H9", is_best=False)
    figure = Figure("f", bell, bell, svg("f", 100, 50, bell, bell, lines), note=bell)
    document = svg_file(figure, Names([bell], source=bell), about=bell)
    assert "<script" not in document
    assert sum(HOSTILE in word for word in [" ".join(words(document))]) == 1
    assert "\x07" not in document


def test_long_words_are_broken_into_lines() -> None:
    assert lines_of("one two three", 7) == ["one two", "three"]
    assert lines_of("incomprehensible", 4) == ["incomprehensible"]
    assert lines_of("", 4) == []


@pytest.mark.notebook
def test_a_picture_has_twice_the_pixels_of_the_drawing_and_the_words_are_in_it() -> None:
    content = comparison()
    figure = drawn(content)[0].figure
    document = svg_file(figure, names_of(content))
    picture = png_of(document)
    if picture == NO_FONT:
        pytest.skip("this machine has none of the fonts")
    assert isinstance(picture, bytes)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    size = ElementTree.fromstring(document)
    assert (width, height) == (2 * int(size.attrib["width"]), 2 * int(size.attrib["height"]))
    mute = png_of(re.sub(r"<text.*?</text>", "", document, flags=re.DOTALL))
    assert isinstance(mute, bytes)
    assert len(mute) < len(picture) / 2


def written(folder: Path, content: Comparison, sheets: Sequence[Sheet] = ()) -> str:
    return write_figures(folder, drawn(content), sheets, names_of(content))


def test_without_the_library_there_is_svg_and_a_word_and_no_picture_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)
    (tmp_path / "jct-cdf.png").write_bytes(b"of an earlier run")
    assert written(tmp_path, comparison()) == NO_LIBRARY
    assert (tmp_path / "jct-cdf.svg").exists()
    assert list(tmp_path.glob("*.png")) == []


def test_the_list_names_each_figure_its_finding_and_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)
    content = a_comparison(("sia", "fifo"), traces=("a", "b"), jobs=20)
    written(tmp_path, content, [Sheet("jobs", ("job",), [("=1+1",), (float("nan"),)])])
    lines = (tmp_path / "figures.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "figure,title,workload,finding,data"
    names = [line.split(",")[0] for line in lines[1:]]
    assert {path.stem for path in tmp_path.glob("*.svg")} == {*names}
    assert [name for name in names if name.startswith("timelines")] == ["timelines-1", "timelines-2"]
    assert (tmp_path / "jobs.csv").read_text(encoding="utf-8") == 'job\n\'=1+1\n""\n'
    assert any("b, seed 0" in word for word in words((tmp_path / "timelines-2.svg").read_text("utf-8")))


@pytest.mark.parametrize(
    ("value", "expected"),
    [("plain", "plain"), ("=SUM(A1)", "'=SUM(A1)"), ("-x", "'-x"), (-1.5, -1.5), (None, ""), (0, 0)],
)
def test_no_text_of_a_sheet_is_a_formula(value: Any, expected: Any) -> None:
    assert cell(value) == expected


def test_columns_of_policies_have_intervals_where_there_are_some() -> None:
    columns = policy_columns(standings_of(a_comparison(("sia", "fifo"), traces=("a", "b"), jobs=20)))
    assert columns["policy"] == ["sia", "fifo"]
    assert columns["avg_jct_s_low"][0] < columns["avg_jct_s"][0] < columns["avg_jct_s_high"][0]
    assert "completed_low" not in columns
