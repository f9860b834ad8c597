"""Which jobs the verbs take: ids, ranges, names, states, all."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from stretto.cli.jobs import Selection
from stretto.client import Client
from stretto.model import InputError


class Fake:
    """Lists four jobs, of which two are an array."""

    def jobs(self, user: str = "") -> list[dict[str, Any]]:
        rows = [("4", "", "RUNNING"), ("6_0", "6", "PENDING"), ("6_1", "6", "PENDING"), ("9", "", "PENDING")]
        jobs = [{"id": name, "array": array, "state": state} for name, array, state in rows]
        return jobs if user in ("", "ada") else []


@pytest.mark.parametrize(
    ("words", "names"),
    [
        pytest.param(["1", "2", "train"], ["1", "2", "train"], id="ids and names stand for themselves"),
        pytest.param(["9", "9", "4"], ["9", "4"], id="each once, in the order said"),
        pytest.param(["4-9"], ["4", "6", "9"], id="a range covers jobs that go on, an array once"),
        pytest.param(["2", "5-7"], ["2", "6"], id="both beside each other"),
        pytest.param(["9-9", "4-9"], ["9", "4", "6"], id="ranges that overlap"),
        pytest.param(["cnn-2"], ["cnn-2"], id="a name with a dash is a name"),
    ],
)
def test_words_mean(words: list[str], names: list[str]) -> None:
    assert Selection(words).names(cast("Client", Fake())) == names


def test_states_and_all_mean_ones_own_jobs_that_go_on() -> None:
    client = cast("Client", Fake())
    assert Selection([], ["pending"]).names(client) == ["6_0", "6_1", "9"]
    assert Selection([], everything=True).names(client) == ["4", "6_0", "6_1", "9"]
    assert Selection([], ["RUNNING", "PENDING"]).names(client) == ["4", "6_0", "6_1", "9"]
    assert Selection([], everything=True, user="bob").names(client) == []


@pytest.mark.parametrize(
    ("words", "states", "everything", "message"),
    [
        ([], (), False, "expected ids, ranges or names of jobs, --state, or --all"),
        (["4"], (), True, "--all: expected no jobs beside it, got 4"),
        (["4"], ("PENDING",), False, "--state PENDING: expected no jobs beside it, got 4"),
        ([], ("DONE",), False, "--state DONE: expected one of PENDING"),
        (["9-4"], (), False, "9-4: expected a range from the smaller id to the larger one"),
        (["10-20"], (), False, "10-20: expected ids of jobs that go on, got none"),
    ],
)
def test_what_names_no_jobs_is_one_line(
    words: Sequence[str], states: Sequence[str], everything: bool, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Selection(words, states, everything).names(cast("Client", Fake()))
