"""How well does the model of speed foretell steps on a GPU that it was not shown?

A training runs on one GPU, driven over the channel, and the service gives it one batch after the other: local
batches from small to large, and some of them in several passes. What it reports is what the service learns
from: seconds of a pass, and of a step. The throughput model is fitted to every other local batch, without
accumulation. What it says of the other batches, and of accumulated steps, is compared with what was reported.

    python benchmarks/cuda_profiles.py [--seconds 2] [--models resnet18,bert,gpt]
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stretto.estimate.fit import fit
from stretto.estimate.throughput import iteration_s
from stretto.model.knowledge import Observations, Point
from stretto.testing.conductor import Conductor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cuda_card import card

PATIENCE_S = 180.0
LOCAL = {
    "resnet18": (16, 32, 64, 128, 256, 512, 1024, 2048),
    "bert": (2, 4, 8, 16, 32, 64, 128),
    "gpt": (1, 2, 4, 8, 16, 32),
}
PASSES = (2, 4)  # of accumulated steps
WORKER = "bench.1.0"


def a_model(name: str) -> tuple[Any, Callable[[int, Any], Any], Callable[[Any, Any], Any]]:
    """A model, what makes so many inputs on a device, and the loss."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(1)
    if name == "resnet18":
        from torchvision.models import resnet18

        labels = torch.randint(0, 10, (4096,))
        return (
            resnet18(num_classes=10),
            lambda count, on: torch.randn(count, 3, 32, 32, device=on),
            lambda out, numbers: functional.cross_entropy(out, labels.to(out.device)[: len(out)]),
        )
    width, heads, layers, words, length = {
        "bert": (768, 12, 12, 30_000, 128),
        "gpt": (1024, 16, 12, 32_000, 512),
    }[name]

    class Transformer(nn.Module):
        """Layers of attention; one that writes looks at what came before only."""

        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
            self.words = nn.Embedding(words, width)
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.out = nn.Linear(width, 10 if name == "bert" else words)
            self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(length))

        def forward(self, x: torch.Tensor) -> Any:
            if name == "bert":
                return self.out(self.layers(self.words(x)).mean(1))
            return self.out(self.layers(self.words(x), mask=self.later, is_causal=True))

    def loss(out: Any, x: Any) -> Any:
        if name == "bert":
            return functional.cross_entropy(out, x[:, 0] % 10)
        return functional.cross_entropy(out.flatten(0, 1), x.flatten())

    return Transformer(), lambda count, on: torch.randint(0, words, (count, length), device=on), loss


def run(env: dict[str, str], name: str, largest: int) -> None:
    """The worker: trains in bf16 on inputs that lie on the GPU, until it is told to leave."""
    os.environ.update(env)
    import torch

    import stretto.sdk

    device = stretto.sdk.device()
    model, inputs, loss_of = a_model(name)
    model.to(device)
    x = inputs(largest, device)
    job = stretto.sdk.elastic(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-5),
        data=torch.utils.data.TensorDataset(torch.arange(1 << 22)),
        batch_size=1,
        max_batch_size=largest * max(PASSES),
        max_local_batch=largest,
        report_s=0.3,
        shuffle=False,
        loader={"collate_fn": len},
    )
    for _ in job.epochs(10**9):
        for count in job.batches():
            with torch.autocast(device.type, dtype=torch.bfloat16):
                part = x[:count]
                loss = loss_of(job.model(part), part)
            job.backward(loss)
            job.step()


def reported(name: str, seconds: float) -> list[list[float]]:
    """Points [nodes, gpus, local batch, passes, seconds of a pass, seconds of a step]."""
    local = LOCAL[name]
    batches = [(size, 1) for size in local]
    batches += [(size * passes, passes) for size in local[1::2] for passes in PASSES]
    with Conductor() as conductor:
        env = conductor.environment_of(WORKER)
        process = multiprocessing.get_context("spawn").Process(target=run, args=(env, name, local[-1]))
        process.start()

        def is_known(total: int, passes: int) -> bool:
            return any(
                point[2:4] == [total // passes, passes]
                for report in conductor.reports[-1:]
                for point in report.get("points", [])
            )

        for total, passes in batches:
            batch = {"total": total, "accumulation": passes}
            conductor.wait_joined(conductor.publish([WORKER], batch=batch), PATIENCE_S)
            time.sleep(seconds)

            def is_there(total: int = total, passes: int = passes) -> bool:
                return is_known(total, passes)

            conductor.wait_until(is_there, PATIENCE_S, f"{total} samples in {passes}")
        conductor.leave()
        process.join()
        return [list(point) for point in conductor.reports[-1]["points"]]


def observations(points: list[list[float]]) -> Observations:
    """As a service notes steps of one pass."""
    return Observations(
        tuple(
            Point(int(nodes), int(gpus), int(local), min(grad_s, step_s), step_s)
            for nodes, gpus, local, _, grad_s, step_s in points
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each batch, at least")
    parser.add_argument("--models", default=",".join(LOCAL))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(card())
    rows = []
    for name in asked.models.split(","):
        points = reported(name, asked.seconds)
        single = [point for point in points if point[3] == 1]
        shown = single[::2]
        model = fit(observations(shown))
        print(f"{name}: samples x passes, ms of a pass, ms of a step, samples/s, foretold, error")
        errors: dict[str, list[float]] = {"shown": [], "not shown": [], "accumulated": []}
        for point in points:
            _, _, local, passes, grad_s, step_s = point
            said_s = float(iteration_s(model, 1, 1, local, passes - 1))
            which = "accumulated" if passes > 1 else "shown" if point in shown else "not shown"
            error = said_s / step_s - 1
            errors[which].append(abs(error))
            print(
                f"{local:>6.0f} x {passes:.0f} {grad_s * 1e3:>9.3f} {step_s * 1e3:>9.3f}"
                f" {local * passes / step_s:>9.0f} {said_s * 1e3:>9.3f} {error:>+8.1%}  {which}"
            )
        means = "  ".join(f"{which} {np.mean(each):.1%}" for which, each in errors.items() if each)
        print(f"{name}: mean error  {means}", flush=True)
        rows.append({"model": name, "points": points})
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
