"""Fixtures shared by all tests."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.needs", "tests.lanes", "tests.large"]  # lanes imports needs
# A machine may be busy: no example is wrong because it took long. Whoever names another profile gets that.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("patient"), max_examples=2_000)
settings.register_profile("check", settings.get_profile("patient"), max_examples=10, derandomize=True)
settings.register_profile("test", settings.get_profile("patient"), max_examples=25)
settings.register_profile("build", settings.get_profile("test"), derandomize=True)
settings.load_profile("patient")
os.environ["STRETTO_CONFIG"] = os.devnull  # whoever runs the tests may have contexts


def pytest_addoption(parser: pytest.Parser) -> None:
    """What all of `tests` may be asked for."""
    told = "write what each conformance test came to over each cluster to FILE"
    parser.addoption("--conformance-table", metavar="FILE", help=told)


@pytest.hookimpl(trylast=True)  # once pytest has put together what shares a fixture
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares the one Ray cluster in a row, so that it starts once."""
    over_ray = [item for item in items if is_over_ray(item)]
    if over_ray:
        first = items.index(over_ray[0])
        others = [item for item in items if not is_over_ray(item)]
        items[:] = [*others[:first], *over_ray, *others[first:]]


def is_over_ray(item: pytest.Item) -> bool:
    """Whether a test needs the Ray cluster that is shared by all that do."""
    if "cluster" not in getattr(item, "fixturenames", ()):
        return False
    params = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("cluster") == "ray" or item.get_closest_marker("ray") is not None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public data sets: `$STRETTO_DATA`, else `shared/data` beside the checkout; skips where absent."""
    named = os.environ.get("STRETTO_DATA")
    found = Path(named) if named else Path(__file__).parents[1].parent / "shared" / "data"
    if not found.is_dir():
        pytest.skip(f"no public data sets at {found} (set STRETTO_DATA to their folder)")
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How services would have been started."""
    configured: list[Any] = []

    async def serve(config: Any, announced: Any) -> str:
        configured.append(config)
        return ""

    monkeypatch.setattr("stretto.service.main.serve", serve)
    return configured
