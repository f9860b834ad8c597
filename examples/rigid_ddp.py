"""Plain data-parallel PyTorch as torchrun starts it, without a line of ours: it runs at one size.

The service sets the variables that torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. By itself:
torchrun --standalone --nproc-per-node 2 rigid_ddp.py
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch", type=int, default=32, help="of each worker")


def main() -> None:
    """Train on this worker's part of the digits."""
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # Before the group: it would otherwise run over the network, where the name of this machine leads.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels, dtype=torch.long)
    data = TensorDataset(x[360:], y[360:])
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data)
    loader = DataLoader(data, options.batch, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images_of_batch, labels_of_batch in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images_of_batch), labels_of_batch).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = float((model.module(x[:360]).argmax(1) == y[:360]).float().mean())
    if dist.get_rank() == 0:
        print(f"on {dist.get_world_size()}: {options.epochs} epochs, accuracy {accuracy:.4f}", flush=True)
    dist.destroy_process_group()
    # The model holds the group in a cycle. A thread of gloo that lets go of its last work while the
    # interpreter is already ending would abort the process, so the group and its threads end here.
    del model
    gc.collect()


if __name__ == "__main__":
    main()
