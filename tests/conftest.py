"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """What all of `tests` may be asked for."""
    told = "write what each conformance test came to over each cluster to FILE"
    parser.addoption("--conformance-table", metavar="FILE", help=told)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public data sets: `$STRETTO_DATA`, else `shared/data` beside the checkout; skips where absent."""
    named = os.environ.get("STRETTO_DATA")
    found = Path(named) if named else Path(__file__).parents[1].parent / "shared" / "data"
    if not found.is_dir():
        pytest.skip(f"no public data sets at {found} (set STRETTO_DATA to their folder)")
    return found
