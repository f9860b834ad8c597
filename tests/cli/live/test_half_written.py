"""What a job is just writing is read once it is whole, and once somebody answers."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from stretto.agent.terminal import ANNOUNCED
from stretto.cli.attaching import where
from stretto.cli.submit import print_address
from stretto.client import Client, ServiceError

pytestmark = pytest.mark.processes


class Writing:
    """Stands in for a client: the log of a running job, as it is at one look and at the next.

    goes: after the first answer, the service is away whenever nobody waits for it.
    """

    def __init__(self, *pieces: str, goes: bool = False) -> None:
        self.pieces, self.looks, self.goes = pieces, 0, goes
        self.asked = 0

    def describe(self, job: str, patiently: bool = False) -> dict[str, Any]:
        self.asked += 1
        if self.goes and self.asked > 1 and not patiently:
            raise ServiceError("no service answers")
        return {"ended_s": None, "attempt": 1, "kind": "interactive", "state": "RUNNING", "reason": ""}

    def log(self, job: str, follow: bool = False) -> Iterator[str]:
        self.looks += 1
        if self.goes and self.looks % 2:
            raise ServiceError("no service answers")
        yield from self.pieces if follow else self.pieces[: self.looks]


def test_a_terminal_is_where_the_whole_line_says() -> None:
    client = Writing("a warning\n", f"{ANNOUNCED}127.0.0.1:40", "123 ab", "cd\n")
    assert where(cast("Client", client), "1") == ("127.0.0.1:40123", "abcd")


def test_whoever_waits_for_a_terminal_waits_also_for_the_service() -> None:
    client = Writing(f"{ANNOUNCED}127.0.0.1:40123 abcd\n", goes=True)
    assert where(cast("Client", client), "1") == ("127.0.0.1:40123", "abcd")


def test_an_address_is_handed_over_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_address(
        cast("Client", Writing("starts\nat http://127.0.0", ".1:99", "99/lab?a=b\nand so on\n")), "1"
    )
    assert capsys.readouterr().out == "http://127.0.0.1:9999/lab?a=b\n"
