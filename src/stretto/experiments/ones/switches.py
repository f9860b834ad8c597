"""What a change of size costs a training, in place and by checkpoint and restart (figure 16 of ONES).

Real processes on this machine, driven over the channel. What is lost is the time from the end of the last
step until the group is ready for the next one. Newcomers start and import beforehand, while the training goes
on. A restart writes a checkpoint, ends, starts one new process of the interpreter, and reads the checkpoint.
That is at one worker, which is the least it can cost.
"""

import multiprocessing
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stretto.errors import InputError
from stretto.experiments.reproduction import Bound, Input, Made, Request, Row
from stretto.testing.conductor import Conductor

PATIENCE_S = 120.0
FIRST = "bench.1.0"
TIMES, SIZES = 5, ("mlp", "transformer")  # switches of each kind, at full scale, and trainings; chosen
IN_PLACE_S, RESTART_OVER = 1.0, 20.0  # section 4.3: "around 1 second", against more than 20


def figure16(request: Request) -> Made:
    """Seconds that real trainings on this machine lose to each kind of switch."""
    if find_spec("torch") is None:
        raise InputError("figure 16 trains real models: expected PyTorch, which is not installed")
    times = max(round(TIMES * request.scale), 1)
    least: Bound = "at least"
    most: Bound = "at most"
    rows = []
    for size in SIZES:
        lost = in_place(size, times) | {"restart": by_restart(size, times, is_imported=False)}
        median_s = {kind: statistics.median(values) for kind, values in lost.items()}
        for kind, value in median_s.items():
            stated: tuple[float | None, Bound] = (None, "") if kind == "restart" else (IN_PLACE_S, most)
            rows.append(Row(f"{size}, {kind}", "lost_s", stated[0], value, stated[1]))
        rows.append(
            Row(
                f"{size}, restart / grow",
                "lost_s",
                RESTART_OVER,
                median_s["restart"] / median_s["grow"],
                least,
            )
        )
    source = Input("trainings", True, f"two small models on the processors of this machine, {times} switches")
    notes = [
        "the paper changes sizes of eight models on V100 GPUs. Its 20 s are of loading data and models "
        "onto GPUs, which small models on processors do not have. So only what stays in place compares",
        "restart: a checkpoint and one new process. On a busy machine all of these take longer",
    ]
    return [source], rows, notes


def a_training(size: str) -> tuple[Any, Any, int]:
    """Model, data and batch."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.manual_seed(1)
    labels = torch.randint(0, 10, (4096,))
    if size == "mlp":
        layers = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        return layers, TensorDataset(torch.randn(4096, 64), labels), 64

    if size == "transformer":
        words, width = 1000, 384

        class Classifier(nn.Module):
            """Six layers of attention over 16 words."""

            def __init__(self) -> None:
                super().__init__()
                layer = nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, norm_first=True)
                self.words = nn.Embedding(words, width)
                self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
                self.out = nn.Linear(width, 10)

            def forward(self, x: torch.Tensor) -> Any:
                return self.out(self.layers(self.words(x)).mean(1))

        return Classifier(), TensorDataset(torch.randint(0, words, (4096, 16)), labels), 4

    class Block(nn.Module):
        """Two convolutions and a way around them."""

        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.through = nn.Sequential(
                nn.Conv2d(before, after, 3, stride, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, 1, 1, bias=False),
                nn.BatchNorm2d(after),
            )
            self.around = nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.through(x) + self.around(x))

    blocks = [nn.Conv2d(3, 16, 3, padding=1), Block(16, 32, 2), Block(32, 64, 2), Block(64, 128, 2)]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return net, TensorDataset(torch.randn(4096, 3, 32, 32), labels), 32


def work(env: dict[str, str], size: str, folder: str) -> None:
    """One worker: trains until it is told to leave, and keeps when it began and when its last step ended."""
    os.environ.update(env)
    import torch
    from torch.nn import functional

    import stretto.sdk

    torch.set_num_threads(1)
    model, data, batch = a_training(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    job = stretto.sdk.elastic(model, optimizer, data=data, batch_size=batch, checkpoint_dir=folder)
    times = os.open(Path(folder, f"{env['STRETTO_WORKER_ID']}.times"), os.O_CREAT | os.O_RDWR)
    has_begun = False
    for _ in job.epochs(10**9):
        for x, y in job.batches():
            if not has_begun:
                os.pwrite(times, struct.pack("d", time.time()), 0)
                has_begun = True
            job.backward(functional.cross_entropy(job.model(x), y))
            job.step()
            os.pwrite(times, struct.pack("d", time.time()), 8)


def has_stepped(file: Path) -> bool:
    """Whether that worker has made a step."""
    return file.exists() and file.stat().st_size == 16


def nursery() -> ForkServerContext:
    """Where workers are forked from that have imported everything."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "stretto.sdk.entry_point"])
    return context


