"""How many requests a worker answers together: as many as let two batches fit into the latency."""

import pytest

from stretto.sdk.batch_times import AGAIN, LEAST_BATCHES, WARM_UP, BatchTimes


def after(times: BatchTimes, batches: int, alpha_s: float = 0.01, beta_s: float = 0.01) -> list[int]:
    """The largest batch before each of so many full ones."""
    tried = []
    for _ in range(batches):
        tried.append(times.largest)
        times.add(times.largest, alpha_s + beta_s * times.largest)
    return tried


@pytest.mark.parametrize(
    ("most", "latency_s", "largest"),
    [
        pytest.param(64, 0.2, 9, id="two batches of 100 ms"),
        pytest.param(64, 0.043, 1, id="two requests would take too long"),
        pytest.param(64, 0.01, 1, id="so does one, which has to be answered all the same"),
        pytest.param(4, 0.2, 4, id="no more than the script allows"),
        pytest.param(8, 0.0, 8, id="no latency was promised"),
    ],
)
def test_it_settles_where_two_batches_fit(most: int, latency_s: float, largest: int) -> None:
    times = BatchTimes(most, latency_s)
    tried = after(times, 100)
    assert times.largest == largest
    assert max(tried) <= max(largest + 1, 2), "it tries one more at most"


def test_batches_that_are_not_full_do_not_change_it() -> None:
    times = BatchTimes(64, 0.2)
    after(times, 100)
    for _ in range(50):
        times.add(3, 5.0)
    assert times.largest == 9


def test_it_falls_where_batches_begin_to_take_longer_and_comes_back_afterwards() -> None:
    times = BatchTimes(64, 0.21)
    after(times, 100)
    after(times, 100, beta_s=0.03)
    assert times.largest <= 3
    after(times, 20 * AGAIN)
    assert times.largest == 9


def test_the_first_batches_do_not_count() -> None:
    times = BatchTimes(64, 0.2)
    for _ in range(WARM_UP):
        times.add(1, 60.0)
    after(times, 100)
    assert times.largest == 9


def test_reports_have_few_sizes_and_those_that_say_where_the_latency_ends() -> None:
    times = BatchTimes(64, 0.2)
    for _ in range(10):
        for size in range(1, 9):
            times.add(size, 0.01 + 0.01 * size)
    after(times, 100)
    points = times.points(2, 4)
    assert [point[2] for point in points] == [1, 2, 4, 8, 9, 10]
    assert points[0] == [2, 4, 1, 1, pytest.approx(0.02), pytest.approx(0.02)]
    times.forget()
    assert times.points(2, 4) == []
    assert times.largest == 9
    for _ in range(LEAST_BATCHES - 1):
        times.add(1, 0.02)
    assert times.points(2, 4) == [], "a mean of so few says little"
