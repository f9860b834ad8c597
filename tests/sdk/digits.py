"""A training script as people write it, on scikit-learn's digits; what it saw goes to a file for the tests."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import stretto.sdk

EPOCHS = int(os.environ.get("EPOCHS", "6"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))
SEEN = Path(os.environ["SEEN"])  # a folder


class Digits(Dataset[tuple[torch.Tensor, int, int]]):
    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32) / 16
        self.labels = labels.astype(int).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.images[index], self.labels[index], index


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = Digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    job = stretto.sdk.elastic(
        model,
        optimizer,
        data=data,
        batch_size=64,
        max_batch_size=int(os.environ.get("MAX_BATCH", "64")),
        max_local_batch=int(os.environ["MAX_LOCAL"]) if "MAX_LOCAL" in os.environ else None,
        lr_scaling=os.environ.get("LR_SCALING", "fixed"),
        schedulers=[scheduler],
        seed=7,
        grace_s=float(os.environ.get("GRACE_S", "30")),
        checkpoint_s=float(os.environ.get("CHECKPOINT_S", "600")),
    )
    worker = os.environ.get("STRETTO_WORKER_ID", f"rank{job.rank}")
    with (SEEN / f"{worker}.{os.getpid()}.jsonl").open("w", buffering=1) as file:

        def write(**what: object) -> None:
            file.write(json.dumps(what) + "\n")

        generation = -1
        for epoch in job.epochs(EPOCHS):
            for x, y, index in job.batches():
                if job.generation != generation:
                    generation = job.generation
                    total = sum(float(each.detach().double().sum()) for each in model.parameters())
                    write(generation=generation, step=job.steps, checksum=total, world=job.world_size)
                loss = functional.cross_entropy(job.model(x), y)
                job.backward(loss)
                if not job.is_padding:
                    write(epoch=epoch, step=job.steps, indices=index.tolist())
                job.step()
                time.sleep(PAUSE_S)
            scheduler.step()
            model.eval()
            with torch.no_grad():
                right = job.model(data.images).argmax(1) == torch.tensor(data.labels)
            model.train()
            deadline = time.monotonic() + float(os.environ.get("EVALUATE_S", "0"))
            while time.monotonic() < deadline:
                job.check()
                time.sleep(0.01)
            accuracy = float(right.float().mean())
            job.report(accuracy=accuracy)
            write(ended=epoch, accuracy=accuracy)
        total = sum(float(each.detach().double().sum()) for each in model.parameters())
        write(done=True, checksum=total, steps=job.steps, progress_steps=job.progress_steps)
        write(switches=[[each.generation, each.workers, each.step, each.lost_s] for each in job.switches])


if __name__ == "__main__":
    sys.exit(main())
