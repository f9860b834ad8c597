"""What does a step of the SDK take on a GPU, beside the same step of plain PyTorch?

One worker trains on one GPU, driven over the channel as a service drives it. Epochs of the SDK, of the bare
model and of DistributedDataParallel with one rank over NCCL take turns in one process, in an order that is
turned round each time. Each epoch is timed until the GPU has done all of it. The ratio is taken within each
such group; the median of the ratios is the figure, with a 95 % interval from the bootstrap.

Two kinds of steps: *launched* ones are of many small kernels, so the processor that launches them is what
takes the time, and each line of Python shows. *Computed* ones are of a few large kernels, so the GPU is. The
data are on the GPU, so that no loader hides anything. The last column compares the time of a step that the
SDK reports to the service with the one measured here.

    python benchmarks/cuda_overhead.py [--groups 8] [--block 0.4] [--profile]
"""

import argparse
import cProfile
import json
import multiprocessing
import os
import pstats
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stretto.testing.conductor import Conductor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cuda_card import card

# Chosen so that a step takes about 1, 3, 10 and 50 ms on an H100: layers of a narrow network of which each
# takes some launches, and samples of a wide one.
LAUNCHED = (4, 20, 70, 360)
COMPUTED = (96, 448, 1536, 7680)
WIDTH, WIDE, BATCH = 64, 4096, 64
WARM = 2  # groups before the ones that count
WORKER = "bench.1.0"


def run(env: dict[str, str], kind: str, size: int, how: dict[str, Any], to: Path) -> None:
    """The worker; writes seconds of each epoch and the points that it reports."""
    os.environ.update(env)
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    import stretto.sdk

    device = stretto.sdk.device()
    batch, width, layers = (BATCH, WIDTH, size) if kind == "launched" else (size, WIDE, 4)

    def a_model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(
            *(each for _ in range(layers) for each in (nn.Linear(width, width), nn.ReLU())),
            nn.Linear(width, 10),
        ).to(device)

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    class OnGpu(torch.utils.data.Dataset[Any]):
        """Samples that lie on the GPU and are taken by the batch."""

        def __init__(self, steps: int) -> None:
            self.length = steps * batch
            self.x = torch.randn(4 * batch, width, device=device)
            self.y = torch.randint(0, 10, (4 * batch,), device=device)

        def __len__(self) -> int:
            return self.length

        def __getitems__(self, numbers: list[int]) -> Any:
            start = numbers[0] % (3 * batch)
            return self.x[start : start + len(numbers)], self.y[start : start + len(numbers)]

    def as_it_is(batch: Any) -> Any:
        return batch

    # How many steps an epoch has follows from how long one takes.
    model = a_model()
    optimizer = optimizer_of(model)
    sample = OnGpu(1).__getitems__(list(range(batch)))

    def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any) -> None:
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for count in (5, 10):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(count):
            plain_step(model, optimizer, *sample)
        torch.cuda.synchronize()
        step_s = (time.perf_counter() - began_s) / count
    steps = max(4, round(how["block_s"] / step_s))

    data = OnGpu(steps)
    loader = {"collate_fn": as_it_is}
    mine = a_model()
    job = stretto.sdk.elastic(
        mine, optimizer_of(mine), data=data, batch_size=batch, report_s=2.0, shuffle=False, loader=loader
    )
    if not dist.is_initialized():
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    alone = a_model(), optimizer_of
    bare = (alone[0], optimizer_of(alone[0]))
    wrapped = DistributedDataParallel(a_model())
    ddp = (wrapped, optimizer_of(wrapped))

    def plain_epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        order = [list(range(first, first + batch)) for first in range(0, len(data), batch)]
        for x, y in torch.utils.data.DataLoader(data, batch_sampler=order, collate_fn=as_it_is):
            plain_step(model, optimizer, x, y)

    def own_epoch() -> None:
        for x, y in job.batches():
            job.backward(functional.cross_entropy(job.model(x), y))
            job.step()

    profile = cProfile.Profile()

    def timed(what: str) -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        if what == "sdk":
            profile.runcall(own_epoch) if how["is_profiled"] else own_epoch()
        else:
            plain_epoch(*(bare if what == "bare" else ddp))
        torch.cuda.synchronize()
        return time.perf_counter() - began_s

    took: list[dict[str, float]] = []
    order = ["bare", "sdk", "ddp"]
    for epoch in job.epochs(WARM + how["groups"]):
        found = {what: timed(what) / steps for what in (order if epoch % 2 else order[::-1])}
        took += [found] if epoch >= WARM else []
    to.write_text(json.dumps({"steps": steps, "took": took}))
    if how["is_profiled"]:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def measured(kind: str, size: int, how: dict[str, Any]) -> tuple[dict[str, Any], list[list[float]]]:
    """What the worker found, and the points that it reported last."""
    with Conductor() as conductor, TemporaryDirectory() as folder:
        to = Path(folder, "found.json")
        env = conductor.environment_of(WORKER)
        process = multiprocessing.get_context("spawn").Process(target=run, args=(env, kind, size, how, to))
        process.start()
        conductor.publish([WORKER])
        process.join()
        if process.exitcode:
            raise SystemExit(f"the worker ended with status {process.exitcode}")
        points = [report["points"] for report in conductor.reports if report.get("points")]
        return json.loads(to.read_text()), points[-1] if points else []


def interval(ratios: Any) -> str:
    """The median and its 95 % interval by the bootstrap."""
    draws = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975))
    return f"{np.median(ratios):.4f} ({low:.4f}-{high:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--groups", type=int, default=8, help="of three epochs, for each size")
    parser.add_argument("--block", type=float, default=0.4, help="seconds of an epoch")
    parser.add_argument("--launched", default=",".join(map(str, LAUNCHED)), help="layers")
    parser.add_argument("--computed", default=",".join(map(str, COMPUTED)), help="samples of a step")
    parser.add_argument("--profile", action="store_true", help="show where the SDK's epochs go")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(card())
    how = {"groups": asked.groups, "block_s": asked.block, "is_profiled": asked.profile}
    rows = []
    print(f"{'kind':>9} {'size':>5} {'plain':>9}   SDK / plain, 95 %         SDK / DDP, 95 %           told")
    for kind in ("launched", "computed"):
        for size in [int(each) for each in getattr(asked, kind).split(",") if each]:
            found, points = measured(kind, size, how)
            bare, sdk, ddp = (
                np.array([each[what] for each in found["took"]]) for what in ("bare", "sdk", "ddp")
            )
            told = points[0][5] / float(np.median(sdk)) if points else float("nan")
            print(
                f"{kind:>9} {size:>5} {np.median(bare) * 1e3:>6.2f} ms   {interval(sdk / bare):<25}"
                f" {interval(sdk / ddp):<25} {told:.3f}",
                flush=True,
            )
            rows.append({"kind": kind, "size": size, "told": told, **found})
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
