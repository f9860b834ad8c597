"""Colours that stay apart for everybody, read from the style sheet itself."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from stretto.model.arrays import FloatArray

STYLE = (files("stretto.report") / "templates" / "palette.css").read_text(encoding="utf-8")
LIGHT, DARK = STYLE.split("prefers-color-scheme: dark", 1)

# Full dichromacy in linear RGB: Machado, Oliveira and Fernandes (2009), table of severity 1.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(colour: str) -> FloatArray:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: FloatArray) -> FloatArray:
    part = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    bent = np.where(part > 0.008856, np.cbrt(part), 7.787 * part + 16 / 116)
    return np.array([116 * bent[1] - 16, 500 * (bent[0] - bent[1]), 200 * (bent[1] - bent[2])])


def named(style: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", style))


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("family", ["p", "t"], ids=["policies", "GPU types"])
@pytest.mark.parametrize("style", [LIGHT, DARK], ids=["light", "dark"])
def test_any_two_colours_stay_apart(style: str, family: str, sight: str) -> None:
    # A difference of about 2.3 is just noticeable side by side; 12 is plain for small marks apart.
    seen = [lab(SIGHT[sight] @ linear(named(style)[f"{family}{index}"])) for index in range(8)]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 12


@pytest.mark.parametrize("style", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_stand_out_from_the_card_and_words_more_so(style: str) -> None:
    colours = named(style)
    card = TO_XYZ[1] @ linear(colours["card"])

    def contrast(name: str) -> float:
        here = TO_XYZ[1] @ linear(colours[name])
        return float((max(here, card) + 0.05) / (min(here, card) + 0.05))

    assert all(contrast(f"p{index}") > 2.8 for index in range(8))
    assert all(contrast(name) > 4.5 for name in ("ink", "quiet", "good", "warn"))
