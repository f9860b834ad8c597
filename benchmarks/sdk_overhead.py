"""What does a step of the SDK take, beside the same step of plain PyTorch at the same fixed size?

Both train in the same processes, over the same process group, through DataLoaders of the same kind: an
epoch of one, two of the other, one of the first (ABBA), again and again, so that whatever else the machine
does hits both alike. The ratio is taken within each such group of four; the median of the ratios is the
figure, and its 95 % interval comes from the bootstrap. Processor time is compared likewise: other programs
disturb it less. Workers are driven over the channel as a service drives them, reports included. Plain PyTorch
is DistributedDataParallel for two workers, and the bare model for one. With --ddp it is that for one worker,
too, as in a script that `torchrun` starts. With --control plain PyTorch, with another model, takes the SDK's
place: how far from 1 the method itself comes out on this machine.

    OMP_NUM_THREADS=1 python benchmarks/sdk_overhead.py [--groups 15] [--sizes 256,1024] [--ddp] [--control]
"""

import argparse
import cProfile
import json
import multiprocessing
import os
import platform
import pstats
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.model import FloatArray
from stretto.testing.conductor import Conductor

WIDTHS = (64, 256, 512, 1024)  # of the two hidden layers
BATCH = 64  # samples a step, over all workers
FEATURES, CLASSES = 64, 10
BLOCK_S = 0.6  # an epoch takes about so long; chosen: three beats
WARM = 4  # epochs of each before; chosen: what measuring costs is known by then
JOB = "bench"


@dataclass(frozen=True)
class Row:
    """One size on so many workers."""

    workers: int
    width: int
    steps: int  # of an epoch
    groups: int
    step_s: float  # of plain PyTorch, median of the epochs
    ratio: float  # of the SDK's time to it, median of the groups
    low: float  # of a 95 % interval
    high: float
    used: float  # likewise, of processor time: what other programs do counts less
    used_low: float
    used_high: float


@dataclass(frozen=True)
class How:
    """What is run, beside the size."""

    groups: int
    is_profiled: bool = False
    is_control: bool = False  # plain PyTorch in both places
    is_wrapped: bool = False  # plain PyTorch is DistributedDataParallel for one worker, too


