"""A small convolutional network learns handwritten digits, on as many workers as it is given at the moment.

A plain PyTorch loop with the few lines that make it elastic: `elastic`, `job.epochs`, `job.batches`,
`job.model`, `job.backward` and `job.step`. Leaves with status 1 if the target accuracy is not reached.
"""

import argparse
import sys

import stretto.sdk  # loads torch when it is needed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch", type=int, default=64, help="of all workers together")
parser.add_argument("--max-batch", type=int, help="up to which the scheduler may choose another one")
parser.add_argument("--channels", type=int, default=16, help="of the first layer")
parser.add_argument("--target", type=float, default=0.97, help="accuracy on digits not trained on")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--seen", help="a folder for the numbers of all samples that were trained on")


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
    torch.manual_seed(options.seed)
    device = stretto.sdk.device()  # the GPU of this worker, or the processor where there is none
    every, classes = load_digits(return_X_y=True)
    parts = train_test_split(every, classes, test_size=0.2, random_state=0, stratify=classes)
    x, x_test = (torch.tensor(part, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 for part in parts[:2])
    y, y_test = (torch.tensor(part, dtype=torch.long) for part in parts[2:])
    data = TensorDataset(x, y, torch.arange(len(x)))

    wide = options.channels
    model = nn.Sequential(
        *(nn.Conv2d(1, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, 2 * wide, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(2 * wide, 2 * wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * wide, 10)),
    ).to(device)
    x_test, y_test = x_test.to(device), y_test.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

    job = stretto.sdk.elastic(
        *(model, optimizer),
        data=data,
        batch_size=options.batch,
        max_batch_size=options.max_batch,
        schedulers=[scheduler],
        seed=1 + options.seed,
    )
    seen = Seen(options.seen)

    def accuracy_now() -> float:
        model.eval()
        with torch.no_grad():
            found = float((model(x_test).argmax(1) == y_test).float().mean())
        model.train()
        return found

    accuracy = None
    for epoch in job.epochs(options.epochs):
        for images, labels, numbers in job.batches():
            loss = functional.cross_entropy(job.model(images.to(device)), labels.to(device))
            job.backward(loss)
            seen.write(job, epoch, numbers)
            job.step()
        scheduler.step()
        accuracy = accuracy_now()
        job.report(accuracy=accuracy)
        if job.rank == 0:
            print(f"epoch {epoch + 1} on {job.world_size}: accuracy {accuracy:.4f}", flush=True)
    if accuracy is None:  # it was stopped between its last epoch and its end, and nothing is left to do
        accuracy = accuracy_now()
        if job.rank == 0:
            print(f"accuracy {accuracy:.4f}", flush=True)
    return int(accuracy < options.target)


if __name__ == "__main__":
    sys.exit(main())
