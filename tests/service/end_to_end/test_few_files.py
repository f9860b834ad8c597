"""A service that can open few files, and somebody who takes all that are left: no job loses anything."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from stretto.client import Client, ServiceError
from stretto.demo.own_service import PATIENCE_S, until
from stretto.demo.scene import QUICK
from stretto.model import InputError

from ..running import Running
from .greedy import Greedy
from .idlers import Idlers
from .test_scene import check, play_unhurried

pytestmark = [pytest.mark.processes, pytest.mark.large]

PROGRAM = str(Path(__file__).with_name("few_files.py"))
LEFT = 64  # files, once a service has started
SILENT_S, DEAD_AFTER_S = 3.0, 2.0  # which silence of a node may last; by far less than the idlers stay
IDLERS = 300
OPTIONS = ("--slots", "2", "--gpu-type", "cpu", "--policy", "fifo", "--dead-after", f"{DEAD_AFTER_S:g}s")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many files a service may have open so that so many are left once it has started."""
    running = Running(tmp_path_factory.mktemp("usual"), *OPTIONS)
    try:
        running.begin()
        assert running.process is not None
        numbers = [int(one.name) for one in Path(f"/proc/{running.process.pid}/fd").iterdir()]
        return len(numbers) + LEFT
    finally:
        running.end()


@pytest.fixture
def running(tmp_path: Path, files: int) -> Iterator[Running]:
    running = Running(tmp_path, *OPTIONS, program=(PROGRAM, str(files), f"{SILENT_S:g}"))
    try:
        yield running
    finally:
        running.end()


def submitted(client: Client, key: str) -> str:
    """The id of a short job; "" where a slow machine had not asked before its place was given to another."""
    try:
        return str(client.submit("{name: short, run: sleep 2}", key=key)["id"])
    except ServiceError:
        return ""


def cancelled(client: Client, job: str) -> bool:
    try:
        client.change(job, "cancel")
    except ServiceError:
        return False
    except InputError:  # it was, although the answer was lost
        return True
    return True


@pytest.mark.long  # a further variant of the next one
def test_idle_connections_without_a_token_end_no_job(running: Running) -> None:
    running.begin()
    with running.client() as client:
        goes_on = str(client.submit("{name: long, run: sleep 600}")["id"])
    with running.client() as client, Idlers(running.port, IDLERS) as idlers:
        until(
            lambda: client.describe(goes_on, patiently=True)["state"] == "RUNNING", what="the long job runs"
        )
        until(lambda: idlers.opened > 2 * IDLERS, what="all the idlers are there")
        for number in range(5):
            with running.client() as other:  # who comes anew is served, too
                short = until(partial(submitted, other, str(number)), what="a newcomer is served")
                shown = other.wait(short)
            assert (shown["state"], shown["attempt"]) == ("COMPLETED", 1)
        shown = client.describe(goes_on, patiently=True)
        assert (shown["state"], shown["attempt"], shown["restarts"]) == ("RUNNING", 1, 0)
        until(lambda: cancelled(client, goes_on), what="the long job is cancelled")
    kinds = [kind for _, _, kind, _ in running.log_of_all()]
    assert not {"NodeLost", "NodeDead"} & {*kinds}
    assert running.differences()[1] == 0


def test_a_user_who_does_everything_at_once_keeps_nobody_from_running(running: Running) -> None:
    running.begin()
    with running.client() as client, Greedy(client) as greedy:
        until(lambda: sum(greedy.statuses.values()) > 100, what="the greedy user has been served")
        for kind in ("batch", "interactive", "batch", "interactive"):
            submitted = client.submit(f"{{name: {kind}, kind: {kind}, run: sleep 1, preemptible: false}}")
            shown = client.wait(submitted["id"])
            assert (shown["state"], shown["attempt"]) == ("COMPLETED", 1)
            if kind == "interactive":  # in less than a second, on a machine that is not as busy as it may be
                assert shown["waited_s"] < PATIENCE_S / 2
    assert not [status for status in greedy.statuses if status >= 500 and status != 503]
    assert greedy.statuses[201] > 0
    assert not {"NodeLost", "NodeDead"} & {kind for _, _, kind, _ in running.log_of_all()}


@pytest.mark.long
@pytest.mark.parametrize("who", ["idle connections", "a greedy user"])
def test_the_scene_is_played_with_few_files(tmp_path: Path, files: int, who: str) -> None:
    with ExitStack() as stack:

        def begin(client: Client) -> None:
            port = int(client.url.rpartition(":")[2])
            stack.enter_context(
                Idlers(port, IDLERS) if who == "idle connections" else Greedy(client, submits=False)
            )

        program = (PROGRAM, str(files), f"{SILENT_S:g}")
        check(play_unhurried(tmp_path, QUICK, "sia", program, before=begin))