def run(env: dict[str, str], width: int, how: How, to: Path) -> None:
    """One worker; rank 0 writes the ratios."""
    os.environ.update(env)
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    import stretto.sdk
    from stretto.sdk.sampler import MicroBatchSampler, order_of, steps_from

    torch.set_num_threads(1)

    def a_model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        )

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def dataset_of(steps: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(2)
        samples = steps * BATCH
        x = torch.randn(samples, FEATURES, generator=generator)
        return TensorDataset(x, torch.randint(0, CLASSES, (samples,), generator=generator))

    steps = int(env["STRETTO_BENCH_STEPS"])
    data = dataset_of(steps)
    mine = a_model()
    job = stretto.sdk.elastic(mine, optimizer_of(mine), data=data, batch_size=BATCH, report_s=5.0)

    if how.is_wrapped and not dist.is_initialized():
        meeting = f"file://{to.with_suffix('.group')}"
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)

    def a_plain_one() -> tuple[nn.Module, torch.optim.Optimizer]:
        bare = a_model()
        return DistributedDataParallel(bare) if dist.is_initialized() else bare, optimizer_of(bare)

    first, second = a_plain_one(), a_plain_one()

    def plain_epoch(epoch: int, plain: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        steps = steps_from(0, order_of(epoch, len(data), 0), BATCH, 1, job.rank, job.world_size)
        for x, y in DataLoader(data, batch_sampler=MicroBatchSampler(steps)):
            functional.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def own_epoch() -> None:
        for x, y in job.batches():
            job.backward(functional.cross_entropy(job.model(x), y))
            job.step()

    profile = cProfile.Profile()

    def timed(epoch: int, is_own: bool) -> tuple[float, float]:
        """Wall and processor time of one epoch."""
        began_s, used_s = time.perf_counter(), time.process_time()
        if not is_own:
            plain_epoch(epoch, *first)
        elif how.is_control:
            plain_epoch(epoch, *second)
        elif how.is_profiled and job.rank == 0:
            profile.runcall(own_epoch)
        else:
            own_epoch()
        return time.perf_counter() - began_s, time.process_time() - used_s

    epochs = job.epochs(WARM + 2 * how.groups)
    for epoch in range(WARM):
        next(epochs)
        timed(epoch, is_own=True)
        timed(epoch, is_own=False)
    took: list[list[tuple[float, float]]] = []  # of each group, in the order plain, own, own, plain
    for epoch in epochs:
        is_first = epoch % 2 == WARM % 2
        pair = [timed(epoch, is_own) for is_own in ((False, True) if is_first else (True, False))]
        took = [*took, pair] if is_first else [*took[:-1], took[-1] + pair]
    if job.rank == 0:
        to.write_text(json.dumps(took))
        if how.is_profiled:
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def measured(workers: int, width: int, how: How, steps: int) -> FloatArray:
    """Seconds that rank 0 of a run found: (groups, epochs of a group, wall and processor)."""
    context = multiprocessing.get_context("spawn")
    names = [f"{JOB}.1.{index}" for index in range(workers)]
    with Conductor() as conductor, TemporaryDirectory() as folder:
        to = Path(folder, "found.json")
        processes = []
        for name in names:
            env = conductor.environment_of(name) | {"STRETTO_BENCH_STEPS": str(steps)}
            env |= {"OMP_NUM_THREADS": "1"}
            processes.append(context.Process(target=run, args=(env, width, how, to)))
            processes[-1].start()
        conductor.publish(names)
        for process in processes:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a worker ended with status {process.exitcode}")
        found: list[list[list[float]]] = json.loads(to.read_text())
        return np.array(found)


def rows(widths: list[int], worlds: list[int], how: How) -> Iterator[Row]:
    """All sizes, on so many workers each."""
    for workers in worlds:
        for width in widths:
            quick = measured(workers, width, replace(how, groups=2, is_profiled=False), 20)
            steps = max(20, round(BLOCK_S / (float(np.median(quick[:, 0, 0])) / 20)))
            took = measured(workers, width, how, steps)
            ratios = (took[:, 1] + took[:, 2]) / (took[:, 0] + took[:, 3])  # (groups, 2)
            draws = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
            low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975), axis=0).tolist()
            step_s = float(np.median(took[:, 0, 0])) / steps
            wall, used = np.median(ratios, axis=0).tolist()
            yield Row(workers, width, steps, how.groups, step_s, wall, low[0], high[0], used, low[1], high[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--groups", type=int, default=15, help="of four epochs, for each size")
    parser.add_argument("--sizes", default=",".join(map(str, WIDTHS)), help="widths of the hidden layers")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--control", action="store_true", help="plain PyTorch in the SDK's place")
    parser.add_argument("--ddp", action="store_true", help="plain PyTorch is DDP for one worker, too")
    parser.add_argument("--profile", action="store_true", help="show where the SDK's epochs go")
    asked = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    what = "plain" if asked.control else "SDK"
    print(f"{'workers':>7} {'width':>6} {'plain step':>11}   {what} / plain, 95 %      processor time, 95 %")
    all_rows = []
    for row in rows(
        [int(width) for width in asked.sizes.split(",")],
        [int(count) for count in asked.workers.split(",")],
        How(asked.groups, asked.profile, asked.control, asked.ddp),
    ):
        print(
            f"{row.workers:>7} {row.width:>6} {row.step_s * 1e3:>8.2f} ms"
            f"   {row.ratio:.3f} ({row.low:.3f}-{row.high:.3f})"
            f"   {row.used:.3f} ({row.used_low:.3f}-{row.used_high:.3f})",
            flush=True,
        )
        all_rows.append(asdict(row))
    if asked.json:
        asked.json.write_text(json.dumps(all_rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
