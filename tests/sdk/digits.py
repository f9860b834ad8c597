"""A training script as people write it, on scikit-learn's digits; a file keeps what it saw."""

import atexit
import json
import os
import pkgutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import stretto.sdk
from stretto.sdk.checkpoints import write_checkpoint

SLOW_S = 0.06  # for a step of the first epoch; each epoch takes twice as long as the one before it


class Digits(Dataset[tuple[torch.Tensor, int, int]]):
    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32) / 16
        self.labels = labels.astype(int).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.images[index], self.labels[index], index


class Sometimes(nn.Module):
    """Uses its layer in every second forward pass only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        return x + self.layer(x) if self.passes % 2 else x


def die(*_: object) -> None:
    os._exit(9)


def write_slowly(folder: Path, *content: Any) -> Path:
    (folder.parent / "writing").touch()
    time.sleep(4)
    return write_checkpoint(folder, *content)


def train(
    seen: Path,
    epochs: int = 6,
    evaluate_s: float = 0.0,
    until: Path | None = None,
    break_at_step: int = -1,
    stuck_at_step: int = -1,
    is_deaf: bool = False,
    sums: bool = False,
    is_sometimes: bool = False,
    stop_after: Mapping[str, int] | None = None,
    error_at_step: int = -1,
    thaw_at: int = -1,
    patched: Mapping[str, Any] | None = None,
    tells_rates: bool = False,
    tells_gradients: bool = False,
    dropout: float = 0.1,
    **arguments: Any,
) -> None:
    """Train, and write into the folder `seen`; steps are slow until the file `until` is there.

    They become slower and slower, so that the training does not end before that, however busy the machine is.
    Rank 0 alone evaluates, for `evaluate_s`; one that `is_deaf` does not check whether it is to leave.
    With `tells_rates` each step is followed by a line with the learning rate that the optimizer made it at,
    with `tells_gradients` by one with the norm and the sum of every parameter's gradient.
    `stop_after`: `epochs` after which rank 0 leaves the loop, or `steps` after which all do.
    """
    stop_after = stop_after or {}
    for target, value in (patched or {}).items():
        home, _, attribute = target.rpartition(".")
        setattr(pkgutil.resolve_name(home), attribute, value)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = Digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10))
    model[0].requires_grad_(thaw_at < 0)
    if is_sometimes:
        model.append(Sometimes())
    odd = nn.Module()  # of types that gloo does not know
    for kind in (torch.int16, torch.complex64, torch.float8_e5m2):
        odd.register_buffer(str(kind)[6:], torch.zeros(3).to(kind))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    gradients: list[list[float]] = []

    def look_at_gradients(*_: object) -> None:
        now = [each.grad.double() for each in model.parameters() if each.grad is not None]
        gradients.append([float(of) for each in now for of in (each.norm(), each.sum())])

    optimizer.register_step_pre_hook(look_at_gradients)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    job = stretto.sdk.elastic(
        model,
        optimizer,
        data=data,
        schedulers=[scheduler],
        seed=7,
        extra_state={"odd": odd},
        **{"batch_size": 64, **arguments},
    )
    name = os.environ.get("STRETTO_WORKER_ID", f"rank{job.rank}")
    with (seen / f"{name}.{os.getpid()}.jsonl").open("w", buffering=1) as file:

        def write(**what: object) -> None:
            file.write(json.dumps(what) + "\n")

        def checksum() -> float:
            return sum(float(each.detach().double().abs().sum()) for each in model.parameters())

        generation = -1
        for epoch in job.epochs(epochs):
            if epoch == thaw_at:
                model[0].requires_grad_(True)
            for x, y, index in job.batches():
                if job.generation != generation:
                    generation = job.generation
                    write(generation=generation, step=job.steps, checksum=checksum(), world=job.world_size)
                loss = functional.cross_entropy(job.model(x), y)
                if job.steps == stuck_at_step:
                    write(stuck=True)
                    time.sleep(600)
                job.backward(loss)
                if not job.is_padding:
                    write(epoch=epoch, step=job.steps, indices=index.tolist())
                batch, gain = job.batch.total, job.gain  # of the step that follows
                has_stepped = job.step()
                if has_stepped and tells_rates:
                    write(rate=rates[-1], batch=batch, gain=gain)
                if has_stepped and tells_gradients:
                    write(gradients=gradients[-1], after=job.steps)
                if job.steps == error_at_step and job.rank == 0:
                    raise ValueError("a mistake of the script's own")
                if job.steps == stop_after.get("steps"):
                    break
                if job.steps == break_at_step:
                    os._exit(7)
                if until is not None and not until.exists():
                    time.sleep(SLOW_S * 2**epoch)
            if job.steps == stop_after.get("steps"):
                break
            scheduler.step()
            write(evaluating=epoch)
            model.eval()
            with torch.no_grad():
                right = job.model(data.images).argmax(1) == torch.tensor(data.labels)
            model.train()
            began_s = time.monotonic()
            while job.rank == 0 and time.monotonic() < began_s + evaluate_s:
                if not is_deaf:
                    job.check()
                time.sleep(0.005)
            if sums:
                write(together=job.sum(workers=1, rank=job.rank), world=job.world_size)
            if job.rank == 0 and epoch + 1 == stop_after.get("epochs"):
                break
            job.report(accuracy=float(right.float().mean()))
            write(ended=epoch, accuracy=float(right.float().mean()))
        write(done=True, checksum=checksum(), steps=job.steps, lr=optimizer.param_groups[0]["lr"])
        write(hook=sys.excepthook is sys.__excepthook__)


def run(env: dict[str, str], folder: Path, arguments: dict[str, Any]) -> None:
    """The script in a process of its own, which ends as an interpreter does; it prints to a file."""
    os.environ.update(env)
    os.setpgid(0, 0)
    log = os.open(
        folder / f"{env.get('STRETTO_WORKER_ID', env.get('RANK', 'alone'))}.log", os.O_CREAT | os.O_WRONLY
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        train(folder, **arguments)
    except Exception as error:
        sys.last_value = error
        raise
    finally:
        atexit._run_exitfuncs()
