"""What is kept of a job that has ended: what is shown of it, and no more."""

import pickle

from tests.service.scene import Scene

from stretto.service.state.events import Reported
from stretto.service.state.reported_metrics import checked_report
from stretto.service.state.status import JobStatus, status_of


def ended(epochs: int) -> tuple[JobStatus, JobStatus, int]:
    """What is shown of a job before and after its end, and bytes that are kept of it then."""
    scene = Scene(1, 2)
    record = scene.submit("1", elastic=(1, 2), model="m")
    scene.give(_1={"n0": 0b1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    for epoch in range(1, epochs + 1):
        said = {
            "step": 10 * epoch,
            "epoch": epoch,
            "samples": 640 * epoch,
            "loss": 1.0 / epoch,
            "metric": 0.5,
            "batch": 64,
            "points": [[1, 1, 64 + epoch, 1, 0.02, 0.021]],
            "epoch_metrics": [0.5] * min(epoch, 60),
            "grad_sqr": 0.5,
            "grad_var": 1.5,
        }
        scene.tell(Reported("1", checked_report(said)))
    before = status_of(scene.state, record, scene.now_s)
    scene.end("1.1.0", 0)
    scene.reconcile()
    assert record.state == "COMPLETED"
    return before, status_of(scene.state, record, scene.now_s), len(pickle.dumps(record))


def test_what_a_job_last_reported_is_still_shown_once_it_has_ended() -> None:
    before, after, _ = ended(3)
    for name in ("progress", "attempt", "restarts", "resizes", "started_s", "user", "gpus_min", "gpus_max"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.progress["step"] == 30


def test_a_long_training_leaves_no_more_behind_than_a_short_one() -> None:
    assert abs(ended(200)[2] - ended(3)[2]) < 50
