"""A training whose steps take what its argument says, whatever else the machine does.

`linear`: as long as each worker has samples. `flat`: on two workers as long as on one and half as long again.
`sublinear`: three fifths of a step are the same on any number of workers, so that a third worker brings less
than half of what a second did. `picky`: as `linear` on GPUs of the type `fast`, on others four times as long.
"""

import os
import sys
import time

import torch
from torch.utils.data import TensorDataset

import stretto.sdk

SAMPLE_S = float(os.environ.get("SAMPLE_S", "0.004"))
BATCH = 32


def main(how: str) -> None:
    """Train until it is stopped."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.zeros(64 * BATCH, 1))
    job = stretto.sdk.elastic(model, optimizer, data=data, batch_size=BATCH, report_s=0.5)
    # Of `flat` least is left: whoever believes that it scales serves it first.
    for _ in job.epochs(100_000 if how == "flat" else 1_000_000):
        for (samples,) in job.batches():
            workers = job.world_size
            slow = 4 if how == "picky" and os.environ["STRETTO_GPU_TYPE"] != "fast" else 1
            whole_batch = {"flat": 0.5 + 0.5 * workers, "sublinear": 0.6 + 0.4 / workers}
            time.sleep(SAMPLE_S * (BATCH * whole_batch[how] if how in whole_batch else slow * len(samples)))
            job.backward(job.model(samples).square().mean())
            job.step()


if __name__ == "__main__":
    main(sys.argv[1])
