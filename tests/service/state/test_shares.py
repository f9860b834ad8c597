"""Shares as the log gives them: usage by account, exactly the same when the log is folded again."""

import random

import pytest
from tests.service.scene import Scene

from stretto.service.state import events as happened
from stretto.service.state.reducer import apply
from stretto.service.state.shares import shares_of
from stretto.service.state.state import State


def row(state: State, name: str, now_s: float) -> dict[str, object]:
    return next(one for one in shares_of(state, lambda _: True, now_s) if one["name"] == name)


def submitted(scene: Scene, name: str, user: str, queue: str = "", gpus: int = 1) -> None:
    scene.submit(name, gpus, queue=queue, user=user)


def story(seed: int) -> Scene:
    """Jobs of three users come, run on changing GPUs, move with their queues, and end."""
    chance, scene = random.Random(seed), Scene(nodes=2, gpus=4)
    scene.tell(happened.TypesSeen(({"name": "a100", "speed": 1.7},)))
    for number in range(60):
        scene.now_s += chance.expovariate(1 / 500.0)
        held = dict((scene.state.placement or {}).items())
        free = [
            mask
            for mask in range(8)
            if not any(one.nodes[0] * 4 + one.masks[0].bit_length() - 1 == mask for one in held.values())
        ]
        match chance.choice(["submit", "submit", "give", "take", "queue", "delete", "end"]):
            case "submit":
                submitted(scene, str(number), chance.choice("abc"), chance.choice(["", "x", "y"]))
            case "give" if free and (
                waiting := [one.id for one in scene.state.open_jobs() if one.id not in held]
            ):
                at = chance.choice(free)
                scene.give(**{f"_{chance.choice(waiting)}": {f"n{at // 4}": 1 << at % 4}})
            case "take" if held:
                scene.give(**{f"_{chance.choice(sorted(held))}": None})
            case "queue":
                users = chance.choice([None, ("a",), ("a", "b")])
                scene.tell(
                    happened.QueueSet(chance.choice("xy"), 4, users=users),
                    happened.QueueSet("default", is_default=True),
                )
            case "delete":
                scene.tell(happened.QueueDeleted(chance.choice("xy")))
            case "end" if scene.state.open:
                scene.tell(happened.Ended(chance.choice(scene.state.open_jobs()).id, "COMPLETED", 0))
    return scene


@pytest.mark.parametrize("seed", range(20))
def test_usage_after_a_replay_is_usage_live_bit_for_bit(seed: int) -> None:
    scene = story(seed)
    assert scene.state.usage.balances, "nobody has had anything"
    again = State()
    for number, (event, at_s) in enumerate(zip(scene.log, scene.times, strict=True), start=1):
        apply(again, event, number, at_s)
    assert again.usage == scene.state.usage
    assert shares_of(again, lambda _: True, 1e6) == shares_of(scene.state, lambda _: True, 1e6)
    held = {account: balance.rate for account, balance in again.usage.balances.items() if balance.rate}
    expected: dict[tuple[str, str], int] = {}
    for record in again.open_jobs():
        if record.accounting.held_gpus:
            expected[record.account] = expected.get(record.account, 0) + 1_700 * record.accounting.held_gpus
    assert held == expected


def test_usage_halves_and_follows_the_speed_of_the_gpus() -> None:
    scene = Scene()
    scene.tell(happened.Configured("fifo", fair_share_half_life_s=3_600.0))
    scene.tell(happened.TypesSeen(({"name": "a100", "speed": 2.0},)))
    submitted(scene, "1", "ada", gpus=2)
    scene.give(_1={"n0": 0b11})
    scene.now_s = 0.36
    scene.tell(happened.Ended("1", "COMPLETED", 0))
    assert row(scene.state, "ada", 0.36)["usage_gpu_hours"] == pytest.approx(4 * 0.0001, rel=1e-3)
    scene.submit("2")
    assert row(scene.state, "ada", 3_600.36)["usage_gpu_hours"] == pytest.approx(2 * 0.0001, rel=1e-3)


def test_rows_say_who_is_entitled_to_what_and_who_borrows() -> None:
    scene = Scene(nodes=2, gpus=4)
    scene.tell(happened.QueueSet("lab", 2, 6, shares=3.0), happened.QueueSet("default", is_default=True))
    scene.tell(happened.UserSharesSet("bob", 2.0))
    submitted(scene, "1", "ada", "lab")
    submitted(scene, "2", "bob", "lab", gpus=4)
    scene.give(_2={"n0": 0b1111})
    rows = shares_of(scene.state, lambda user: user != "ada", 60.0)
    assert [(one["name"], one["kind"], one["queues"]) for one in rows] == [
        ("default", "queue", []),
        ("lab", "queue", []),
        ("bob", "user", ["lab"]),
    ]
    default, lab, bob = rows
    assert [one["entitled_gpus"] for one in rows] == [2.0, 6.0, 4.0]
    assert (lab["quota_gpus"], lab["held_gpus"], lab["borrowed_gpus"]) == (2, 4, 2.0)
    assert (bob["shares"], bob["held_gpus"], bob["borrowed_gpus"]) == (2.0, 4, 0.0)
    assert (default["factor"], lab["factor"], bob["factor"]) == (1.0, 2 ** -(4 / 3), 2**-1.5)
