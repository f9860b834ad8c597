"""What table 3 of Sia says of the files that it lacks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Request
from stretto.experiments.sia.comparison import newtrace_notes
from stretto.sim.result import Result


def _result(submitted_s: list[float], jct_s: list[float]) -> Result:
    jobs = [SimpleNamespace(submitted_s=each) for each in submitted_s]
    result: Any = SimpleNamespace(requests=SimpleNamespace(jobs=jobs), jct_s=np.array(jct_s))
    return cast("Result", result)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three of the ten files."""
    folder = tmp_path / "sia" / "workloads" / "newtrace"
    folder.mkdir(parents=True)
    for number in (1, 2, 3):
        (folder / f"workload-{number}.csv").touch()
    return tmp_path


def test_files_that_are_missing_are_counted_whatever_the_scale(data: Path) -> None:
    notes = newtrace_notes(Request(data, scale=0.3), [_result([0.0], [3600.0])])
    assert notes == [
        "newtrace: 7 of the 10 files that the paper pools are missing here. Of the other 3, 1 ran. "
        "The paper's figures and intervals are over all"
    ]


def test_the_first_day_of_the_first_file_stands_beside_the_published_simulator(data: Path) -> None:
    first = _result([0.0, 86_399.0, 86_400.0], [0.7 * 3600, 0.876 * 3600, 1e9])
    notes = newtrace_notes(Request(data), [first, _result([0.0], [1e9]), _result([0.0], [1e9])])
    assert len(notes) == 2
    assert "the 2 jobs of its first day take 0.788 h" in notes[1]
    assert notes[1].endswith("+1.5%")


def test_made_jobs_are_compared_with_no_file() -> None:
    assert newtrace_notes(Request(None), []) == ["newtrace: made; the paper pools 10 files of it"]


def test_data_that_sia_s_authors_share_are_not_called_private() -> None:
    assert not [name for name, entry in EXPERIMENTS.items() if name.startswith("sia-") and entry.private]
