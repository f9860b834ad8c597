"""What do larger batches do to a training? Figures 3, 13 and 14 of ONES (SC 2021), with real trainings.

A small convolutional network learns scikit-learn's digits with SGD and momentum. Figure 3: on 1 to 8 workers
of 32 samples each, at a fixed learning rate. Figures 13 and 14, in the paper of ResNet-50 on CIFAR-10: the
batch grows sixteenfold, at once or by a factor of 4 two times, and the learning rate in proportion. One
process takes the batch of all workers, since their averaged gradient is that of the whole batch
(tests/sdk/test_switching.py). The series are written as JSON and drawn as one SVG.

    OMP_NUM_THREADS=1 python benchmarks/batch_growth.py [--seeds 5] [--json FILE] [--svg FILE]
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

INITIAL, RATE = 32, 0.02  # samples a step, and the learning rate chosen for them
SAME_RATE_EPOCHS = 12
GROWN_EPOCHS, GROWS_AT, GROWS_AGAIN = 36, 12, 24  # figure 14: a third each
TRAINED = 1_440  # of the 1,797 images; the others are for the accuracy
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52")
Series = list[float]


def network() -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(seed: int, epochs: int, batch_of: Callable[[int], int], is_scaled: bool) -> tuple[Series, Series]:
    """The mean loss over each epoch's steps, and the accuracy after it.

    batch_of: samples a step in an epoch; is_scaled: whether the learning rate grows in proportion to them.
    """
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    trained, tested = order[:TRAINED], order[TRAINED:]
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses, accuracies = Series(), Series()
    for epoch in range(epochs):
        batch = batch_of(epoch)
        optimizer.param_groups[0]["lr"] = RATE * (batch / INITIAL if is_scaled else 1)
        shuffled = trained[torch.randperm(TRAINED, generator=generator)]
        total = 0.0
        for part in shuffled.split(batch):  # type: ignore[no-untyped-call]
            loss = functional.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(part)
        losses.append(total / TRAINED)
        with torch.no_grad():
            accuracies.append(float((model(x[tested]).argmax(1) == y[tested]).float().mean()))
    return losses, accuracies


def mean_of(seeds: int, *plan: object) -> dict[str, Series]:
    """The mean over seeds of each epoch's loss and accuracy."""
    runs = [train(seed, *plan) for seed in range(seeds)]  # type: ignore[arg-type]
    return {
        name: [statistics.mean(epoch) for epoch in zip(*series, strict=True)]
        for name, series in zip(("loss", "accuracy"), zip(*runs, strict=True), strict=True)
    }


def by_workers(seeds: int) -> dict[str, Series]:
    """Figure 3: the accuracy after each epoch with a fixed local batch, by the number of workers."""
    return {
        f"{workers} workers, batch {workers * INITIAL}": mean_of(
            seeds, SAME_RATE_EPOCHS, lambda epoch, workers=workers: workers * INITIAL, False
        )["accuracy"]
        for workers in (1, 2, 4, 8)
    }


def by_growth(seeds: int) -> dict[str, Series]:
    """Figures 13 and 14: the loss of each epoch where the batch grows sixteenfold, or not at all."""

    def gradually(epoch: int) -> int:
        return INITIAL * (1 if epoch < GROWS_AT else 4 if epoch < GROWS_AGAIN else 16)

    def at_once(epoch: int) -> int:
        return INITIAL * (1 if epoch < GROWS_AT else 16)

    plans = {"fixed": lambda epoch: INITIAL, "at once": at_once, "gradually": gradually}
    return {name: mean_of(seeds, GROWN_EPOCHS, plan, True)["loss"] for name, plan in plans.items()}


def drawn(title: str, series: Mapping[str, Series], left: float) -> str:
    """One panel of the figure, `left` pixels from its edge."""
    values = [value for line in series.values() for value in line]
    low, high = min(values), max(values)
    parts = [f'<text x="{left}" y="18" font-weight="bold">{title}</text>']
    parts += [
        f'<text x="{left - 6}" y="{y}" text-anchor="end">{value:.2f}</text>'
        for value, y in ((high, 34), (low, 234))
    ]
    for row, (name, line) in enumerate(series.items()):
        points = " ".join(
            f"{left + 300 * epoch / (len(line) - 1):.1f},{230 - 200 * (value - low) / (high - low):.1f}"
            for epoch, value in enumerate(line)
        )
        colour = COLOURS[row]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left}" y="{256 + 16 * row}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{left + 300}" y="246" text-anchor="end">epochs</text>')
    return "\n".join(parts)


def figure(panels: Sequence[tuple[str, Mapping[str, Series]]]) -> str:
    """All panels side by side, as SVG."""
    body = "\n".join(drawn(title, series, 50 + 370 * place) for place, (title, series) in enumerate(panels))
    width = 370 * len(panels) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="320" '
        f'font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    accuracy, loss = by_workers(asked.seeds), by_growth(asked.seeds)
    half = SAME_RATE_EPOCHS // 2
    print(f"accuracy after {half} and {SAME_RATE_EPOCHS} epochs, means of {asked.seeds} seeds")
    for name, series in accuracy.items():
        print(f"{name:>22} {series[half - 1]:>7.3f} {series[-1]:>7.3f}")
    print("loss of the epoch before the batch first grows, the highest since, and the last")
    for name, series in loss.items():
        print(f"{name:>22} {series[GROWS_AT - 1]:>7.4f} {max(series[GROWS_AT:]):>7.4f} {series[-1]:>7.4f}")
    if asked.json:
        asked.json.write_text(json.dumps({"accuracy": accuracy, "loss": loss}, indent=1) + "\n")
    if asked.svg:
        panels = [("Figure 3: accuracy", accuracy), ("Figures 13 and 14: loss", loss)]
        asked.svg.write_text(figure(panels))


if __name__ == "__main__":
    main()
