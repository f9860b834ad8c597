"""Services that are killed, clusters that are away or slow while jobs run, over every backend."""

import pytest
from tests.conformance.service import StruckService
from tests.service.crash.verdict import check_log

from stretto.testing.services.restarts import Restarts

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestRestarts(Restarts):
    """Over every cluster of `worlds`."""


def test_what_was_written_down_gives_no_gpu_twice_and_is_decided_the_same_again(
    service: StruckService,
) -> None:
    """Over all that the tests before have done to this service."""
    assert service.until_state(service.submit("sleep", 0.1), "COMPLETED")["attempt"] == 1
    check_log(list(service.running.log_of_all()))
    decisions, differences = service.running.differences()
    assert decisions > 0
    assert differences == 0
