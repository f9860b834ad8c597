"""What was accepted once is folded whenever it is read; an event that cannot be is passed over."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.jobfile.specs import specs
from tests.service.play import DUE
from tests.service.scene import Scene

from stretto.jobfile import JobSpec, When, Worth, read_submission, spec_to_job
from stretto.model import InputError
from stretto.scheduler.round import decide
from stretto.service.eventlog import Recorded
from stretto.service.eventlog.writer import fold
from stretto.service.scheduling.decision import snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.service import submission
from stretto.service.state.events import Configured, NodeLost, NodeSeen, UnknownEvent
from stretto.service.state.reducer import apply
from stretto.service.state.state import State

UNIX_S = 1.0e9  # when the clock of a scene was zero
YEAR_S = 366 * 86_400.0
ACCEPTED_S = 1_000.0  # when it was looked at
LATER_S = st.floats(0.0, YEAR_S) | st.sampled_from([0.0, 1e-9, 1.0, 5.0, 3_600.0])


def date(after_s: float) -> str:
    return datetime.fromtimestamp(UNIX_S + ACCEPTED_S + after_s, UTC).isoformat()


TEXTS = {
    "a deadline": f"run: x\ndeadline: {date(5)}",
    "rewards on the calendar": f"run: x\nrewards: [{{by: {date(5)}, worth: 2}}, {{by: {date(9)}, worth: 1}}]",
    "rewards of both kinds": f"run: x\nrewards: [{{by: 10m, worth: 2}}, {{by: {date(700)}, worth: 1}}]",
}


def accepted(spec: JobSpec) -> bool:
    cluster = a_scene().state.cluster
    assert cluster is not None
    try:
        spec_to_job(spec, "new", ACCEPTED_S, cluster, epoch_s=UNIX_S)
    except InputError:
        return False
    return True


def a_scene() -> Scene:
    return Scene(nodes=40, gpus=8)


def folded(spec: JobSpec, later_s: float) -> State:
    """The state once a submission is written, so long after it was accepted."""
    state = a_scene().state
    apply(state, submission("1", spec, "ada", "", ()), state.seq + 1, ACCEPTED_S + later_s)
    return state


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("later_s", [0.0, 4.0, 5.0, 600.0, 3_600.0, YEAR_S])
def test_what_was_accepted_is_folded_however_late_it_is_written(text: str, later_s: float) -> None:
    spec, _ = read_submission(text)
    assert accepted(spec)
    (record,) = folded(spec, later_s).jobs.values()
    due_s = [one.deadline_s for one in record.job.rewards]
    assert due_s == sorted(due_s)
    assert all(one > record.job.submitted_s for one in due_s)


SOON = st.floats(1e-6, YEAR_S).map(lambda after_s: When(at_unix_s=UNIX_S + ACCEPTED_S + after_s))
TIMES = st.fixed_dictionaries({"deadline": SOON}) | st.fixed_dictionaries(
    {
        "rewards": st.tuples(SOON, st.builds(When, after_s=st.floats(1e-3, YEAR_S))).map(
            lambda some: (Worth(some[0], 2.0), Worth(some[1], 1.0))
        )
    }
)


@given(spec=specs(), times=st.just({}) | TIMES, later_s=LATER_S)
def test_every_accepted_submission_is_folded_and_decided_about_at_any_later_time(
    spec: JobSpec, times: dict[str, Any], later_s: float
) -> None:
    asked = tuple(replace(one, gpu_type="a100") for one in spec.resources.accelerators[:1])
    resources = replace(spec.resources, accelerators=asked, cpus=None, memory_gb=None)
    spec = replace(spec, resources=resources, depends_on=(), **({"deadline": None, "rewards": (), **times}))
    assume(accepted(spec))
    state = folded(spec, later_s)
    assert len(state.jobs) == (len(spec.array.indices) if spec.array else 1)
    scheduler = scheduler_of(Configured("edf"))
    builder = SnapshotBuilder(scheduler.policy.views)
    decide(snapshot_for(scheduler, builder, state, ACCEPTED_S + later_s + 1.0, DUE), scheduler)


def recorded(seq: int, kind: str, body: dict[str, Any]) -> Recorded:
    return Recorded(seq, 5.0, kind, str(body.get("job", "")), body)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("Cancelled", {"why": "no job"}, "missing 1 required positional argument: 'job'"),
        ("Submitted", {"job": "7", "spec": {"nonsense": 1}}, "unknown key 'nonsense'"),
        ("Decided", {"seen": 1, "at_s": 0.0, "due": [], "actions": [{"verb": "dance"}]}, "dance"),
        ("WorkersWanted", {"job": "1", "attempt": 1, "workers": [{"id": "x", "node": "?"}]}, "?"),
        ("NodeSeen", {"node": "odd", "gpu_type": "a100", "gpus": 1_000}, "1 to 62 gpus"),
        ("TypesSeen", {"types": [{"name": "t", "colour": "red"}]}, "colour"),
    ],
)
def test_an_event_that_cannot_be_folded_is_passed_over_and_said(
    kind: str, body: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.submit("1", 1)
    scene.give(_1={"n0": 1})
    before = shown(scene.state)
    with caplog.at_level(logging.ERROR):
        fold(scene.state, recorded(scene.state.seq + 1, kind, body))
    (skipped,) = scene.state.skipped
    assert (scene.state.skips, skipped.seq, skipped.kind) == (1, scene.state.seq, kind)
    assert why in skipped.why
    assert f"event {skipped.seq} ({kind}" in caplog.text
    assert shown(scene.state) == before
    scene.reconcile()  # and everything goes on
    scene.submit("8", 1)
    assert scene.state.largest_id == 8


def test_the_id_of_a_submission_that_cannot_be_folded_is_not_given_again() -> None:
    scene = Scene()
    fold(scene.state, recorded(scene.state.seq + 1, "Submitted", {"job": "7", "spec": {"nonsense": 1}}))
    assert (scene.state.largest_id, scene.state.submitted) == (7, 0)


def test_what_a_newer_version_wrote_is_refused_and_not_left_out() -> None:
    scene = Scene()
    with pytest.raises(UnknownEvent, match="written by a newer version"):
        fold(scene.state, recorded(scene.state.seq + 1, "Nonsense", {}))
    assert scene.state.skips == 0


def shown(state: State) -> dict[str, Any]:
    """What follows from the events, but for their number and time."""
    names = ("nodes", "node_index", "types", "jobs", "open", "placement", "cluster", "submitted")
    return {name: repr(getattr(state, name)) for name in names}


def test_nodes_that_come_one_after_another_are_made_a_cluster_once_that_is_looked_at() -> None:
    state = a_scene().state
    assert state.cluster is not None
    for number in range(50):
        name = f"new{number}"
        for event in (
            NodeSeen(name, "a100", 8, others=1, shut="cordoned"),  # nobody is there who could give way
            NodeLost(name, "its kubelet says nothing"),
            NodeSeen(name, "a100", 8),
        ):
            apply(state, event, state.seq + 1, ACCEPTED_S)
            assert state.nodes_changed, event
    assert len(state.cluster.nodes) == 90
