"""A clock that jumps by months, at a start or while the service runs, ends nothing and spoils no times."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stretto.demo.own_service import until

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]

DAY_S, HOUR_S = 86_400.0, 3_600.0
JUMPING = Path(__file__).parents[1] / "crash" / "jumping.py"
OPTIONS = ("--slots", "3", "--gpu-type", "cpu", "--policy", "fifo", "--keep-checkpoints", "30d")


class Jumping(Running):
    """A service on a machine whose clocks a test sets."""

    def __init__(self, folder: Path) -> None:
        self.clocks = folder / "clocks"
        self.clocks.mkdir()
        super().__init__(
            folder, *OPTIONS, program=(str(JUMPING),), env={**os.environ, "CLOCKS": str(self.clocks)}
        )

    def set_clock(self, ahead_s: float) -> None:
        (self.clocks / "wall").write_text(str(ahead_s))

    def restart(self, ahead_s: float) -> None:
        self.kill()
        self.set_clock(ahead_s)
        self.begin()

    def readings(self) -> list[dict[str, Any]]:
        return [body for _, _, kind, body in self.log_of_all() if kind == "ClockSet"]

    def runs(self, text: str) -> str:
        """A job, once it runs."""
        with self.client() as client:
            name = str(client.submit(text)["id"])
            until(lambda: client.describe(name)["state"] == "RUNNING", what=f"job {name} runs")
            return name

    def completes(self, text: str) -> str:
        """A job that has ended well: a look at the times of all others has come and gone meanwhile."""
        with self.client() as client:
            name = str(client.submit(text)["id"])
            assert client.wait(name)["state"] == "COMPLETED"
            return name


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Jumping]:
    running = Jumping(tmp_path)
    try:
        yield running
    finally:
        running.end()


def in_an_hour() -> str:
    return datetime.fromtimestamp(time.time() + HOUR_S, UTC).isoformat()


@pytest.mark.parametrize(
    ("while_running", "days"),
    [
        (True, 40),
        *(pytest.param(*one, marks=pytest.mark.long) for one in ((True, -40), (False, 40), (False, -40))),
    ],
)
def test_a_clock_that_is_wrong_for_a_while_ends_nothing_and_is_wrong_for_nobody_after_that(
    machine: Jumping, days: int, while_running: bool
) -> None:
    machine.begin()
    model = "mkdir -p $STRETTO_CHECKPOINT_DIR; echo model > $STRETTO_CHECKPOINT_DIR/model; echo result"
    done = machine.completes(f"{{name: done, run: '{model}'}}")
    limited = machine.runs("{name: limited, run: sleep 900, max_time: 2h}")
    with machine.client() as client:
        start = time.time() + HOUR_S
        client.reserve("soon", start=start, end=start + HOUR_S, gpu_type="cpu", gpus=1, user="x")
        (reserved,) = client.reservations()
    for ahead_s in (days * DAY_S, 0.0):
        known = len(machine.readings())
        if while_running:
            machine.set_clock(ahead_s)
        else:
            machine.restart(ahead_s)
        until(lambda known=known: len(machine.readings()) > known, what="the jump is noticed")  # type: ignore[misc]
        machine.completes("{name: short, run: sleep 2}")
        with machine.client() as client:
            assert client.describe(limited)["state"] == "RUNNING"
            assert client.reservations() == [reserved]
            assert "result" in "".join(client.log(done))
        assert (machine.state / f"checkpoints/{done}/model").exists()
    assert [round(one["jumped_s"] / DAY_S) for one in machine.readings()] == [0, days, -days]
    with machine.client() as client:
        due = str(client.submit(f"{{name: due, run: 'true', deadline: '{in_an_hour()}'}}")["id"])
        assert client.wait(due)["state"] == "COMPLETED"
        later = str(client.submit(f"{{name: later, run: 'true', start_after: '{in_an_hour()}'}}")["id"])
        machine.completes("{name: short, run: 'true'}")
        assert client.describe(later)["state"] == "PENDING"
        client.reserve("now", end=time.time() + HOUR_S, gpu_type="cpu", gpus=1, user="x")
        newest = list(client.events())[-1]
        assert abs(newest["unix_s"] - time.time()) < 60
        assert client.describe(limited)["age_s"] < 600
        client.change(limited, "cancel")
        client.change(later, "cancel")
        client.wait(limited)
    times = [at_s for _, at_s, _, _ in machine.log_of_all()]
    assert times == sorted(times)
    assert times[-1] < 600
    assert machine.differences()[1] == 0
    assert "jumped" in (machine.state / "service.log").read_text()


def test_a_log_that_began_with_a_wrong_clock_is_right_at_the_next_start(machine: Jumping) -> None:
    machine.set_clock(40 * DAY_S)
    machine.begin()
    first = machine.completes("{name: first, run: 'true'}")
    machine.restart(0.0)
    with machine.client() as client:
        due = str(client.submit(f"{{name: due, run: 'true', deadline: '{in_an_hour()}'}}")["id"])
        assert client.wait(due)["state"] == "COMPLETED"
        later = str(client.submit(f"{{name: later, run: 'true', start_after: '{in_an_hour()}'}}")["id"])
        client.reserve("now", end=time.time() + HOUR_S, gpu_type="cpu", gpus=1, user="x")
        machine.completes("{name: short, run: 'true'}")
        assert client.describe(later)["state"] == "PENDING"
        assert client.describe(first)["age_s"] < 600
        assert all(abs(one["unix_s"] - time.time()) < 600 for one in client.events())
        client.change(later, "cancel")
    assert machine.differences()[1] == 0
