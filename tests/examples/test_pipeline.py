"""Replicas of a pipeline grow and shrink while they train, and no sample is lost."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large, pytest.mark.long]

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = 1437  # of the digits, those to train on
EPOCHS = 300
OPTIONS = ("--slots", "4", "--gpu-type", "cpu", "--policy", "gandiva")  # which grows without a look at speeds


def is_exact(seen: Path) -> bool:
    """As `seen.py` counts."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import seen as counting  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(EXAMPLES))
    return bool(counting.is_exact(seen, SAMPLES, EPOCHS))


def test_a_pipeline_of_two_stages_is_resized_by_replicas_without_losing_samples(tmp_path: Path) -> None:
    running = Running(tmp_path, *OPTIONS)
    running.begin()
    try:
        with running.client() as client:
            job = {
                "name": "pipeline",
                "run": f"{sys.executable} pipeline.py --epochs {EPOCHS} --seen {tmp_path / 'seen'}",
                "workdir": str(EXAMPLES),
                "resources": {"gpus_per_worker": {"cpu": 2, "rtx": 4}},
                "elastic": {"min": 2, "max": 4},
                "grace_period": "10s",
                "envs": {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            }
            name = str(client.submit(json.dumps(job))["id"])

            def resized(gpus: int) -> None:
                what = f"{gpus} slots are trained on"
                until(lambda: client.describe(name)["training_gpus"] == gpus, 240.0, what)

            resized(4)
            other = {"name": "other", "run": "sleep 999", "resources": {"accelerators": 2}}
            taker = str(client.submit(json.dumps({**other, "grace_period": "1s"}))["id"])
            resized(2)
            client.change(taker, "cancel")
            resized(4)
            workers = [body for _, _, kind, body in running.log_of_all() if kind == "WorkersWanted"]
            assert {
                worker["mask"].bit_count()
                for body in workers
                for worker in body["workers"]
                if body["job"] == name
            } == {2}
            until(lambda: client.describe(name)["ended_s"], 400.0, "the training ends")
            assert client.describe(name)["state"] == "COMPLETED"
            printed = "".join(client.log(name))
        assert {"on 1 x 2:", "on 2 x 2:"} <= {
            " ".join(line.split()[2:6]) for line in printed.splitlines() if line.startswith("epoch")
        }
        assert is_exact(tmp_path / "seen")
        assert running.differences()[1] == 0
    finally:
        running.end()
