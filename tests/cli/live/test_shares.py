"""Who may use what, and who is entitled to what, on the command line."""

from pathlib import Path

import pytest

from stretto.demo.own_service import OwnService

from ..ran import Stretto
from .conftest import reaches

pytestmark = pytest.mark.processes

UNKNOWN = "queue: expected one of default, open, team, got 'invented'"


@pytest.fixture
def mallory(verbs: Stretto, monkeypatch: pytest.MonkeyPatch) -> Stretto:
    """Commands of a user without any other role, where queues are set."""
    for name, *more in (("team", "--everybody"), ("open", "--quota", 4), ("vip", "--user", "bob")):
        assert verbs("queues", "set", name, *more).status == 0
    verbs("token", "revoke", "mallory")
    made = verbs("token", "create", "mallory", "--user", "mallory", "--json")
    assert made.status == 0, made.err
    monkeypatch.setenv("STRETTO_TOKEN", made.json["token"])
    return verbs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit", "--queue", "invented", "--", "true"), UNKNOWN),
        (("submit", "--queue", "vip", "--", "true"), "queue vip is for bob, not for mallory"),
        (("submit", "--priority", 1, "--", "true"), "priority 1: above 0 needs the role operator"),
        (("submit", "--dry-run", "--queue", "vip", "--", "true"), "queue vip is for bob, not for mallory"),
        (("submit", "array.yaml"), UNKNOWN),
        (("submit", "script.sbatch"), UNKNOWN),
        (("whatif", "--job", "array.yaml"), UNKNOWN),
        (("queues", "set", "team", "--quota", 100), "this needs the role admin"),
        (("shares", "set", 100, "--user", "mallory"), "this needs the role admin"),
        (("shares", "set", 100, "--queue", "team"), "this needs the role admin"),
        (
            ("reserve", "set", "r", "--end", "2h", "--gpus", 1, "--gpu-type", "cpu", "--user", "mallory"),
            "operator",
        ),
    ],
    ids=lambda words: " ".join(map(str, words)) if isinstance(words, tuple) else "",
)
def test_a_user_may_not(mallory: Stretto, words: tuple[object, ...], said: str) -> None:
    Path("array.yaml").write_text("run: 'true'\nqueue: invented\narray: 0-3\n", encoding="utf-8")
    Path("script.sbatch").write_text("#!/bin/sh\n#SBATCH -p invented\ntrue\n", encoding="utf-8")
    done = mallory(*words)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert said in done.err


def test_shares_are_set_and_shown_as_a_tree(verbs: Stretto, service: OwnService) -> None:
    assert verbs("shares", "set", 3, "--queue", "team").out == "queue team: 3 shares\n"
    assert verbs("shares", "set", 2, "--user", "ada").out == "user ada: 2 shares\n"
    verbs("submit", "--queue", "team", "--gpus", 2, "--", "sleep", "600")
    with service.client() as client:
        (job,) = client.jobs()
        reaches(client, job["id"], "RUNNING")
    rows = {(*one["queues"], one["name"]): one for one in verbs("shares", "--json").json["shares"]}
    assert rows["team",]["shares"] == 3.0
    assert (rows["team", "ada"]["shares"], rows["team", "ada"]["held_gpus"]) == (2.0, 2)
    assert 0 < rows["team", "ada"]["entitled"] <= rows["team",]["entitled"] < 1
    header, *table = verbs("shares").table
    assert header[1:4] == ["shares", "entitled", "gpus"]
    assert any(line[0] == "team/ada" for line in table)


@pytest.mark.parametrize("words", [(), ("--user", "a", "--queue", "b")], ids=["neither", "both"])
def test_shares_are_of_a_user_or_of_a_queue(verbs: Stretto, words: tuple[str, ...]) -> None:
    done = verbs("shares", "set", 2, *words)
    assert (done.status, done.err.count("\n")) == (2, 1)