def in_place(size: str, times: int) -> dict[str, list[float]]:
    """Seconds lost by each kind of switch, as the survivor tells them."""
    lost: dict[str, list[float]] = {"grow": [], "move": [], "shrink": []}
    context, started = nursery(), list[ForkServerProcess]()
    with Conductor() as conductor, TemporaryDirectory() as folder:

        def start(name: str) -> None:
            started.append(context.Process(target=work, args=(conductor.environment_of(name), size, folder)))
            started[-1].start()
            conductor.wait_until(lambda: name in conductor.ready, PATIENCE_S, f"{name} is ready")

        def switch(kind: str, *names: str) -> None:
            number = conductor.publish(names, source=FIRST)
            conductor.wait_joined(number, PATIENCE_S)
            [joined] = [
                each for each in conductor.joined if each["generation"] == number and each["worker"] == FIRST
            ]
            lost[kind].append(joined["lost_s"])
            time.sleep(0.3)  # some steps in between

        start(FIRST)
        conductor.wait_joined(conductor.publish([FIRST]), PATIENCE_S)
        for turn in range(times):
            comes, replaces = f"bench.1.{2 * turn + 1}", f"bench.1.{2 * turn + 2}"
            start(comes)
            switch("grow", FIRST, comes)
            start(replaces)
            switch("move", FIRST, replaces)
            switch("shrink", FIRST)
        conductor.leave()
        for process in started:
            process.join(PATIENCE_S)
            assert process.exitcode in (0, 143), process.exitcode
    return lost


def by_restart(size: str, times: int, is_imported: bool) -> list[float]:
    """Seconds from the end of the last step to the start of the next one, in another process."""
    parts = suspended_and_resumed(size, times, is_imported)
    return [suspension_s + resumption_s for suspension_s, resumption_s in parts]


def suspended_and_resumed(size: str, times: int, is_imported: bool = False) -> list[tuple[float, float]]:
    """Seconds from the last step to the end of its process, and from there to the next one's first step."""
    parts, context = list[tuple[float, float]](), nursery()
    with Conductor() as conductor, TemporaryDirectory() as folder:

        def start(name: str) -> Callable[[], int | None]:
            env = conductor.environment_of(name)
            if is_imported:
                process = context.Process(target=work, args=(env, size, folder))
                process.start()

                def ended() -> int | None:
                    process.join(PATIENCE_S)
                    return process.exitcode

                return ended
            conductor.start(name, [sys.executable, "-m", __name__, size, folder], {})
            return lambda: conductor.wait_ended(name, PATIENCE_S)

        stepped_s = gone_s = 0.0
        for turn in range(times + 1):
            name = f"bench.{turn + 1}.0"
            ended = start(name)
            conductor.wait_joined(conductor.publish([name]), PATIENCE_S)
            file = Path(folder, f"{name}.times")
            conductor.wait_until(partial(has_stepped, file), PATIENCE_S, "a step")
            began_s = struct.unpack("d", file.read_bytes()[:8])[0]
            parts += [(gone_s - stepped_s, began_s - gone_s)] if turn else []
            time.sleep(0.3)
            conductor.leave()
            assert ended() == 143
            gone_s = time.time()
            stepped_s = struct.unpack("d", file.read_bytes()[8:])[0]
    return parts


if __name__ == "__main__":
    work(dict(os.environ), *sys.argv[1:])
