"""One decision of a log made again: what it saw, what it changed, and why the others wait."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from tests.service.http.rig import a_rig, play
from tests.service.test_state_snapshots import KEY, a_log, written

from stretto.model import InputError
from stretto.service.eventlog import Recorded, Store, open_store
from stretto.service.one_decision import decision_again
from stretto.service.state_snapshots import begun, keep_from_log

pytestmark = pytest.mark.sqlite


def a_busy_log(policy: str) -> list[Recorded]:
    moves = ["submit"] * 9 + [
        "decide",
        "reconcile",
        "report",
        "decide",
        "cancel",
        "decide",
        "reconcile",
        "decide",
    ]
    return a_log(policy, [(move, number) for number, move in enumerate(moves)])


@pytest.fixture(params=["fifo", "tiresias", "sia"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "stretto.db") as opened:
        written(opened, a_busy_log(request.param))
        yield opened


def decisions_in(store: Store) -> list[Recorded]:
    return list(store.read(kinds={"Decided"}))


def test_every_decision_comes_out_as_it_was_and_says_what_it_changed(store: Store) -> None:
    decided = decisions_in(store)
    assert len(decided) >= 4
    for recorded in decided:
        shown = decision_again(store, recorded.seq).to_json()
        assert (shown["same"], shown["difference"], shown["seq"]) == (True, "", recorded.seq)
        actions = recorded.body["actions"]
        assert [(each["verb"], each["job"]) for each in shown["changes"]] == [
            (action["verb"], action["job"]) for action in actions
        ]
        for each in shown["changes"]:
            assert each["name"]
            assert each["before"]["gpus"] != each["after"]["gpus"] or each["verb"] == "move"


def test_jobs_that_wait_have_their_reason(store: Store) -> None:
    first = decision_again(store, decisions_in(store)[0].seq).to_json()
    assert first["jobs"] == 9
    assert first["waiting"] == len(first["waits"]) == 9 - len(first["changes"])
    assert all(each["why"] and each["reason"].isupper() for each in first["waits"])
    assert [(each["gpu_type"], each["gpus"], each["free"]) for each in first["types"]] == [("a100", 8, 8)]


def test_it_is_the_same_from_a_kept_state_on(store: Store) -> None:
    *_, before, last = decisions_in(store)
    whole = decision_again(store, last.seq)
    keep_from_log(store, KEY, before.seq, memory_of(store, before.seq))
    assert begun(store, KEY).state.seq == before.seq
    again = decision_again(store, last.seq, key=KEY)
    assert again.to_json() == whole.to_json()


def memory_of(store: Store, seq: int) -> bytes:
    import pickle

    return pickle.dumps(decision_again(store, seq).plan.memory)


@pytest.mark.parametrize(("seq", "got"), [(1, "an event of kind Began"), (99_999, "nothing")])
def test_a_number_of_no_decision_is_refused(store: Store, seq: int, got: str) -> None:
    with pytest.raises(InputError, match=f"decision {seq}: expected the number of a decision, got {got}"):
        decision_again(store, seq)


def test_a_decision_that_was_tampered_with_is_told_from_what_comes_out(tmp_path: Path) -> None:
    log = a_busy_log("fifo")
    where = next(index for index, one in enumerate(log) if one.kind == "Decided" and one.body["actions"])
    log[where].body["actions"].pop()
    with open_store(tmp_path / "stretto.db") as store:
        written(store, log)
        shown = decision_again(store, log[where].seq).to_json()
    assert not shown["same"]
    assert "actions was" in shown["difference"]


@pytest.mark.slow
@pytest.mark.processes
def test_operators_replay_a_decision_over_http_and_users_do_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("olga") as olga:
            job = await rig.submit("ada")
            await rig.until(lambda: rig.backend.started)
            listed = (await olga.get("/api/v1/decisions?limit=50")).json()
            seq = next(each["seq"] for each in listed["decisions"] if each["changes"])
            assert listed["again"].endswith(
                "stretto simulate --from-log " + str(tmp_path / "log.db") + " --decision"
            )
            assert (await ada.get("/api/v1/decisions")).json()["again"] == ""
            refused = await ada.get(f"/api/v1/decisions/{seq}/again")
            assert refused.status_code == HTTPStatus.FORBIDDEN
            shown = (await olga.get(f"/api/v1/decisions/{seq}/again")).json()
            assert (shown["seq"], shown["same"], shown["command"]) == (seq, True, f"{listed['again']} {seq}")
            assert [(each["job"], each["verb"]) for each in shown["changes"]] == [(job, "start")]
            unknown = await olga.get("/api/v1/decisions/999999/again")
            assert unknown.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
            assert "expected the number of a decision" in unknown.json()["detail"]

    play(story)
