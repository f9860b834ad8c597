"""Users take turns: nobody waits for all that somebody else has asked for."""

import asyncio

import pytest

from stretto.service.pool import TooManyWaiting, Turns


async def ask(turns: Turns, user: str, served: list[str], go_on: asyncio.Event) -> None:
    async with turns.turn(user):
        served.append(user)
        await go_on.wait()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_user_has_one_turn_at_a_time_and_the_others_come_in_between() -> None:
    async def story() -> None:
        turns, go_on = Turns(2, 10), asyncio.Event()
        served: list[str] = []
        greedy = [asyncio.create_task(ask(turns, "greedy", served, go_on)) for _ in range(5)]
        await settle()
        assert served == ["greedy"]  # although two places are free
        others = [asyncio.create_task(ask(turns, user, served, go_on)) for user in ("ada", "bob")]
        await settle()
        assert served == ["greedy", "ada"]
        go_on.set()
        await asyncio.gather(*greedy, *others)
        assert served.index("bob") == 2 or served[2:4] == ["greedy", "bob"]
        assert sorted(served) == ["ada", "bob", *["greedy"] * 5]

    asyncio.run(story())


def test_a_full_queue_refuses_its_user_and_nobody_else() -> None:
    async def story() -> None:
        turns, go_on = Turns(1, 2), asyncio.Event()
        served: list[str] = []
        greedy = [asyncio.create_task(ask(turns, "greedy", served, go_on)) for _ in range(3)]
        await settle()
        with pytest.raises(TooManyWaiting):
            await ask(turns, "greedy", served, go_on)
        ada = asyncio.create_task(ask(turns, "ada", served, go_on))
        await settle()
        go_on.set()
        await asyncio.gather(*greedy, ada)

    asyncio.run(story())


def test_who_gives_up_leaves_the_queue_and_hands_on_a_turn() -> None:
    async def story() -> None:
        turns, go_on = Turns(1, 2), asyncio.Event()
        served: list[str] = []
        first, second, third = (
            asyncio.create_task(ask(turns, user, served, go_on)) for user in ("ada", "bob", "cy")
        )
        await settle()
        second.cancel()
        await settle()
        first.cancel()
        await settle()
        assert served == ["ada", "cy"]
        third.cancel()  # while it has its turn
        await settle()
        last = asyncio.create_task(ask(turns, "bob", served, go_on))
        await settle()
        assert served == ["ada", "cy", "bob"]
        go_on.set()
        await last

    asyncio.run(story())
