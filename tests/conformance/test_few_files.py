"""A service that can open few files, and somebody who takes all that are left, over every backend."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.conformance.service import StruckService
from tests.conformance.world import World
from tests.service.end_to_end.greedy import Greedy
from tests.service.end_to_end.idlers import Idlers

from stretto.client import ServiceError

pytestmark = [pytest.mark.processes, pytest.mark.alone]  # it takes all that others would have

LEFT = 64  # files, once a service has started
IDLERS = 300
MANY = 100_000


@pytest.fixture(scope="module")
def files(cluster: World, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many files a service may have open so that so many are left once it has started."""
    service = StruckService(cluster, tmp_path_factory.mktemp(f"usual-{cluster.name}"))
    try:
        service.begin()
        assert service.running.process is not None
        numbers = [int(one.name) for one in Path(f"/proc/{service.running.process.pid}/fd").iterdir()]
        return len(numbers) + LEFT
    finally:
        service.end()


@pytest.fixture
def narrow(world: World, files: int, tmp_path: Path) -> Iterator[StruckService]:
    """A service over the cluster that has few files."""
    service = StruckService(world, tmp_path, files=files)
    service.begin()
    try:
        yield service
        service.cancel_all()
        service.check()
        service.until(lambda: not service.left(), "nothing is left of any worker")
    finally:
        service.end()


def test_idle_connections_without_a_token_end_no_job(narrow: StruckService) -> None:
    goes_on = narrow.submit("beat", MANY)
    narrow.until_works(goes_on)
    with Idlers(narrow.running.port, IDLERS) as idlers:
        narrow.until(lambda: idlers.opened > 2 * IDLERS, "all the idlers are there")
        for _ in range(3):
            short = narrow.until(partial(submitted, narrow), "a newcomer is served")
            assert narrow.until_state(short, "COMPLETED")["attempt"] == 1
        shown = narrow.until_works(goes_on)
    assert (shown["attempt"], shown["restarts"]) == (1, 0)
    check_nodes(narrow)


def test_a_user_who_does_everything_at_once_keeps_nobody_from_running(narrow: StruckService) -> None:
    with narrow.client() as client, Greedy(client) as greedy:
        narrow.until(lambda: sum(greedy.statuses.values()) > 100, "the greedy user has been served")
        for _ in range(3):
            short = narrow.until(partial(submitted, narrow), "somebody else is served")
            assert narrow.until_state(short, "COMPLETED")["attempt"] == 1
    assert not [status for status in greedy.statuses if status >= 500 and status != 503]
    assert greedy.statuses[201] > 0
    check_nodes(narrow)


def submitted(service: StruckService) -> str:
    """The id of a short job; "" where its connection was given to another."""
    try:
        return service.submit("sleep", 0.2, preemptible=False)
    except ServiceError:
        return ""


def check_nodes(service: StruckService) -> None:
    """No node was given up, and what was decided is decided so again."""
    assert not {"NodeLost", "NodeDead"} & {kind for _, _, kind, _ in service.running.log_of_all()}
    assert service.running.differences()[1] == 0
