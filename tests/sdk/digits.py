"""A training script as people write it, on scikit-learn's digits; a file keeps what it saw."""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import stretto.sdk

SLOW_S = 0.06  # for a step of the first epoch; each epoch takes twice as long as the one before it


class Digits(Dataset[tuple[torch.Tensor, int, int]]):
    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32) / 16
        self.labels = labels.astype(int).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.images[index], self.labels[index], index


def train(
    seen: Path,
    epochs: int = 6,
    evaluate_s: float = 0.0,
    until: Path | None = None,
    break_at_step: int = -1,
    stuck_at_step: int = -1,
    is_deaf: bool = False,
    **arguments: Any,
) -> None:
    """Train, and write into the folder `seen`; steps are slow until the file `until` is there.

    They become slower and slower, so that the training does not end before that, however busy the machine is.
    Rank 0 alone evaluates, for `evaluate_s`; one that `is_deaf` does not check whether it is to leave.
    """
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = Digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    job = stretto.sdk.elastic(
        model, optimizer, data=data, schedulers=[scheduler], seed=7, **{"batch_size": 64, **arguments}
    )
    name = os.environ.get("STRETTO_WORKER_ID", f"rank{job.rank}")
    with (seen / f"{name}.{os.getpid()}.jsonl").open("w", buffering=1) as file:

        def write(**what: object) -> None:
            file.write(json.dumps(what) + "\n")

        def checksum() -> float:
            return sum(float(each.detach().double().abs().sum()) for each in model.parameters())

        generation = -1
        for epoch in job.epochs(epochs):
            for x, y, index in job.batches():
                if job.generation != generation:
                    generation = job.generation
                    write(generation=generation, step=job.steps, checksum=checksum(), world=job.world_size)
                loss = functional.cross_entropy(job.model(x), y)
                if job.steps == stuck_at_step:
                    write(stuck=True)
                    time.sleep(600)
                job.backward(loss)
                if not job.is_padding:
                    write(epoch=epoch, step=job.steps, indices=index.tolist())
                job.step()
                if job.steps == break_at_step:
                    os._exit(7)
                if until is not None and not until.exists():
                    time.sleep(SLOW_S * 2**epoch)
            scheduler.step()
            write(evaluating=epoch)
            model.eval()
            with torch.no_grad():
                right = job.model(data.images).argmax(1) == torch.tensor(data.labels)
            model.train()
            began_s = time.monotonic()
            while job.rank == 0 and time.monotonic() < began_s + evaluate_s:
                if not is_deaf:
                    job.check()
                time.sleep(0.005)
            job.report(accuracy=float(right.float().mean()))
            write(ended=epoch, accuracy=float(right.float().mean()))
        write(done=True, checksum=checksum(), steps=job.steps, lr=optimizer.param_groups[0]["lr"])


def run(env: dict[str, str], folder: Path, arguments: dict[str, Any]) -> None:
    """The script in a process of its own; what it prints goes to a file."""
    os.environ.update(env)
    log = os.open(
        folder / f"{env.get('STRETTO_WORKER_ID', env.get('RANK', 'alone'))}.log", os.O_CREAT | os.O_WRONLY
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    train(folder, **arguments)
