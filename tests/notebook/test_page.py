"""The page about notebooks: its lines of Python run, and its tables have what there is."""

import inspect
import re
from pathlib import Path

import pytest

import stretto
from stretto.notebook import frame

PAGE = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    """The first cell of each row below a heading, and the rest."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| (`.+?) \| (.+) \|$", section, flags=re.M))


@pytest.mark.heavy
def test_its_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frame, "find_spec", lambda name: None)
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)
    assert len(blocks) == 2
    with pytest.warns(UserWarning, match="SVG only"):
        exec("\n".join(blocks), {})
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "figures" / "jobs.csv").exists()


def test_it_has_every_argument() -> None:
    named = {name for cells in table("Arguments of simulate") for name in re.findall(r"`(\w+)`", cells)}
    assert named == {*inspect.signature(stretto.simulate).parameters}


def test_it_has_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "find_spec", lambda name: None)
    run = stretto.simulate("demo:jobs=2", cluster="sia-homo-64", policy="fifo")
    for name, cells in table("Frames of a run").items():
        columns = {re.sub("_t4$", "_TYPE", column) for column in getattr(run, name.strip("`")).dtype.names}
        assert {*re.findall(r"`(\w+)`", cells)} == columns, name
