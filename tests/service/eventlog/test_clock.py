"""What the clock of the service counts, and what it does with a time of day that jumps."""

from dataclasses import dataclass, field

import pytest

from stretto.jobfile import JobSpec
from stretto.service.eventlog.clock import Clock, Reading, read_clocks, resumed
from stretto.service.eventlog.clock_watch import SETTLE_S, noticed, words_of
from stretto.service.state.events import Audited, Began, ClockSet, Event, NodeSeen, Reserved, Submitted
from stretto.service.state.reducer import apply
from stretto.service.state.state import State

NOW = 1_700_000_000.0  # the right time of day when the log begins
DAY, HOUR = 86_400.0, 3_600.0


@dataclass
class Machine:
    """A machine and a service on it, whose clocks a test moves; time passes as the test says."""

    true_s: float = 0.0  # what has really passed
    wrong_s: float = 0.0  # by how much the time of day is ahead of what it should be
    boot: str = "first"
    started_s: float = -1000.0  # when the machine was
    slept_s: float = 0.0  # since then
    state: State = field(default_factory=State)
    clock: Clock = field(default_factory=Clock)
    log: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock(monotonic=self.awake_s)
        self.tell(Began(self.reading.unix_s))
        self.tell(NodeSeen("n0", "a100", 4))
        self.look()

    def awake_s(self) -> float:
        return self.true_s - self.started_s - self.slept_s

    @property
    def reading(self) -> Reading:
        passed_s = self.true_s - self.started_s
        return Reading(NOW + self.true_s + self.wrong_s, passed_s - self.slept_s, passed_s, self.boot)

    def tell(self, event: Event) -> None:
        self.log.append(event)
        apply(self.state, event, self.state.seq + 1, self.clock.now_s())

    def look(self) -> ClockSet | None:
        event = noticed(self.state.calendar, self.clock.now_s(), self.reading)
        if event is not None:
            self.tell(event)
        return event

    def passes(self, seconds: float, wrong_s: float | None = None) -> None:
        """Time passes; and the time of day is set."""
        self.true_s += seconds
        self.tell(Audited("ada", "looks"))  # something is recorded, as long as there are jobs
        self.wrong_s = self.wrong_s if wrong_s is None else wrong_s
        self.look()

    def sleeps(self, seconds: float) -> None:
        self.true_s += seconds
        self.slept_s += seconds
        self.look()

    def restart(self, off_s: float = 10.0, wrong_s: float | None = None, reboot: str = "") -> None:
        """The service ends and begins again; the machine too, if it is named."""
        self.true_s += off_s
        self.wrong_s = self.wrong_s if wrong_s is None else wrong_s
        if reboot:
            self.boot, self.started_s, self.slept_s = reboot, self.true_s - 1.0, 0.0
        begun = resumed(self.state.at_s, self.state.calendar.latest, self.reading)
        self.clock = Clock(begun.origin_s, monotonic=self.awake_s)
        self.look()

    @property
    def shown_s(self) -> float:
        """The time of day that is shown of what happens now, from when the log began."""
        return self.state.calendar.unix_at(self.clock.now_s()) - NOW

    def reserve(self, from_s: float, until_s: float) -> None:
        """By the calendar, which is right as far as whoever asks knows."""
        offset_s = self.state.unix_s - NOW
        self.tell(Reserved("r", from_s - offset_s, until_s - offset_s, "a100", 1, user="ada"))

    @property
    def is_reserved(self) -> bool:
        one = self.state.reservations["r"]
        return one.from_s <= self.clock.now_s() < one.until_s

    def submit(self, **more: object) -> None:
        spec = {"run": "true", "name": "job", "resources": {"accelerators": [{"gpu_type": "", "gpus": 1}]}}
        self.tell(Submitted("1", JobSpec.from_json({**spec, **more}).to_json(), "ada"))


def test_a_time_of_day_that_is_not_set_is_no_news() -> None:
    machine = Machine()
    for _ in range(3):
        machine.passes(DAY)
        machine.restart()
    assert [event for event in machine.log if isinstance(event, ClockSet)] == [machine.log[2]]
    assert machine.clock.now_s() == pytest.approx(3 * DAY + 30)
    assert machine.shown_s == pytest.approx(3 * DAY + 30)


