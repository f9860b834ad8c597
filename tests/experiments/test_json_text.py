"""JSON that every reader accepts."""

import json
from math import inf, nan

from stretto.experiments.json_text import json_text


def test_numbers_that_json_lacks_become_null_wherever_they_stand() -> None:
    value = {"a": nan, "b": [1.5, inf, (-inf, 2)], "c": {"d": nan, "e": "x", "f": None, "g": True}}
    assert json.loads(json_text(value)) == {
        "a": None,
        "b": [1.5, None, [None, 2]],
        "c": {"d": None, "e": "x", "f": None, "g": True},
    }


def test_the_order_of_fields_is_kept() -> None:
    assert list(json.loads(json_text({"z": 1, "a": 2}))) == ["z", "a"]
