"""A training whose accuracy follows a curve, so that the epoch in which it reaches a goal is known.

It is 0.9 - 0.6 / sqrt(epoch), of epochs of a quarter of a second.
"""

import time
from math import sqrt

import torch
from torch.utils.data import TensorDataset

import stretto.sdk

BATCH, STEPS, STEP_S = 8, 5, 0.05


def accuracy_after(epochs: int) -> float:
    """What it reports."""
    return 0.9 - 0.6 / sqrt(epochs)


def main() -> None:
    """Train until it is stopped."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.zeros(STEPS * BATCH, 1))
    job = stretto.sdk.elastic(model, optimizer, data=data, batch_size=BATCH, report_s=0.5)
    for epoch in job.epochs(1_000_000):
        for (samples,) in job.batches():
            time.sleep(STEP_S)
            job.backward(job.model(samples).square().mean())
            job.step()
        job.report(accuracy=accuracy_after(epoch + 1))


if __name__ == "__main__":
    main()
