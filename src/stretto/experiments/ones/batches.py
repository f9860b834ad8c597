"""What larger batches do to a training: by more workers, at once, and gradually (figures 3, 13, 14 of ONES).

A small convolutional network learns scikit-learn's digits by SGD with momentum; in the paper it is ResNet-50
on CIFAR-10. One process takes the batch of all workers: their averaged gradient is that of the whole batch,
as tests/sdk/test_switching.py shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import mean

from stretto.errors import InputError
from stretto.experiments.reproduction import Bound, Input, Made, Request, Row, rows_over_seeds

INITIAL, RATE, MOMENTUM = 32, 0.02, 0.9  # samples a step, and the learning rate chosen for them
TRAINED = 1_440  # of the 1,797 images; the others are for the accuracy
SEEDS = 3  # at full scale; chosen
WORKERS, EPOCHS = (1, 2, 4, 8), 12  # figure 3
THIRD = 12  # epochs: figure 14 changes the batch after each third, figure 13 after the first
FACTORS = {"never": (1, 1, 1), "at once": (1, 16, 16), "gradually": (1, 4, 16)}  # of the batch, by third
SHOWN_EVERY = 6  # epochs between two rows of the series; chosen


@dataclass(frozen=True)
class Training:
    """How one is trained, beside its batches."""

    rate: float = RATE  # learning rate of the initial batch
    momentum: float = MOMENTUM
    power: float = 1.0  # of the batch over the initial one, by which the rate grows; 3.3.2: linearly
    hidden: int = 32  # channels of the second convolution


@dataclass(frozen=True)
class Trained:
    """One training, by epoch."""

    loss: tuple[float, ...]  # mean over the epoch's steps
    accuracy: tuple[float, ...]  # after it, on images that it never saw


def train(seed: int, batches: Sequence[int], training: Training = Training()) -> Trained:
    """Train for as many epochs as there are batches, in samples a step."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    trained, tested = order[:TRAINED], order[TRAINED:]
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, training.hidden, 3, stride=2, padding=1),
            nn.ReLU(),
        ),
        *(nn.Flatten(), nn.Linear(training.hidden * 4 * 4, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=training.rate, momentum=training.momentum)
    losses, accuracies = list[float](), list[float]()
    for batch in batches:
        optimizer.param_groups[0]["lr"] = training.rate * (batch / INITIAL) ** training.power
        shuffled = trained[torch.randperm(TRAINED, generator=generator)]
        total = 0.0
        for part in torch.split(shuffled, batch):
            loss = functional.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(part)
        losses.append(total / TRAINED)
        with torch.no_grad():
            accuracies.append(float((model(x[tested]).argmax(1) == y[tested]).float().mean()))
    return Trained(tuple(losses), tuple(accuracies))


def figure3(request: Request) -> Made:
    """The accuracy on several workers with a fixed local batch and learning rate."""
    seeds = seeds_of(request)
    by_workers = {
        workers: [train(seed, [workers * INITIAL] * EPOCHS, Training(power=0.0)) for seed in range(seeds)]
        for workers in WORKERS
    }
    rows = []
    for workers, trainings in by_workers.items():
        for epoch in _shown(EPOCHS):
            values = [training.accuracy[epoch - 1] for training in trainings]
            name = f"{_workers(workers)}, {epoch * TRAINED:,} samples"
            rows += rows_over_seeds(name, "accuracy", None, values)
    # "Using more GPUs leads to a slower convergence": what each has by the middle of the training.
    most: Bound = "at most"
    first = _mean_accuracy(by_workers[WORKERS[0]])
    for workers in WORKERS[1:]:
        ratio = _mean_accuracy(by_workers[workers]) / first
        name = f"{_workers(workers)} / {_workers(WORKERS[0])}"
        rows.append(Row(name, "mean_accuracy_of_epochs", 1.0, ratio, most))
    return [_input(seeds)], rows, _notes()


def figure13(request: Request) -> Made:
    """The loss against the samples seen where the batch grows sixteenfold, at once or in two steps."""
    seeds = seeds_of(request)
    by_plan = {
        plan: [
            train(seed, [INITIAL * factor for factor in factors for _ in range(THIRD)])
            for seed in range(seeds)
        ]
        for plan, factors in FACTORS.items()
    }
    rows = []
    for plan, trainings in by_plan.items():
        for epoch in sorted({*_shown(3 * THIRD), THIRD + 1, 2 * THIRD + 1}):
            values = [training.loss[epoch - 1] for training in trainings]
            rows += rows_over_seeds(f"{plan}, {epoch * TRAINED:,} samples", "loss", None, values)
    # "A sudden increase in the training loss" at once, "in contrast" to gradually.
    before = mean(training.loss[THIRD - 1] for training in by_plan["never"])
    highest = {
        plan: mean(max(training.loss[THIRD:]) for training in trainings)
        for plan, trainings in by_plan.items()
    }
    bounds: dict[str, tuple[float | None, Bound]] = {
        "at once": (1.0, "at least"),
        "gradually": (1.0, "at most"),  # its curves show no rise at all
    }
    for plan, value in highest.items():
        paper, bound = bounds.get(plan, (None, ""))
        rows.append(Row(f"{plan}, highest after it grew / before", "loss", paper, value / before, bound))
    ratio = highest["gradually"] / highest["at once"]
    rows.append(Row("gradually / at once, highest after it grew", "loss", 1.0, ratio, "at most"))
    return [_input(seeds)], rows, _notes()


def seeds_of(request: Request) -> int:
    """How many trainings of each kind; InputError where none can be made."""
    for module, name in (("torch", "PyTorch"), ("sklearn", "scikit-learn")):
        if find_spec(module) is None:
            raise InputError(f"this figure trains a real model: expected {name}, which is not installed")
    return max(round(SEEDS * request.scale), 1)


def _shown(epochs: int) -> range:
    return range(SHOWN_EVERY, epochs + 1, SHOWN_EVERY)


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}, batch {count * INITIAL}"


def _mean_accuracy(trainings: Sequence[Trained]) -> float:
    return mean(mean(training.accuracy) for training in trainings)


def _input(seeds: int) -> Input:
    return Input("trainings", True, f"scikit-learn's digits on this machine's processors, {seeds} seeds")


def _notes() -> list[str]:
    return [
        "a small model: two convolutions and a linear layer on 1,440 images of 8 x 8, batches of 32 to "
        "512. The paper trains ResNet-50 on CIFAR-10 with 256 to 4,096, and prints curves without numbers",
        "bounds are what the paper's text says of its curves; an interval is over seeds",
    ]
