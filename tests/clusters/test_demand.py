"""What lenders need of their own servers: series in files, and made ones."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from stretto.clusters.demand import PERIOD_S, made_demand, read_demand
from stretto.model import InputError

SERIES = "timestamp_s,demand_fraction\n0,0.5\n300,0.75\n600,1\n"


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_series_is_read_with_its_period(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"demand{ending}"
    path.write_bytes(gzip.compress(SERIES.encode()) if ending.endswith("gz") else SERIES.encode())
    period_s, share = read_demand(path)
    assert (period_s, share.tolist()) == (300.0, [0.5, 0.75, 1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("timestamp_s,x\n0,1\n", "missing column demand_fraction", id="column"),
        pytest.param(
            "timestamp_s,demand_fraction\n0,0.5\n300,0.5\n900,0.5\n",
            "line 4: timestamp_s must be 600, 300 s after the line before, got 900",
            id="gap",
        ),
        pytest.param(
            "timestamp_s,demand_fraction\n0,0.5\n300,1.2\n",
            "line 3: demand_fraction must be a share of the servers, 0 to 1, got 1.2",
            id="above capacity",
        ),
        pytest.param(
            "timestamp_s,demand_fraction\n0,0.5\n300,-0.1\n", "line 3: demand_fraction must be", id="negative"
        ),
        pytest.param(
            "timestamp_s,demand_fraction\n0,0.5\n300,many\n",
            "line 3: demand_fraction must be a number, got 'many'",
            id="no number",
        ),
        pytest.param(
            "timestamp_s,demand_fraction\n0,0.5\n300,nan\n", "must be a number, got 'nan'", id="not a number"
        ),
        pytest.param("timestamp_s,demand_fraction\n300,0.5\n0,0.5\n", "line 3: timestamp_s", id="backwards"),
        pytest.param(
            "timestamp_s,demand_fraction\n0,0.5\n", "expected at least two times, got 1", id="short"
        ),
        pytest.param("", "missing column timestamp_s", id="empty"),
    ],
)
def test_a_bad_series_gets_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        read_demand(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "demand.csv.gz"
    path.write_bytes(b"\x00\x01")
    with pytest.raises(InputError, match="cannot be read"):
        read_demand(path)


def test_made_demand_has_the_published_range_and_a_daily_cycle_and_follows_its_seed() -> None:
    share = made_demand(days=15, seed=1)
    assert len(share) == 15 * 86_400 / PERIOD_S
    assert (share.min(), share.max()) == (pytest.approx(0.42), pytest.approx(0.95))
    assert share.mean() == pytest.approx(0.65, abs=0.005)
    by_hour = share.reshape(15, 24, -1).mean(axis=(0, 2))
    assert by_hour.max() / by_hour.min() > 1.5
    assert np.array_equal(share, made_demand(days=15, seed=1))
    assert not np.array_equal(share, made_demand(days=15, seed=2))
