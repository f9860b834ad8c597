"""The picture in the README is there, light and dark, and small enough to be seen at once."""

import re
import struct
from pathlib import Path

import pytest
from tests.service.http.readme_picture import HEIGHT, MOST_BYTES, WIDTH

ROOT = Path(__file__).parents[3]
SHOWN = re.findall(r'(?:srcset|src)="([^"]+)"', (ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_readme_shows_the_dashboard_light_and_dark() -> None:
    assert SHOWN == ["docs/timeline-dark.png", "docs/timeline-light.png"]


@pytest.mark.parametrize("path", SHOWN)
def test_a_picture_of_the_readme_is_small_and_as_its_script_takes_it(path: str) -> None:
    picture = (ROOT / path).read_bytes()
    assert len(picture) < MOST_BYTES
    kind, width, height = struct.unpack(">12x4sII", picture[:24])
    assert (kind, width, height) == (b"IHDR", WIDTH, HEIGHT)
