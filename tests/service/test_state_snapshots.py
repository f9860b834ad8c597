"""A state kept on the way and the rest of the log give what the whole log gives."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.play import Deciding, spec_of

import stretto
from stretto.model import Memory, digest
from stretto.service import state_snapshots
from stretto.service.eventlog import Recorded, Store, Unrecorded, open_store
from stretto.service.scheduling.replay import Replay
from stretto.service.state import events as happened
from stretto.service.state.events import Event, body_of, subject_of
from stretto.service.state.state import State
from stretto.service.state_snapshots import Kept, begun, keep, keep_beside, opened, sealed

pytestmark = pytest.mark.sqlite

KEY = b"k" * 32
WORKED_OUT = ("_placement", "_node_facts")  # of the rest


def recorded(events: list[Event], times: list[float]) -> list[Recorded]:
    """As a log would give them back."""
    return [
        Recorded(number, at_s, type(one).__name__, subject_of(one), json.loads(json.dumps(body_of(one))))
        for number, (one, at_s) in enumerate(zip(events, times, strict=True), start=1)
    ]


def shown(state: State) -> Any:
    """Everything in a state but what is looked at again anyway."""
    assert state.cluster is not None
    parts = {name: value for name, value in vars(state).items() if name not in WORKED_OUT}
    parts["held"] = dict(state.placement or {})
    return pickle.dumps({name: repr(value) for name, value in sorted(parts.items())})


def test_what_was_worked_out_of_nodes_is_not_kept() -> None:
    state = read_on(State(), a_log("fifo", [("submit", 0), ("decide", 0)])).state
    assert state.node_facts.capacity
    again = opened(sealed(Kept(state, None), KEY), KEY)
    assert again is not None
    assert b"NodeFacts" not in pickle.dumps(state)
    assert again.state.usable().tolist() == state.usable().tolist()


def a_log(policy: str, moves: list[tuple[str, int]]) -> list[Recorded]:
    """Jobs that come, are decided about, start, train, report and end, in an order that was drawn."""
    live = Deciding(policy)
    scene, times = live.scene, [0.0] * len(live.scene.log)
    scene.log[1] = happened.Configured(policy)
    for number, (move, which) in enumerate(moves):
        jobs = [job.id for job in scene.state.open_jobs()]
        chosen = jobs[which % len(jobs)] if jobs else ""
        if move == "submit":
            spec = spec_of(1, elastic={"min_gpus": 1, "max_gpus": 3}, model="m", queue="q")
            scene.tell(happened.Submitted(str(number), spec.to_json(), "ada"))
        elif move == "decide":
            live.decide()
        elif move == "reconcile":
            scene.reconcile()
            scene.ready(*(one for one, worker in scene.running.items() if worker.life == "running"))
        elif move == "quota":
            scene.tell(happened.QueueSet("q", which, 1))
        elif chosen and move == "report":
            report = {"init_batch": 8, "points": [[1, 1, 8, 1, 0.1 + which, 0.2 + which]]}
            scene.tell(happened.Reported(chosen, report))
        elif chosen and move == "cancel":
            scene.tell(happened.Cancelled(chosen))
        times += [scene.now_s] * (len(scene.log) - len(times))
    return recorded(scene.log, times)


def read_on(state: State, log: list[Recorded], memory: Memory = None) -> Replay:
    replay = Replay(state, for_memory=True, memory=memory)
    for one in log[state.seq :]:
        replay.next(one)
    replay.finish()
    return replay


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["submit", "decide", "reconcile", "report", "cancel", "quota"]), st.integers(0, 5)
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(policy=st.sampled_from(["fifo", "sia", "tiresias", "gandiva"]), moves=MOVES, part=st.floats(0, 1))
def test_a_kept_state_and_the_rest_of_the_log_give_the_state_of_the_whole_log(
    policy: str, moves: list[tuple[str, int]], part: float
) -> None:
    log = a_log(policy, [("submit", 0), *moves, ("decide", 0)])
    whole = read_on(State(), log)
    cut = round(part * len(log))
    while cut < len(log) and any(one.kind == "Decided" and one.body["seen"] < cut for one in log[cut:]):
        cut += 1  # a decision was being made then
    first = read_on(State(), log[:cut])
    again = opened(sealed(Kept(first.state, first.memory), KEY), KEY)
    assert again is not None
    rest = read_on(again.state, log, again.memory)
    assert rest.differences == whole.differences == []
    assert shown(rest.state) == shown(whole.state)
    assert digest(rest.memory) == digest(whole.memory)


def written(store: Store, log: list[Recorded]) -> None:
    rows = [Unrecorded(one.at_s, one.kind, one.subject, one.body) for one in log]
    store.append(rows, store.last())


@pytest.fixture
def log() -> list[Recorded]:
    moves = ["submit", "decide", "reconcile", "submit", "report", "decide", "reconcile", "report", "decide"]
    return a_log("tiresias", [(move, number) for number, move in enumerate(moves)])


@pytest.mark.slow
@pytest.mark.processes
def test_a_state_is_kept_beside_the_service_and_begun_from(tmp_path: Path, log: list[Recorded]) -> None:
    whole = read_on(State(), log)
    memory = ("what a policy remembers", 7)
    with open_store(tmp_path / "log.db") as store:
        written(store, log)
        assert begun(store, KEY).state.seq == 0
        keep_beside(store, KEY, len(log), memory)
        kept = begun(store, KEY)
        assert kept.state.seq == len(log)
        assert shown(kept.state) == shown(whole.state)
        assert kept.memory == memory


def test_a_state_of_other_code_or_another_key_is_not_used(
    tmp_path: Path, log: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Kept(read_on(State(), log).state)
    with open_store(tmp_path / "log.db") as store:
        written(store, log)
        keep(store, KEY, state)
        assert begun(store, KEY).state.seq == len(log)
        assert begun(store, b"o" * 32).state.seq == 0
        *whole, last = sealed(state, KEY)
        store.keep_state(len(log), bytes([*whole, last ^ 1]))
        assert begun(store, KEY).state.seq == 0
        keep(store, KEY, state)
        monkeypatch.setattr(state_snapshots, "code_digest", lambda: b"other")
        assert begun(store, KEY).state.seq == 0


def test_what_is_installed_while_a_service_runs_does_not_pass_for_its_code(
    tmp_path: Path, log: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    (package / "service").mkdir(parents=True)
    code = package / "service" / "state.py"
    code.write_text("old")
    monkeypatch.setattr(stretto, "__file__", str(package / "__init__.py"))
    state_snapshots.code_digest.cache_clear()
    try:
        with open_store(tmp_path / "log.db") as store:
            written(store, log)
            state = read_on(begun(store, KEY).state, log).state
            code.write_text("new")
            keep(store, KEY, Kept(state))
            state_snapshots.code_digest.cache_clear()  # a new service
            assert begun(store, KEY).state.seq == 0
    finally:
        monkeypatch.undo()
        state_snapshots.code_digest.cache_clear()


def test_every_folder_whose_values_are_kept_is_there() -> None:
    package = Path(stretto.__file__).parent
    assert [part for part in state_snapshots.PARTS if not any((package / part).rglob("*.py"))] == []


@pytest.mark.processes
def test_a_newer_version_keeps_nothing_for_a_service_of_an_older_one(
    tmp_path: Path, log: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "log.db") as store:
        written(store, log)
        monkeypatch.setattr(state_snapshots, "code_digest", lambda: b"older")
        keep_beside(store, KEY, len(log), None)
        assert store.newest_state() is None


def test_what_cannot_be_kept_is_not(tmp_path: Path, log: list[Recorded]) -> None:
    kept = Kept(read_on(State(), log).state, memory=lambda: None)
    with open_store(tmp_path / "log.db") as store:
        written(store, log)
        keep(store, KEY, kept)
        keep_beside(store, KEY, len(log), kept.memory)
        assert store.newest_state() is None
