"""The table of a worker's phases says what the fold does, event by event."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.scene import Scene

from stretto.service.state import events as happened
from stretto.service.state.records import JobRecord, WorkerPhase
from stretto.service.state.workers import NEXT_PHASE

WORKERS = ("1.1.0", "1.1.1", "1.1.2")
SIGNALS = ("ran", "ready", "generation", "joined", "stopped", "ended")


def a_start() -> Scene:
    """Three workers of one job that are wanted."""
    scene = Scene(nodes=1, gpus=4)
    scene.submit("1", 3, (1, 4))
    scene.give(_1={"n0": 7})
    wanted = tuple({"id": name, "node": "n0", "mask": 1 << gpu} for gpu, name in enumerate(WORKERS))
    scene.tell(happened.WorkersWanted("1", 1, wanted))
    return scene


def were_called(scene: Scene) -> set[str]:
    """Only these say that they have joined, some of them too late."""
    generations = [event for event in scene.log if isinstance(event, happened.Generation)]
    return {name for event in generations for name in event.workers}


def tell(scene: Scene, record: JobRecord, signal: str, names: tuple[str, ...]) -> dict[str, str]:
    """Have something happen to some workers; what it is to each of them."""
    if signal == "generation":
        callable_now = {WorkerPhase.READY, WorkerPhase.JOINING, WorkerPhase.TRAINING, WorkerPhase.LEFT}
        called = tuple(name for name in names if record.phase_of(record.workers[name]) in callable_now)
        if not called:
            return {}
        scene.tell(happened.Generation("1", 1, record.members.number + 1, called))
        return {name: "called" if name in called else "dropped" for name in WORKERS}
    if signal == "joined":
        names = tuple(name for name in names if name in were_called(scene))
        scene.tell(happened.WorkersJoined("1", names, record.members.number))
    elif signal == "ended":
        scene.tell(happened.WorkersEnded("1", tuple({"id": name, "status": 0} for name in names)))
    else:
        kind = {
            "ran": happened.WorkersRan,
            "ready": happened.WorkersReady,
            "stopped": happened.WorkersStopped,
        }
        scene.tell(kind[signal]("1", names))
    return dict.fromkeys(names, signal)


STORY = st.lists(
    st.tuples(st.sampled_from(SIGNALS), st.sets(st.sampled_from(WORKERS), min_size=1).map(sorted).map(tuple)),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(story=STORY)
def test_every_event_leads_where_the_table_says(story: list[tuple[str, tuple[str, ...]]]) -> None:
    scene = a_start()
    record = scene.state.jobs["1"]
    for signal, names in story:
        before = {name: record.phase_of(record.workers[name]) for name in WORKERS}
        trained = {name: record.workers[name].has_trained for name in WORKERS}
        given_to = tell(scene, record, signal, names)
        for name in WORKERS:
            expected = NEXT_PHASE[before[name]].get(given_to.get(name, ""), before[name])
            if (before[name], given_to.get(name)) == (WorkerPhase.JOINING, "dropped") and not trained[name]:
                expected = WorkerPhase.READY
            assert record.phase_of(record.workers[name]) is expected, (signal, name, before[name])


def test_every_phase_has_a_row_is_reached_and_leads_to_the_end() -> None:
    assert set(NEXT_PHASE) == set(WorkerPhase)
    reached = {phase for row in NEXT_PHASE.values() for phase in row.values()}
    assert reached == set(WorkerPhase) - {WorkerPhase.WANTED}
    for phase, row in NEXT_PHASE.items():
        assert (row.get("ended") is WorkerPhase.ENDED) == (phase is not WorkerPhase.ENDED)
