"""Jobs that bring their files along, over every backend; a real training among them."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.conformance.service import StruckService
from tests.conformance.test_trainings import EXAMPLES, SAMPLES

from stretto.demo.scene import compare_samples
from stretto.testing.services.uploads import Uploads

pytestmark = [pytest.mark.processes, pytest.mark.large]

EPOCHS = 3


class TestUploads(Uploads):
    """Over every cluster of `worlds`."""


def test_a_training_that_came_by_upload_trains_on_each_sample_once(
    service: StruckService, tmp_path: Path
) -> None:
    tree, seen = tmp_path / "tree", tmp_path / "seen"
    shutil.copytree(EXAMPLES, tree)
    options = f"--channels 32 --epochs {EPOCHS} --target 0.5 --seen {seen}"
    training = {
        "name": "digits",
        "run": f"exec {sys.executable} digits_cnn.py {options}",
        "resources": {"accelerators": 2},
        "batch": {"init": 64},
        "envs": {"OMP_NUM_THREADS": "1"},
    }
    with service.client() as client:
        job = str(client.submit(json.dumps(training), upload=tree)["id"])
    shutil.rmtree(tree)
    ended = service.until_state(job, "COMPLETED", "FAILED")
    assert (ended["state"], ended["attempt"]) == ("COMPLETED", 1), (
        ended["evidence"],
        service.log(job)[-2000:],
    )
    exact, said = compare_samples(EXAMPLES, seen, seen)
    assert exact, said
    assert said == f"{EPOCHS * SAMPLES} samples in {EPOCHS} epochs: each once"
