"""A command says what a lender needs, whatever else it does."""

import asyncio

import pytest

from stretto.service.lending.command_feed import CommandFeed

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("command", "need"),
    [
        ("echo 2", 2.0),
        ("echo ' 1.5 '", 1.5),
        ("echo many", None),
        ("echo 1; exit 3", None),
        ("echo -1", None),
    ],
)
def test_a_command_says_the_need_or_it_is_not_known(command: str, need: float | None) -> None:
    assert asyncio.run(CommandFeed(command, 7.0).need_at(0.0, 4)) == (need, 7.0)
