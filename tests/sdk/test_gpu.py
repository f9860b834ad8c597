"""On a real GPU: a training there is suspended and resumed, and its times are those of the GPU."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.sdk.conftest import PATIENCE_S
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import stretto.sdk
from stretto.testing.conductor import Conductor

pytestmark = [
    pytest.mark.processes,
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES, EPOCHS = 1437, 60  # of the digits
WIDTH = 4096  # of layers that a GPU takes much longer for than a processor takes to give them to it
ALONE_BYTES = 256 << 20  # that a driver may take or give back for reasons of its own


@pytest.fixture
def conductor() -> Iterator[Conductor]:
    with Conductor() as made:
        yield made


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])


def test_what_a_step_takes_is_what_the_gpu_takes(
    conductor: Conductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in conductor.environment_of("j.1.0").items():
        monkeypatch.setenv(name, value)
    conductor.publish(["j.1.0"])
    device = stretto.sdk.device()
    x, y = torch.randn(2048, WIDTH, device=device), torch.randint(0, 10, (2048,), device=device)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    data = TensorDataset(torch.arange(2048 * 200))
    job = stretto.sdk.elastic(
        model, optimizer, data=data, batch_size=2048, report_s=0.1, loader={"collate_fn": len}
    )
    began_s = step_s = 0.0
    for _ in job.epochs(1):
        for _ in job.batches():
            if job.steps == 100:
                torch.cuda.synchronize()
                began_s = time.perf_counter()
            job.backward(functional.cross_entropy(job.model(x), y))
            job.step()
        torch.cuda.synchronize()
        step_s = (time.perf_counter() - began_s) / 100
    [point] = conductor.reports[-1]["points"]
    assert point[5] == pytest.approx(step_s, rel=0.1)


def test_a_training_on_a_gpu_goes_on_from_its_checkpoint_and_gives_the_memory_back(
    conductor: Conductor, tmp_path: Path
) -> None:
    seen, before = tmp_path / "seen", free_bytes()
    command = [sys.executable, "digits_cnn.py", "--epochs", str(EPOCHS), "--seen", str(seen)]
    folder = {"STRETTO_CHECKPOINT_DIR": str(tmp_path / "checkpoints"), "STRETTO_GPU_TYPE": "gpu"}
    used = 0
    for turn, status in ((1, 143), (2, 0)):
        name = f"j.{turn}.0"
        conductor.start(name, command, folder, cwd=EXAMPLES)
        conductor.wait_joined(conductor.publish([name]), PATIENCE_S)
        if turn == 1:
            conductor.wait_until(lambda: len(conductor.reports) > 2, PATIENCE_S, "epochs")
            used = before - free_bytes()
            conductor.leave()
        assert conductor.wait_ended(name, PATIENCE_S) == status
    assert used > ALONE_BYTES  # a context at least
    assert abs(before - free_bytes()) < ALONE_BYTES
    compare = [sys.executable, "seen.py", str(seen), str(seen)]
    count = subprocess.run(compare, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert count.stdout == f"{SAMPLES * EPOCHS} samples in {EPOCHS} epochs: each once\n"
