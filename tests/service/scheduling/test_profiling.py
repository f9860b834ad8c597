"""What jobs of a model have shown serves those that come after them, also after a restart."""

import pytest
from tests.service.play import Deciding

from stretto.model import View
from stretto.service.scheduling.decision import profiles_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import body_of, event_of
from stretto.service.state.reducer import apply
from stretto.service.state.reported_metrics import with_points
from stretto.service.state.state import State
from stretto.service.state_snapshots import Kept, opened, sealed

BOUNDS = {"init_batch": 64, "max_batch": 1024, "max_local": 128, "grad_sqr": 1.0, "grad_var": 50.0}
KEY = b"k" * 32


def points(*gpus: int, grad_s: float = 0.1) -> list[list[float]]:
    return [[1, one, 64, 1, grad_s, grad_s + 0.01 * (one > 1)] for one in gpus]


def submit(live: Deciding, name: str, model: str = "m", most: int = 8) -> None:
    batch = {"policy": "adaptive"}  # the script alone knows its batch
    live.submit(name, "", 1, most, model=model, batch=batch)


def first_size(live: Deciding, name: str) -> int:
    submit(live, name)
    live.decide()
    return live.gpus(name)


def with_a_first_job() -> Deciding:
    """The first job of a model started on one GPU, and has been seen on four."""
    live = Deciding("sia")
    assert first_size(live, "1") == 1
    live.scene.tell(happened.Reported("1", {**BOUNDS, "points": points(1, 2, 4)}))
    live.end("1")
    return live


def test_the_second_job_of_a_model_starts_at_a_better_size_than_the_first() -> None:
    live = with_a_first_job()
    assert first_size(live, "2") >= 4


def test_it_does_so_after_a_restart_from_the_log_and_from_a_kept_state() -> None:
    live = with_a_first_job()
    whole = State()
    for number, event in enumerate(live.scene.log, start=1):
        apply(whole, event_of(type(event).__name__, body_of(event)), number, live.scene.now_s)
    kept = opened(sealed(Kept(live.scene.state, live.scene.memory), KEY), KEY)
    assert kept is not None
    for state in (whole, kept.state):
        again = Deciding("sia")
        again.scene.state, again.scene.now_s = state, live.scene.now_s
        assert first_size(again, "2") >= 4


def test_who_waited_meanwhile_knows_what_was_measured_and_other_models_do_not() -> None:
    live = Deciding("sia", nodes=1, gpus=1)
    submit(live, "1")
    live.decide()
    submit(live, "2")
    submit(live, "3", model="other")
    live.scene.tell(happened.Reported("1", {**BOUNDS, "points": points(1, 2)}))
    assert live.scene.state.jobs["2"].prior.largest_gpus == 2
    assert live.scene.state.jobs["3"].prior.largest_gpus == 0


def test_later_measurements_replace_earlier_ones_of_the_same_shape_and_add_to_others() -> None:
    one = tuple((0.0, *point) for point in points(1, 2))
    assert with_points(one, [(0.0, *point) for point in points(1, grad_s=0.102)]) is one
    better = with_points(one, [(0.0, *point) for point in points(1, 4, grad_s=0.2)])
    assert [point[2] for point in better] == [1, 2, 4]
    assert [point[5] for point in better] == [0.2, 0.1, 0.2]
    live = with_a_first_job()
    submit(live, "2")
    live.decide()
    live.scene.tell(happened.Reported("2", {**BOUNDS, "points": points(1)}))
    assert live.scene.state.models["m"].largest_gpus == 4, "one report does not make all forgotten"


class Mixed(Deciding):
    """Two nodes of different types; the first job of a model speaks and reports what it measures."""

    def __init__(self, policy: str = "sia") -> None:
        super().__init__(policy, nodes=1)
        self.scene.tell(happened.NodeSeen("fast", "h100", 4))

    def round(self, name: str, speaks: bool = True) -> tuple[str, int]:
        """A decision that is carried out, and a report from there."""
        scene = self.scene
        self.decide()
        for _ in range(6):
            scene.reconcile()
            if speaks:
                scene.ready(*(one for one, worker in scene.running.items() if worker.life == "running"))
                scene.reconcile()
                if scene.state.jobs[name].members.number:
                    scene.join(name)
        held = scene.state.wanted(name)
        assert held is not None
        assert scene.state.cluster is not None
        kind = scene.state.cluster.type_names[held.kind]
        if speaks:
            grad_s = 0.1 if kind == "a100" else 0.04
            told = points(1, held.gpus, grad_s=grad_s)
            scene.tell(happened.Reported(name, {**BOUNDS, "points": told}))
        return kind, held.gpus


