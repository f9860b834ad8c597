"""Label handwritten digits: batch inference on as many workers as there are at the moment.

Each worker takes batches that no other has done, and writes down what it finds. Whatever happens to workers,
each digit is labelled once. Leaves with status 1 if too few labels are right.
"""

import argparse
import os
import sys
import tempfile
import time

import stretto.sdk  # loads torch when it is needed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--output", help="a folder that all workers share; else where the job has its checkpoints"
)
parser.add_argument("--batch", type=int, default=32, help="of one worker")
parser.add_argument("--copies", type=int, default=1, help="how often the data set is gone through")
parser.add_argument("--slowly", type=float, default=0.0, help="seconds that a batch takes longer, for a look")
parser.add_argument("--target", type=float, default=0.9, help="share of labels that must be right")


def main() -> int:
    """Label all; the exit status."""
    options = parser.parse_args()
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import ConcatDataset, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = stretto.sdk.device()  # the GPU of this worker, or the processor where there is none
    x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
    x = x.float() / 16

    # Where others would load a model: it learns from a tenth of the digits, alike on every worker.
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[::10].to(device)), y[::10].to(device)).backward()
        optimizer.step()
    model.eval()

    output = options.output or os.environ.get("STRETTO_CHECKPOINT_DIR") or tempfile.mkdtemp()
    data = ConcatDataset([TensorDataset(x)] * options.copies)
    job = stretto.sdk.infer(data, output=output, batch_size=options.batch, report_s=1.0)
    for (images,) in job.batches():
        with torch.no_grad():
            job.write(model(images.to(device)).argmax(1))
        time.sleep(options.slowly)

    labels = torch.cat([labels for _, labels in job.results()])
    right = float((labels == y.repeat(options.copies)).float().mean())
    print(f"{len(labels)} labels, {right:.4f} of them right", flush=True)
    return int(right < options.target)


if __name__ == "__main__":
    sys.exit(main())
