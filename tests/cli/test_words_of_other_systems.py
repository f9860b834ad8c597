"""Users of other systems are told which command of ours they look for."""

import pytest

from stretto.cli.commands import ELSEWHERE, PLACES
from stretto.client.messages import last_lines


def test_each_word_of_another_system_is_none_of_ours_and_leads_to_one() -> None:
    assert set(ELSEWHERE.values()) <= set(PLACES)
    assert not set(ELSEWHERE) & set(PLACES)


@pytest.mark.parametrize(
    ("text", "lines", "end"),
    [
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\n", 5, "a\n"),
        ("a\n\n\n", 2, "\n\n"),
        ("1%\r2%\rdone\nend", 2, "1%\r2%\rdone\nend"),
        ("a\nb\n", 0, ""),
        ("", 3, ""),
    ],
)
def test_the_last_lines_of_a_log_end_as_it_does(text: str, lines: int, end: str) -> None:
    assert last_lines(text, lines) == end
