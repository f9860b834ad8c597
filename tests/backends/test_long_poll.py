"""Waits for a change end with it, for all who wait."""

import asyncio

from stretto.backends.protocol import LongPoll

LONG_S = 600.0


def test_a_first_wait_ends_at_once() -> None:
    assert asyncio.run(LongPoll().wait(0, LONG_S)) == 1


def test_a_wait_without_a_change_ends_with_its_time() -> None:
    assert asyncio.run(LongPoll().wait(1, 0.01)) == 1


def test_one_change_ends_every_wait_and_the_next_wait_is_for_the_next_change() -> None:
    async def story() -> None:
        poll = LongPoll()
        waits = [asyncio.create_task(poll.wait(1, LONG_S)) for _ in range(3)]
        await asyncio.sleep(0)
        poll.notify()
        assert await asyncio.gather(*waits) == [2, 2, 2]
        again = asyncio.create_task(poll.wait(2, LONG_S))
        await asyncio.sleep(0)
        assert not again.done()
        poll.notify()
        assert await again == 3

    asyncio.run(story())


def test_what_changed_before_the_wait_is_not_waited_for() -> None:
    async def story() -> None:
        poll = LongPoll()
        poll.notify()
        poll.notify()
        assert await poll.wait(1, LONG_S) == 3

    asyncio.run(story())
