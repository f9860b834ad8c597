from typing import Any

import pytest

from stretto.model import InputError
from stretto.place import PLACERS, Buddy, WholeNodes, load_placer


@pytest.mark.parametrize("name", PLACERS)
def test_every_placer_can_be_had_by_name(name: str) -> None:
    assert load_placer(name) == PLACERS[name]()


def test_settings_are_the_fields_of_a_placer() -> None:
    assert load_placer("whole-nodes", evict=False) == WholeNodes(evict=False)
    assert load_placer("buddy", migrate=False, split=True) == Buddy(migrate=False, split=True)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tetris", {}, "unknown placer 'tetris', expected one of .*'buddy'"),
        (
            "buddy",
            {"move": True},
            "unknown setting place.move, expected one of migrate, split",
        ),
        ("spread", {"evict": True}, "unknown setting place.evict, there are none"),
        ("whole-nodes", {"evict": "maybe"}, "place.evict must be true or false, got 'maybe'"),
    ],
)
def test_what_is_not_there_is_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_placer(name, **settings)
