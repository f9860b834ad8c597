"""A network in stages, one on each GPU of a worker, learns handwritten digits; workers are its replicas.

A worker has as many GPUs as its job file says for their type, and the network is cut into as many stages.
Each batch goes through in pieces, so that one stage works on a piece while the next one has the piece before
(GPipe; Huang et al., NeurIPS 2019). The service changes the number of replicas, which average their
gradients as ever. Leaves with status 1 if the target accuracy is not reached.
"""

import argparse
import sys
from typing import Any

import stretto.sdk  # loads torch when it is needed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch", type=int, default=64, help="of all replicas together")
parser.add_argument("--pieces", type=int, default=4, help="of a batch of one replica")
parser.add_argument("--stages", type=int, help="without a service; a worker has one for each of its GPUs")
parser.add_argument("--target", type=float, default=0.95, help="accuracy on digits not trained on")
parser.add_argument("--seen", help="a folder for the numbers of all samples that were trained on")


def pipeline_of(layers: Any, devices: tuple[Any, ...], pieces: int) -> Any:
    """The layers as one module: consecutive ones on each device, and batches that go through in pieces.

    Parameters have the same names for any number of stages, so that a checkpoint fits all of them.
    """
    import torch
    from torch import nn

    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)
            self.stage_of = [place * len(devices) // len(layers) for place in range(len(layers))]
            for layer, stage in zip(self.layers, self.stage_of, strict=True):
                layer.to(devices[stage])

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            parts = list(batch.chunk(pieces))
            # At each tick every stage has another piece. GPUs work on theirs at the same time, since calls of
            # different GPUs do not wait for each other; on a processor the stages take turns.
            for tick in range(len(parts) + len(devices) - 1):
                for stage in reversed(range(len(devices))):
                    if 0 <= tick - stage < len(parts):
                        parts[tick - stage] = self.run(stage, parts[tick - stage])
            return torch.cat(parts)

        def run(self, stage: int, part: torch.Tensor) -> torch.Tensor:
            part = part.to(devices[stage])
            for layer, own in zip(self.layers, self.stage_of, strict=True):
                part = layer(part) if own == stage else part
            return part

    return Pipeline()


def main() -> int:
    """Train; the exit status."""
    options = parser.parse_args()
    import torch
    from seen import Seen
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    every, classes = load_digits(return_X_y=True)
    parts = train_test_split(every, classes, test_size=0.2, random_state=0, stratify=classes)
    x, x_test = (torch.tensor(part, dtype=torch.float32) / 16 for part in parts[:2])
    y, y_test = (torch.tensor(part, dtype=torch.long) for part in parts[2:])
    data = TensorDataset(x, y, torch.arange(len(x)))

    devices = stretto.sdk.devices()
    devices = devices[:1] * options.stages if options.stages else devices
    hidden = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]
    model = pipeline_of([*hidden, nn.Linear(64, 10)], devices, options.pieces)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job = stretto.sdk.elastic(model, optimizer, data=data, batch_size=options.batch, seed=1)
    seen = Seen(options.seen)

    def accuracy_now() -> float:
        with torch.no_grad():
            return float((model(x_test).argmax(1).cpu() == y_test).float().mean())

    accuracy = None
    for epoch in job.epochs(options.epochs):
        for images, labels, numbers in job.batches():
            loss = functional.cross_entropy(job.model(images), labels.to(devices[-1]))
            job.backward(loss)
            seen.write(job, epoch, numbers)
            job.step()
        accuracy = accuracy_now()
        job.report(accuracy=accuracy)
        if job.rank == 0:
            shape = f"{job.world_size} x {len(devices)}"
            print(f"epoch {epoch + 1} on {shape}: accuracy {accuracy:.4f}", flush=True)
    if accuracy is None:  # it was stopped between its last epoch and its end, and nothing is left to do
        accuracy = accuracy_now()
    return int(accuracy < options.target)


if __name__ == "__main__":
    sys.exit(main())
