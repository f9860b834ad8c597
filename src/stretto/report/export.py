"""The figures of a report as files: each as SVG and PNG, their data as CSV, and a list of what is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.report.charts.figure import Figure, Panels
from stretto.report.figure_file import Names, png_of, svg_file
from stretto.report.sheet import Sheet
from stretto.whole_files import write_whole

LIST = "figures"  # the sheet of what is there


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure, the name of its files, and the sheet that it is drawn from."""

    name: str
    figure: Figure | Panels
    data: str
    about: str = ""  # which workload it is of, where there are several


def write_figures(folder: Path, drawn: Sequence[Drawn], sheets: Sequence[Sheet], names: Names) -> str:
    """Write all of them; returns why there is no PNG, empty where there are. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    why = ""
    for each in drawn:
        document = svg_file(each.figure, names, each.about)
        write_whole(folder / f"{each.name}.svg", document)
        picture = png_of(document)
        if isinstance(picture, str):
            why = picture
            (folder / f"{each.name}.png").unlink(missing_ok=True)  # of an earlier run: it would be another's
        else:
            write_whole(folder / f"{each.name}.png", picture)
    for sheet in (*sheets, _list(drawn)):
        with (folder / f"{sheet.name}.csv").open("w", newline="", encoding="utf-8") as file:
            sheet.write(file)
    return why


def _list(drawn: Sequence[Drawn]) -> Sheet:
    rows = [
        (each.name, each.figure.title, each.about, each.figure.lead, f"{each.data}.csv") for each in drawn
    ]
    return Sheet(LIST, ("figure", "title", "workload", "finding", "data"), rows)
