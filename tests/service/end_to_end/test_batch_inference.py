"""A real data set is worked off by real workers that come, go and are killed; each item has one result."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from stretto.demo.own_service import until
from stretto.sdk import read_results

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large, pytest.mark.torch, pytest.mark.long]

EXAMPLES = Path(__file__).parents[3] / "examples"
ITEMS, COPIES, BATCH = 1797, 2, 16
SLOWLY_S = 0.25


def test_digits_are_labelled_once_whatever_becomes_of_the_workers(tmp_path: Path) -> None:
    running = Running(tmp_path, "--slots", "3", "--gpu-type", "cpu", "--policy", "afs")
    running.begin()
    output = tmp_path / "labels"
    try:
        with running.client() as client:
            job = {
                "name": "labels",
                "run": f"{sys.executable} label_digits.py --output {output} --copies {COPIES}"
                f" --batch {BATCH} --slowly {SLOWLY_S}",
                "workdir": str(EXAMPLES),
                "purpose": "batch-inference",
                "resources": {"accelerators": 1},
                "elastic": {"min": 1, "max": 1},
                "grace_period": "5s",
                "envs": {"OMP_NUM_THREADS": "1"},
            }
            name = str(client.submit(json.dumps(job))["id"])

            def parts() -> int:
                return len(list(output.glob("part-*.pt")))

            def trains_on(workers: int) -> bool:
                return int(client.describe(name)["training_gpus"]) == workers

            until(lambda: parts() > 2, 180.0, "the first batches are labelled")
            client.change(name, "scale", min_gpus=3, max_gpus=3)
            until(lambda: trains_on(3), 180.0, "three workers label")
            assert client.describe(name)["attempt"] == 1, "in place"
            before = parts()
            until(lambda: parts() > before + 6, 180.0, "and make results")
            until(
                lambda: client.describe(name)["progress"].get("samples", 0) > 0, 60.0, "as the service hears"
            )
            client.change(name, "scale", min_gpus=2, max_gpus=2)
            until(lambda: trains_on(2), 180.0, "two workers label")
            assert client.describe(name)["attempt"] == 1, "in place"
            kept = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.pt")}
            victim = next(iter(running.workers().values()))
            os.killpg(int(victim["pid"]), signal.SIGKILL)
            until(lambda: client.describe(name)["attempt"] > 1, 180.0, "the job goes on in another attempt")
            until(lambda: client.describe(name)["ended_s"], 300.0, "all is labelled")
            told = client.describe(name)
            assert told["state"] == "COMPLETED", told
            log = "".join(client.log(name))
        assert f"{ITEMS * COPIES} labels, " in log
        labels = list(read_results(output))
        assert [number for numbers, _ in labels for number in numbers] == list(range(ITEMS * COPIES))
        assert sum(len(part) for _, part in labels) == ITEMS * COPIES
        both = torch.cat([part for _, part in labels]).reshape(COPIES, ITEMS)
        assert torch.equal(both[0], both[1]), "labelled alike by whomever"
        assert (
            kept.items() <= {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.pt")}.items()
        )
        assert told["progress"]["samples"] == ITEMS * COPIES
        _, differences = running.differences()
        assert not differences
    finally:
        running.end()
