"""A training that notes its samples: on GPUs of the type `fast` a sample takes a quarter of the time.

`sharing.py FOLDER EPOCHS`: trains slowly until there is a file FOLDER/enough.
"""

import os
import sys
import time
from pathlib import Path

import torch
from seen import Seen  # type: ignore[import-not-found]  # of the examples, in PYTHONPATH
from torch.utils.data import TensorDataset

import stretto.sdk

SAMPLE_S = {"fast": 0.002, "slow": 0.008}
BATCH, SAMPLES = 32, 480
STEP_S = 1.0  # more, until there is enough


def main(folder: Path, epochs: int) -> None:
    """Train."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.zeros(SAMPLES, 1), torch.arange(SAMPLES))
    job = stretto.sdk.elastic(model, optimizer, data=data, batch_size=BATCH, report_s=0.5)
    seen = Seen(str(folder / "seen") if epochs < 1000 else None)
    for epoch in job.epochs(epochs):
        for samples, numbers in job.batches():
            time.sleep(SAMPLE_S[os.environ["STRETTO_GPU_TYPE"]] * len(samples))
            if epochs < 1000 and not (folder / "enough").exists():
                time.sleep(STEP_S)
            job.backward(job.model(samples).square().mean())
            seen.write(job, epoch, numbers)
            job.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
