"""A script that uses Ray Train and knows nothing of Stretto."""

import sys
from typing import Any

import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def loop(config: dict[str, Any]) -> None:
    """Learn to add four numbers, every worker from numbers of its own."""
    torch.manual_seed(0)
    context = ray.train.get_context()
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    own = torch.Generator().manual_seed(context.get_world_rank())
    for step in range(config["steps"]):
        numbers = torch.randn(16, 4, generator=own)
        loss = ((model(numbers) - numbers.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ray.train.report({"loss": loss.item(), "step": step})
    weights = [round(float(each), 2) for each in next(model.parameters()).detach().flatten()]
    print(f"rank {context.get_world_rank()} of {context.get_world_size()} learned {weights}", flush=True)


trainer = TorchTrainer(
    loop, train_loop_config={"steps": int(sys.argv[1])}, scaling_config=ScalingConfig(num_workers=0)
)
print("ended at", trainer.fit().metrics["step"], flush=True)
