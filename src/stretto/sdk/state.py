"""What must be the same on all workers: captured, sent from one to the others, and put back.

A state is a tree of dictionaries, lists and plain values with tensors at some leaves. Its *skeleton* has a
`Hole` in place of each tensor; the skeleton travels as one object, the tensors in few large pieces.
"""

import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stretto.sdk import process_group

PIECE_BYTES = 32 * 2**20  # small tensors are sent together, up to so many bytes; chosen


@dataclass(frozen=True, slots=True)
class Hole:
    """Where a tensor was."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_gpu: bool


def take_out(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """The skeleton of a tree; its tensors are appended to `tensors`, in the order of their holes."""

    def hole(tensor: torch.Tensor) -> Hole:
        tensors.append(tensor)
        return Hole(len(tensors) - 1, tuple(tensor.shape), tensor.dtype, tensor.device.type != "cpu")

    return mapped(tree, torch.Tensor, hole)


def put_back(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """The tree of a skeleton and its tensors."""
    return mapped(skeleton, Hole, lambda hole: tensors[hole.number])


def on_cpu(tree: Any) -> Any:
    """A copy that the training does not change any more, in the host's memory."""
    return mapped(tree, torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True))


def mapped(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The same tree with every leaf of that kind changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, Mapping):
        changed = {key: mapped(each, kind, change) for key, each in tree.items()}
        return changed if type(tree) is dict else alike(tree, changed)
    if isinstance(tree, list):
        return [mapped(each, kind, change) for each in tree]
    if type(tree) is tuple:
        return tuple(mapped(each, kind, change) for each in tree)
    return tree


def alike(tree: Mapping[Any, Any], content: dict[Any, Any]) -> Mapping[Any, Any]:
    """The content in a mapping of the same kind, such as the Counter of a MultiStepLR."""
    if not isinstance(tree, MutableMapping):
        return content
    like = copy(tree)
    for key, each in content.items():
        like[key] = each
    return like


def holes_in(skeleton: Any) -> list[Hole]:
    """All holes, by number."""
    holes: list[Hole] = []
    mapped(skeleton, Hole, holes.append)
    return holes


def spread(tree: Any, source: int, device: torch.device) -> Any:
    """The tree of rank `source`, on every rank of the default group.

    What a rank already has in the right shape at the same place is overwritten where it lies. So survivors
    need no memory for it. The source itself is not touched.
    """
    own: list[torch.Tensor] = []
    own_skeleton = take_out(tree, own)
    skeleton = process_group.broadcast_object(own_skeleton if dist.get_rank() == source else None, source)
    holes = holes_in(skeleton)
    if dist.get_rank() == source or holes == holes_in(own_skeleton):
        tensors = [tensor.detach() for tensor in own]
    else:
        tensors = [
            torch.empty(hole.shape, dtype=hole.dtype, device=device if hole.on_gpu else "cpu")
            for hole in holes
        ]
    for piece in pieces(tensors):
        broadcast(piece, source)
    return put_back(skeleton, tensors)


def pieces(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors of one type and device together, in pieces that are not too large. Each rank cuts alike."""

    def kind(tensor: torch.Tensor) -> str:
        return f"{tensor.dtype} {tensor.device.type}"

    for _, alike in groupby(sorted(tensors, key=kind), key=kind):
        piece: list[torch.Tensor] = []
        size_bytes = 0
        for tensor in alike:
            if piece and size_bytes + tensor.nbytes > PIECE_BYTES:
                yield piece
                piece, size_bytes = [], 0
            piece.append(tensor)
            size_bytes += tensor.nbytes
        if piece:
            yield piece


@torch.no_grad()
def broadcast(piece: list[torch.Tensor], source: int) -> None:
    """Overwrite these tensors by those of rank `source`; as bytes, since not every type can be sent."""
    if len(piece) == 1 and piece[0].is_contiguous():
        dist.broadcast(piece[0].view(-1).view(torch.uint8), src=source)
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in piece])
    dist.broadcast(flat.view(torch.uint8), src=source)
    if dist.get_rank() != source:
        for tensor, part in zip(piece, torch.split(flat, [each.numel() for each in piece]), strict=True):
            tensor.copy_(part.view_as(tensor))


def random_state(device: torch.device) -> dict[str, Any]:
    """The generators of this process: Python's, NumPy's, PyTorch's, and the GPU's."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.array(keys, dtype=np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Go on where `random_state` was taken."""
    version, inner, gauss_next = state["python"]
    random.setstate((version, tuple(inner), gauss_next))
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def seed_afresh(*origin: int) -> None:
    """Generators of a rank that has no past: a stream of its own for each origin (seed, step, rank)."""
    drawn = np.random.SeedSequence(list(origin)).generate_state(3)
    random.seed(int(drawn[0]))
    np.random.seed(int(drawn[1]))  # noqa: NPY002 - user code draws from the global generator
    torch.manual_seed(int(drawn[2]))  # the GPUs' too