@pytest.mark.parametrize("wrong_s", [40 * DAY, -40 * DAY, 2 * HOUR, -50 * 365 * DAY])
@pytest.mark.parametrize("while_running", [True, False])
def test_no_second_is_counted_that_has_not_passed(wrong_s: float, while_running: bool) -> None:
    machine = Machine()
    machine.passes(HOUR)
    for wrong in (wrong_s, 0.0):
        if while_running:
            machine.passes(10.0, wrong)
        else:
            machine.restart(10.0, wrong)
        assert machine.clock.now_s() == pytest.approx(machine.true_s)
    assert machine.shown_s == pytest.approx(machine.true_s)
    assert machine.state.calendar.unix_at(HOUR / 2) - NOW == pytest.approx(HOUR / 2)
    assert machine.state.calendar.unsettled_since_s is None
    assert machine.state.calendar.jumps == 2


def test_a_log_that_began_with_a_wrong_clock_is_right_as_soon_as_that_is() -> None:
    machine = Machine(wrong_s=40 * DAY)
    machine.passes(HOUR)
    machine.restart(wrong_s=0.0)
    assert machine.shown_s == pytest.approx(machine.true_s)
    assert machine.state.calendar.unix_at(60.0) - NOW == pytest.approx(60.0)
    deadline = {"at_unix_s": NOW + machine.true_s + HOUR}
    machine.submit(start_after=deadline, deadline=deadline)
    record = machine.state.jobs["1"]
    assert record.not_before_s - machine.clock.now_s() == pytest.approx(HOUR)
    assert record.job.rewards[0].deadline_s - machine.clock.now_s() == pytest.approx(HOUR)


@pytest.mark.parametrize("wrong_s", [40 * DAY, -40 * DAY])
def test_a_reservation_neither_opens_nor_closes_by_a_clock_that_has_just_jumped(wrong_s: float) -> None:
    machine = Machine()
    machine.reserve(HOUR, 3 * HOUR)
    machine.passes(600.0, wrong_s)
    assert not machine.is_reserved
    machine.passes(HOUR - 600.0)
    assert machine.is_reserved
    machine.passes(600.0, 0.0)
    assert machine.is_reserved
    machine.passes(3 * HOUR)
    assert not machine.is_reserved


def test_named_times_follow_a_time_of_day_that_has_stood_for_an_hour() -> None:
    machine = Machine(wrong_s=-DAY)
    day = NOW + DAY
    machine.reserve(DAY - DAY, DAY + HOUR - DAY)  # named by a clock that is a day behind
    machine.tell(Reserved("r", day - NOW + DAY, day - NOW + DAY + HOUR, "a100", 1, user="ada"))
    machine.submit(start_after={"at_unix_s": day}, deadline={"at_unix_s": day + HOUR})
    record = machine.state.jobs["1"]
    assert record.not_before_s == pytest.approx(2 * DAY)
    machine.passes(10.0, 0.0)
    assert record.not_before_s == pytest.approx(2 * DAY)
    assert machine.state.calendar.jumped_s == pytest.approx(DAY)
    machine.passes(SETTLE_S + 1.0)
    assert machine.state.calendar.jumped_s == 0.0
    assert record.not_before_s == pytest.approx(DAY)
    assert record.job.rewards[0].deadline_s == pytest.approx(DAY + HOUR)
    one = machine.state.reservations["r"]
    assert (one.from_s, one.until_s) == pytest.approx((DAY, DAY + HOUR))


def test_a_machine_that_slept_goes_on_by_the_calendar_but_counts_no_running_time() -> None:
    machine = Machine()
    machine.reserve(9 * HOUR, 10 * HOUR)
    machine.passes(HOUR)
    machine.sleeps(8 * HOUR)
    assert machine.clock.now_s() == pytest.approx(HOUR)
    assert machine.shown_s == pytest.approx(9 * HOUR)
    assert machine.is_reserved
    assert machine.state.calendar.unix_at(60.0) - NOW == pytest.approx(60.0)
    assert machine.state.calendar.jumps == 0
    machine.restart()
    assert machine.shown_s == pytest.approx(9 * HOUR + 10)


