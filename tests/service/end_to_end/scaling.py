"""A training whose steps take as long as each worker has samples: twice the workers are twice as fast.

Whatever else the machine does, a policy that measures speeds gives it all that there is.
"""

import time

import torch
from torch.utils.data import TensorDataset

import stretto.sdk

SAMPLE_S = 0.01
BATCH = 32


def main() -> None:
    """Train until it is stopped."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.zeros(64 * BATCH, 1))
    job = stretto.sdk.elastic(model, optimizer, data=data, batch_size=BATCH)
    for _ in job.epochs(1_000_000):
        for (samples,) in job.batches():
            time.sleep(SAMPLE_S * len(samples))
            job.backward(job.model(samples).square().mean())
            job.step()


if __name__ == "__main__":
    main()
