"""Real trainings with the SDK that are resized in place and move, over every backend: each sample once.

What starts, growths, shrinkings and cancellations of such trainings take is measured by
`benchmarks/backend_switches.py --job training`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.service import StruckService

from stretto.demo.scene import compare_samples

pytestmark = [pytest.mark.processes, pytest.mark.large]

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS, SAMPLES = 60, 1437


def a_training(seen: Path, epochs: int) -> dict[str, Any]:
    """A job file of a network that learns digits, and notes what it was trained on."""
    return {
        "name": "digits",
        "run": f"exec {sys.executable} digits_cnn.py --channels 32 --epochs {epochs} --target 0"
        f" --seen {seen}",
        "workdir": str(EXAMPLES),
        "resources": {"accelerators": 1},
        "elastic": {"min": 1, "max": 2},
        "batch": {"init": 64},
        "checkpoint": {"every": "1m"},
        "grace_period": "20s",
        "envs": {"OMP_NUM_THREADS": "1"},
    }


def test_a_training_grows_shrinks_and_moves_in_place_and_trains_on_each_sample_once(
    service: StruckService, tmp_path: Path
) -> None:
    job = submitted(service, tmp_path / "seen", EPOCHS)
    for gpus in (1, 2, 1):
        scaled(service, job, gpus)
    resized = service.shown(job)
    assert (resized["attempt"], resized["failures"]) == (1, 0), "it was never restarted"
    assert resized["switches"] >= 2
    (node,) = resized["nodes"]
    with service.client() as client:
        client.close_node(node, closed=True, drain=True)
        try:
            service.until(lambda: {*trains_on(service, job)} - {node}, f"{job} trains elsewhere")
        finally:
            client.close_node(node, closed=False)
    ended = service.until_state(job, "COMPLETED", "FAILED")
    assert ended["state"] == "COMPLETED", service.log(job)[-2000:]
    assert ended["failures"] == 0
    exact, said = compare_samples(EXAMPLES, tmp_path / "seen", tmp_path / "seen")
    assert exact, said
    assert said == f"{EPOCHS * SAMPLES} samples in {EPOCHS} epochs: each once"


def submitted(service: StruckService, seen: Path, epochs: int) -> str:
    """The id of a training, on one GPU at first."""
    with service.client() as client:
        return str(client.submit(json.dumps(a_training(seen, epochs)))["id"])


def trains_on(service: StruckService, job: str) -> dict[str, int]:
    """GPUs by node on which a training trains; none while anything is on its way."""
    shown = service.shown(job)
    is_steady = shown["state"] == "RUNNING" and shown["training_gpus"] == shown["gpus"]
    nodes: dict[str, int] = shown["nodes"]
    return nodes if is_steady else {}


def scaled(service: StruckService, job: str, gpus: int) -> None:
    """A training is on so many GPUs, and trains there."""
    service.change(job, "scale", min_gpus=gpus, max_gpus=gpus)
    service.until(lambda: sum(trains_on(service, job).values()) == gpus, f"{job} trains on {gpus} GPUs")
