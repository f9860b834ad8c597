"""How long do a start, a suspension, a resumption and a change of the batch take on a GPU, and which part?

Real processes on the first GPU, driven over the channel as a service drives them. A training runs, is told to
leave, writes a checkpoint and ends; a new process goes on from it. Each part is timed by the worker itself,
from the moment that its process was started. Then the service changes the batch of a training that goes on,
again and again: what is lost is from the end of the last step until the group is ready for the next one.

    python benchmarks/cuda_switches.py [--times 5] [--models mlp,resnet18,transformer]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stretto.testing.conductor import Conductor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cuda_card import card

PATIENCE_S = 120.0
MODELS = ("mlp", "resnet18", "transformer")
PARTS = ("interpreter", "import", "context", "model", "optimizer", "join", "first step")


def a_model(name: str) -> tuple[Any, Callable[[int, Any], Any]]:
    """A model, and what makes so many inputs for it on a device."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    if name == "mlp":
        layers = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        return layers, lambda count, on: torch.randn(count, 64, device=on)
    if name == "resnet18":
        from torchvision.models import resnet18

        return resnet18(num_classes=10), lambda count, on: torch.randn(count, 3, 32, 32, device=on)

    class Classifier(nn.Module):
        """Twelve layers of attention over 128 words: the size of BERT."""

        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
            self.words = nn.Embedding(30_000, 768)
            self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.out = nn.Linear(768, 10)

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.layers(self.words(x)).mean(1))

    return Classifier(), lambda count, on: torch.randint(0, 30_000, (count, 128), device=on)


def work(model_name: str, folder: str) -> None:
    """One worker: trains until it is told to leave, and says when each part was through."""
    at = {"interpreter": time.time()}
    import torch
    from torch.nn import functional

    import stretto.sdk

    stretto.sdk.elastic  # noqa: B018 - loads what the SDK is made of
    at["import"] = time.time()
    device = stretto.sdk.device()
    torch.zeros(1, device=device)
    at["context"] = time.time()
    model, inputs = a_model(model_name)
    model.to(device)
    x, y = inputs(256, device), torch.randint(0, 10, (256,), device=device)
    torch.cuda.synchronize()
    at["model"] = time.time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)  # the first one imports TorchDynamo
    at["optimizer"] = time.time()
    job = stretto.sdk.elastic(
        model,
        optimizer,
        data=torch.utils.data.TensorDataset(torch.arange(1 << 16)),
        batch_size=32,
        max_batch_size=128,
        checkpoint_dir=folder,
        report_s=5.0,
    )
    torch.cuda.synchronize()
    at["join"] = time.time()
    notes = Path(folder, f"{os.environ['STRETTO_WORKER_ID']}.json")

    def ended() -> None:
        notes.write_text(json.dumps(at))

    try:
        for _ in job.epochs(10**9):
            for (numbers,) in job.batches():
                part = numbers % 256
                job.backward(functional.cross_entropy(job.model(x[part]), y[part]))
                job.step()
                if "first step" not in at:
                    torch.cuda.synchronize()
                    at["first step"] = time.time()
                    ended()
                at["last step"] = time.time()
    finally:
        at["left"] = time.time()
        at["bytes"] = torch.cuda.max_memory_allocated()
        ended()


def median_parts(seconds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each part."""
    return {part: statistics.median(each[part] for each in seconds) for part in seconds[0]}


def started_and_left(model_name: str, times: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Parts of starts, the first without a checkpoint, and parts of suspensions; seconds."""
    starts, leaves = [], []
    with Conductor() as conductor, TemporaryDirectory() as folder:
        for turn in range(times + 1):
            name = f"bench.{turn + 1}.0"
            began_s = time.time()
            conductor.start(name, [sys.executable, __file__, "--work", model_name, folder], {})
            conductor.wait_joined(conductor.publish([name]), PATIENCE_S)
            notes = Path(folder, f"{name}.json")
            conductor.wait_until(notes.exists, PATIENCE_S, "a step")
            time.sleep(1.0)
            told_s = time.time()
            conductor.leave()
            assert conductor.wait_ended(name, PATIENCE_S) == 143, conductor.endings()
            gone_s = time.time()
            at = json.loads(notes.read_text())
            moments = [began_s, *(at[part] for part in PARTS)]
            starts.append(
                {
                    part: after - before
                    for part, before, after in zip(PARTS, moments, moments[1:], strict=False)
                }
                | {"whole": at["first step"] - began_s}
            )
            leaves.append(
                {
                    "last step": at["last step"] - told_s,
                    "checkpoint": at["left"] - at["last step"],
                    "end": gone_s - at["left"],
                    "whole": gone_s - told_s,
                }
            )
    return starts, leaves


def batches_changed(model_name: str, times: int) -> list[float]:
    """Seconds lost by a change of the batch in place."""
    with Conductor() as conductor, TemporaryDirectory() as folder:
        name = "bench.1.0"
        conductor.start(name, [sys.executable, __file__, "--work", model_name, folder], {})
        conductor.wait_joined(conductor.publish([name]), PATIENCE_S)
        time.sleep(2.0)
        for turn in range(times):
            batch = {"total": (64, 128, 96)[turn % 3], "accumulation": (1, 2)[turn % 2]}
            conductor.wait_joined(conductor.publish([name], batch=batch), PATIENCE_S)
            time.sleep(0.5)
        conductor.leave()
        assert conductor.wait_ended(name, PATIENCE_S) == 143, conductor.endings()
        return [each["lost_s"] for each in conductor.joined if each.get("lost_s") is not None]


def used_bytes() -> int | None:
    """Memory of the first GPU that is in use, as its driver says."""
    told = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(told.stdout.split()[0]) << 20 if told.returncode == 0 else None


def shown(parts: dict[str, float]) -> str:
    """Parts and their seconds, in one line."""
    return "  ".join(f"{part} {seconds:.3f}" for part, seconds in parts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(*asked.work)
        return
    print(card())
    print(f"seconds, medians of {asked.times}")
    rows = []
    for name in asked.models.split(","):
        before = used_bytes()
        starts, leaves = started_and_left(name, asked.times)
        lost = batches_changed(name, asked.times)
        after = used_bytes()
        print(f"{name}, from nothing: {shown(starts[0])}")
        print(f"{name}, resumption:   {shown(median_parts(starts[1:]))}")
        print(f"{name}, suspension:   {shown(median_parts(leaves[1:]))}")
        print(f"{name}, batch in place: {statistics.median(lost):.4f}, worst {max(lost):.4f}")
        if before is not None and after is not None:
            print(f"{name}, memory of the GPU in use before and after: {before >> 20} and {after >> 20} MiB")
        sys.stdout.flush()
        rows.append({"model": name, "starts": starts, "leaves": leaves, "lost_s": lost})
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
