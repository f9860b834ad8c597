"""Estimators by name, and the one of docs/writing-an-estimator.md as it stands there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.estimate.estimators import MeasuredTables, NoEstimate, OnlineGoodput
from stretto.estimate.registry import ESTIMATORS, REGISTRY, estimator_for
from stretto.model import InputError, MeasuredSpeeds, View, configurations_from
from stretto.policies import load_policy
from stretto.testing.builders import a_cluster, a_job, a_snapshot

PAGE = Path(__file__).parents[2] / "docs" / "writing-an-estimator.md"


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package on the page, as an installer leaves it."""
    page = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    (project,) = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.M | re.S)
    (tmp_path / "fixed_loss.py").write_text(code, encoding="utf-8")
    info = tmp_path / "fixed_loss-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fixed-loss\nVersion: 1.0\n", encoding="utf-8"
    )
    entries = tomllib.loads(project)["project"]["entry-points"]["stretto.estimators"]
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[stretto.estimators]", *lines]), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_registered_estimator_loads_and_says_something_of_no_jobs(name: str) -> None:
    estimator = REGISTRY.load(name)
    shown = a_snapshot(cluster=a_cluster(4), known_tables=[])
    speeds = NoEstimate() if View.GOODPUT_MODEL in estimator.views else estimator
    assert speeds.estimate(shown, configurations_from([(1, 1, 0)])).per_s.shape == (0, 1)


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        ("fifo", {}, NoEstimate()),
        ("fifo", {"mode": "oracle"}, NoEstimate()),
        ("gavel", {}, MeasuredTables()),
        ("cornucopia", {}, NoEstimate()),  # it reads the tables itself
        ("cornucopia", {"model": "tables"}, MeasuredTables()),
        ("sia", {}, OnlineGoodput()),
        ("sia", {"model": "goodput", "fit": "best"}, OnlineGoodput()),
        ("sia", {"model": "none"}, NoEstimate()),
    ],
)
def test_the_named_estimator_is_used_or_else_the_one_that_serves_the_views(
    policy: str, settings: dict[str, Any], expected: object
) -> None:
    assert estimator_for(load_policy(policy), settings) == expected


@pytest.mark.parametrize(
    ("policy", "settings", "message"),
    [
        ("fifo", {"model": "tabels"}, "unknown estimator 'tabels', did you mean 'tables'?"),
        ("sia", {"model": "none", "mode": "oracle"}, "unknown setting estimate.mode, there are none"),
        (
            "gavel",
            {"model": "own.py:FixedLoss"},
            "unknown estimator 'own.py:FixedLoss', expected one of goodput",
        ),
        (
            "gavel",
            {"model": "stretto.estimate.estimators:NoEstimate"},
            "unknown estimator 'stretto.estimate.",
        ),
        (
            "fifo",
            {"model": "goodput"},
            "estimate.model=goodput needs the views goodput_model, which policy fifo does not declare",
        ),
    ],
)
def test_an_estimator_that_cannot_serve_is_one_clear_line(
    policy: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        estimator_for(load_policy(policy), settings)
    assert str(caught.value).startswith(message)


@pytest.mark.usefixtures("announced")
def test_the_estimator_on_the_page_loses_a_share_on_every_further_node() -> None:
    estimator = estimator_for(load_policy("gavel"), {"model": "fixed-loss", "loss": "0.5"})
    columns = configurations_from([(1, 4, 0), (3, 12, 0)])
    per_s = np.arange(13.0)[None, :]
    shown = a_snapshot(
        a_job("a", gpus=4), cluster=a_cluster(4, 4, 4), known_tables=[MeasuredSpeeds(per_s, per_s)]
    )
    assert estimator.estimate(shown, columns).per_s.tolist() == [[4.0, 12.0 / 4]]


@pytest.mark.usefixtures("announced")
def test_its_settings_have_ranges() -> None:
    with pytest.raises(InputError, match=r"^estimate\.loss must be >= 0 and < 1, got 1$"):
        estimator_for(load_policy("gavel"), {"model": "fixed-loss", "loss": "1"})
