"""The conductor tells workers what a service would."""

import pytest

from stretto.testing.conductor import Conductor

pytestmark = pytest.mark.sockets


def test_only_those_that_are_there_are_told_to_leave() -> None:
    with Conductor() as conductor:
        conductor.take("ready", {"worker": "a"})
        conductor.publish(["a"])
        conductor.leave()
        status, told = conductor.answer_generation({"worker": "a", "after": "1"})
        assert (status, told["leave"]) == (200, True)
        # A worker of the next attempt may begin before its own generation is published.
        assert conductor.answer_generation({"worker": "b", "after": "0"}) == (204, None)
        conductor.publish(["b"])
        status, told = conductor.answer_generation({"worker": "b", "after": "0"})
        assert (status, told["leave"], told["generation"]) == (200, False, 3)
