"""The catalogue file is what the figures give: nothing in it was changed by hand."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stretto.catalogue.build import CATALOGUE, build, report

pytestmark = pytest.mark.data


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{path}/{key}")
    else:
        yield path, content


@pytest.fixture(scope="module")
def content(data_dir: Path) -> Mapping[str, Any]:
    """What is built from the figures now, which takes a quarter of a minute."""
    if not (data_dir / "throughputs").is_dir():
        pytest.skip(f"no throughputs below {data_dir}")
    return build(data_dir)


def test_building_it_again_gives_the_same_file(content: Mapping[str, Any]) -> None:
    stored = dict(leaves(yaml.safe_load(CATALOGUE.read_text(encoding="utf-8"))))
    built = dict(leaves(content))
    assert list(stored) == list(built)
    for path, value in built.items():
        if isinstance(value, float):
            # Fits end within their tolerance, not at the same digit on every machine.
            assert stored[path] == pytest.approx(value, rel=0.02, abs=1e-6), path
        elif not path.endswith("/source"):  # holds rounded speeds
            assert stored[path] == value, path
    assert "resnet50-imagenet    a100   ElasticFlow" in report(content)


def test_no_figure_of_unclear_licence_is_a_source(content: Mapping[str, Any]) -> None:
    sources = {value for path, value in leaves(content) if path.endswith("/source")}
    measured = {source for source in sources if source in {"Pollux", "ElasticFlow", "Gavel"}}
    assert measured == {"Pollux", "ElasticFlow", "Gavel"}
    assert not any(word in source for source in sources for word in ("rtx", "dgx", "azure"))