def test_the_first_job_of_a_model_sees_one_gpu_of_each_type_and_is_free_then() -> None:
    live = Mixed()
    submit(live, "1", most=4)
    seen = [live.round("1") for _ in range(4)]
    assert {seen[0], seen[1]} == {("a100", 1), ("h100", 1)}
    assert seen[3][0] == "h100", "the faster one, once both are known"
    assert seen[3][1] > 1
    submit(live, "2", most=4)
    live.decide()
    assert live.gpus("2") > 1, "profiled once"


def test_a_job_that_says_nothing_is_not_sent_around() -> None:
    live = Mixed()
    live.submit("1", "", 1, 4, model="m", batch={"policy": "adaptive", "init": 64})
    kind, _ = live.round("1", speaks=False)
    assert all(live.round("1", speaks=False)[0] == kind for _ in range(6))


def test_a_type_on_which_nothing_is_reported_has_its_time_and_no_more() -> None:
    live = Mixed()
    submit(live, "1", most=4)
    first, _ = live.round("1")
    other = {"a100": "h100", "h100": "a100"}[first]
    scene = live.scene
    kinds = []
    for _ in range(8):
        live.decide()
        held = scene.state.wanted("1")
        assert held is not None
        assert scene.state.cluster is not None
        kinds.append((scene.state.cluster.type_names[held.kind], held.gpus))
    assert kinds[0] == (other, 1)
    assert kinds[:5].count((other, 1)) >= 4


def profiled_s(live: Deciding) -> float:
    """Seconds in profiling runs, as a policy is shown them of the first job."""
    views = frozenset({View.PROGRESS})
    snapshot = SnapshotBuilder(views).observe(live.scene.state, live.scene.now_s, frozenset())
    return float(snapshot.jobs.progress.profiled_s[0])


@pytest.mark.parametrize(("speeds", "starting_s"), [("measured", 0.0), ("assumed", 50.0)])
def test_while_a_job_starts_a_profiling_run_does_not_count(speeds: str, starting_s: float) -> None:
    live = Deciding("unisched")
    scene = live.scene
    scene.tell(happened.Configured("unisched", speeds=speeds))
    submit(live, "1")
    live.decide()
    assert scene.state.jobs["1"].accounting.profiling
    scene.reconcile()
    scene.now_s += 50.0
    assert profiled_s(live) == starting_s
    scene.ready(*scene.names("1"))
    scene.reconcile()
    scene.join("1")
    scene.tell(happened.Reported("1", {**BOUNDS, "points": points(1)}))
    assert profiled_s(live) == 50.0


def profiled(live: Mixed, *names: str) -> dict[str, str]:
    """By job, the type on which it is to be profiled now."""
    state = live.scene.state
    assert state.cluster is not None
    types = profiles_of(state, live.scene.now_s)
    return {name: state.cluster.type_names[types[name]] for name in names if name in types}


def of_every_job() -> Mixed:
    live = Mixed()
    live.scene.tell(happened.Configured("sia", speeds="measured", workers="whole", profiles="job"))
    return live


def test_jobs_that_name_no_model_are_profiled_each_for_itself() -> None:
    live = of_every_job()
    for name in ("1", "2"):
        submit(live, name, model="", most=4)
    assert profiled(live, "1", "2") == {"1": "a100", "2": "a100"}
    assert {live.round("1"), live.round("1")} == {("a100", 1), ("h100", 1)}
    assert "1" not in profiled(live, "1"), "both types are known"
    live.scene.tell(happened.Configured("sia", speeds="measured"))
    assert not profiled(live, "1", "2"), "logs that do not say so profile none of them"


def test_jobs_of_one_model_share_the_types_and_what_they_show_is_enough_for_all() -> None:
    live = of_every_job()
    for name in ("1", "2", "3"):
        submit(live, name, most=4)
    assert profiled(live, "1", "2", "3") == {"1": "a100", "2": "h100"}
    assert live.round("1") == ("a100", 1)
    assert profiled(live, "2", "3") == {"2": "h100"}, "the a100 is known by what the first has shown"
    assert live.round("2") == ("h100", 1)
    submit(live, "4", most=4)
    assert not profiled(live, "1", "2", "3", "4")
