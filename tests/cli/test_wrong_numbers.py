"""A number that an option cannot take: one line with the option, what was expected, and what it got."""

from pathlib import Path

import pytest

from .ran import Stretto


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("simulate x --seed 1.5", "--seed: expected a whole number, got '1.5'"),
        ("serve --slots many", "--slots: expected a whole number, got 'many'"),
        ("serve --slots 0", "--slots: expected at least 1, got '0'"),
        ("reproduce --scale half x", "--scale: expected a number, got 'half'"),
        ("priority 1 high", "VALUE: expected a whole number, got 'high'"),
    ],
)
def test_it_says_which_option_expected_what_and_got_what(stretto: Stretto, words: str, message: str) -> None:
    ran = stretto(*words.split())
    command = words.split(maxsplit=1)[0]
    assert (ran.status, ran.err) == (2, f"stretto: {message} (see stretto {command} --help)\n")


def test_a_machine_has_no_more_slots_than_a_node_may_have_gpus(stretto: Stretto, tmp_path: Path) -> None:
    ran = stretto("serve", "--slots", 63, "--state", tmp_path / "state", "--insecure-loopback")
    assert (ran.status, ran.err) == (2, "stretto: --slots: expected at most 62, got 63\n")
    assert not (tmp_path / "state").exists()
