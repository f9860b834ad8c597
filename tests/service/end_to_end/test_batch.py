"""A job whose file lets its batch be chosen trains with the one that the scheduler chose."""

import json
import sys
from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]

OPTIONS = ("--slots", "2", "--gpu-type", "cpu", "--policy", "sia", "--set", "policy.round_s=2")
INIT, MOST = 32, 192
SCRIPT = f"""
import torch
from torch.nn import functional
import stretto.sdk

torch.set_num_threads(1)
torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job = stretto.sdk.elastic(
    model, optimizer, data=data, batch_size={INIT}, max_batch_size=4096, max_local_batch=96, report_s=0.5
)
told = 0
for epoch in job.epochs(100_000):
    for x, y in job.batches():
        job.backward(functional.cross_entropy(job.model(x), y))
        if job.step() and job.batch.total != told:
            told = job.batch.total
            print("followed", job.scale, job.lr_factor, flush=True)
"""


def test_the_batch_that_was_chosen_is_the_one_that_the_training_reports(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    running = Running(tmp_path, *OPTIONS)
    running.begin()
    try:
        with running.client() as client:
            job = {
                "name": "adaptive",
                "run": f"{sys.executable} train.py",
                "workdir": str(tmp_path),
                "resources": {"accelerators": 1},
                "elastic": {"min": 1, "max": 2},
                "batch": {"policy": "adaptive", "init": INIT, "max": MOST, "lr_scaling": "square-root"},
                "grace_period": "5s",
                "envs": {"OMP_NUM_THREADS": "1"},
            }
            name = str(client.submit(json.dumps(job))["id"])

            def trained_with_what_was_chosen() -> bool:
                if client.describe(name)["progress"].get("batch", INIT) == INIT:
                    return False
                chosen, trained = set(), set()
                for _, _, kind, body in running.log_of_all():
                    if kind == "Decided" and name in body["batches"]:
                        chosen.add(body["batches"][name][0])
                    if kind == "Reported" and "batch" in body["report"]:  # it says what has changed
                        trained.add(body["report"]["batch"])
                assert all(INIT <= batch <= MOST for batch in chosen)
                return bool((chosen - {INIT}) & trained)

            until(trained_with_what_was_chosen, 180.0, "a chosen batch is reported")

            def learning_rate_followed() -> bool:
                """By the rule of the job file, which the script does not name."""
                lines = "".join(client.log(name)).splitlines()
                words = [line.split() for line in lines if "followed" in line]
                factors = {(float(scale), float(factor)) for _, scale, factor in words}
                assert all(abs(factor - scale**0.5) < 1e-9 for scale, factor in factors)
                return any(factor > 1.0 for _, factor in factors)

            until(learning_rate_followed, 180.0, "the learning rate follows a larger batch")
            client.change(name, "cancel")
            until(lambda: client.describe(name)["state"] == "CANCELLED", what="the job has ended")
        assert running.differences()[1] == 0, "decided again, the same batches come out"
    finally:
        running.end()
