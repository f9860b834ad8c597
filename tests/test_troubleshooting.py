"""The page on troubleshooting has every reason, in the words in which people see it."""

import re
from pathlib import Path

from stretto.service.state.messages import NEVER, WORDS

PAGE = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> dict[str, str]:
    """By reason, what a table says that it means."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \|", part, flags=re.M))


def test_every_reason_is_explained_in_the_words_in_which_it_is_shown() -> None:
    assert {**rows_below("A job waits"), **rows_below("A job can never start")} == dict(WORDS)


def test_what_never_starts_is_told_from_what_waits() -> None:
    assert rows_below("A job can never start").keys() == NEVER