def test_a_machine_that_was_off_over_night_goes_on_by_the_calendar() -> None:
    machine = Machine()
    machine.reserve(9 * HOUR, 10 * HOUR)
    machine.passes(HOUR)
    machine.restart(8 * HOUR + 60, reboot="second")
    assert machine.clock.now_s() == pytest.approx(machine.state.at_s)
    assert machine.shown_s == pytest.approx(9 * HOUR + 60)
    assert machine.is_reserved
    assert machine.state.calendar.unix_at(60.0) - NOW == pytest.approx(60.0)


@pytest.mark.parametrize("wrong_s", [40 * DAY, -40 * DAY, -50 * 365 * DAY])
def test_a_machine_that_starts_with_a_wrong_clock_is_right_once_that_is_set(wrong_s: float) -> None:
    machine = Machine()
    machine.reserve(HOUR, 2 * HOUR)
    machine.passes(HOUR / 2)
    machine.restart(60.0, wrong_s, reboot="second")
    assert machine.state.calendar.unsettled_since_s is not None
    assert not machine.is_reserved
    machine.passes(60.0, 0.0)
    assert machine.state.calendar.unsettled_since_s is None
    machine.passes(HOUR / 2 + 60)
    assert machine.is_reserved
    assert machine.shown_s == pytest.approx(machine.true_s, abs=61)
    assert machine.state.calendar.unix_at(60.0) - NOW == pytest.approx(60.0)


def test_a_whole_run_of_the_machine_with_a_clock_behind_spoils_no_times_before_and_after() -> None:
    machine = Machine()
    machine.passes(HOUR)
    machine.restart(60.0, -50 * 365 * DAY, reboot="second")
    machine.passes(HOUR)
    machine.restart(60.0, 0.0, reboot="third")
    machine.passes(HOUR)
    assert machine.state.calendar.unix_at(60.0) - NOW == pytest.approx(60.0)
    assert machine.shown_s == pytest.approx(machine.true_s)


def test_the_log_gives_the_same_calendar_again() -> None:
    machine = Machine(wrong_s=40 * DAY)
    machine.reserve(HOUR, 2 * HOUR)
    machine.submit(deadline={"at_unix_s": NOW + 50 * DAY})
    machine.restart(wrong_s=0.0)
    machine.passes(SETTLE_S + 1)
    again = State()
    for number, event in enumerate(machine.log, start=1):
        apply(again, event, number, 0.0)
    assert again.calendar == machine.state.calendar
    assert again.reservations == machine.state.reservations
    assert again.jobs["1"].job.rewards == machine.state.jobs["1"].job.rewards


def test_the_log_of_an_older_version_has_no_readings_and_goes_on_where_it_ended() -> None:
    machine = Machine()
    machine.state = State()
    machine.tell(Began(NOW))
    machine.clock = Clock(HOUR, monotonic=machine.awake_s)
    machine.tell(NodeSeen("n0", "a100", 4))
    machine.true_s = HOUR
    machine.restart(60.0)
    assert machine.clock.now_s() == pytest.approx(HOUR)
    assert machine.shown_s == pytest.approx(HOUR + 60)
    assert machine.state.calendar.unix_at(HOUR / 2) - NOW == pytest.approx(HOUR / 2)


def test_clocks_of_this_machine_are_those_of_one_run_of_it() -> None:
    first = read_clocks()
    known = ClockSet(0.0, 0.0, 0.0, first.boot, first.awake_s, first.passed_s)
    second = read_clocks()
    assert second.follows(known)
    assert 0 <= second.awake_s - first.awake_s < 60
    assert not Reading(second.unix_s, second.awake_s, second.passed_s, "another").follows(known)
    assert not second.follows(None)


def test_a_jump_is_said_in_words() -> None:
    machine = Machine()
    machine.passes(10.0, 40 * DAY + 2 * HOUR)
    event = machine.log[-1]
    assert isinstance(event, ClockSet)
    assert words_of(event).startswith("the time of day has jumped ahead by 40 d 2 h: reservations")
    machine.passes(10.0, 0.0)
    event = machine.log[-1]
    assert isinstance(event, ClockSet)
    assert words_of(event) == "the time of day has jumped back by 40 d 2 h: it is again what it was"
