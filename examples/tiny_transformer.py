"""A small transformer learns to write Python, character by character, from the standard library itself.

Elastic like digits_cnn.py; the batch may grow with the number of workers where --max-batch allows it. Leaves
with status 1 if it does not come below the target, in bits for each character of a text not trained on.
"""

import argparse
import sys
import sysconfig
from pathlib import Path

import stretto.sdk  # loads torch when it is needed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=32, help="of all workers together, in pieces of text")
parser.add_argument("--max-batch", type=int, default=0, help="what it may grow to; 0: not at all")
parser.add_argument("--pieces", type=int, default=2048, help="to train on")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--target", type=float, default=4.0, help="bits for each character")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--seen", help="a folder for the numbers of all pieces that were trained on")

LENGTH = 64  # characters of a piece
SOURCES = (
    "argparse",
    "ast",
    "bdb",
    "calendar",
    "cmd",
    "code",
    "csv",
    "dis",
    "doctest",
    "inspect",
    "pdb",
    "typing",
)


def main() -> int:
    """Train; the exit status."""
    options = parser.parse_args()
    import torch
    from seen import Seen
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import TensorDataset

    class Writer(nn.Module):
        """What comes next, at every place of a piece."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.characters, self.places = nn.Embedding(128, width), nn.Embedding(LENGTH, width)
            layer = nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = nn.Linear(width, 128)
            self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(LENGTH))

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            x = self.characters(text) + self.places.weight
            return self.out(self.layers(x, mask=self.later, is_causal=True))

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    device = stretto.sdk.device()  # the GPU of this worker, or the processor where there is none
    library = Path(sysconfig.get_path("stdlib"))
    text = "".join((library / f"{name}.py").read_text(encoding="utf-8") for name in SOURCES)
    codes = torch.tensor([min(ord(one), 127) for one in text])
    pieces = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))]
    held_out, pieces = pieces[:256], pieces[256 : 256 + options.pieces]
    data = TensorDataset(pieces, torch.arange(len(pieces)))
    model = Writer(options.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    job = stretto.sdk.elastic(
        *(model, optimizer), data=data, batch_size=options.batch, seed=1 + options.seed,
        max_batch_size=options.max_batch or options.batch, lr_scaling="sqrt",
    )  # fmt: skip
    seen = Seen(options.seen)

    def loss_on(network: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(device)
        return functional.cross_entropy(network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def bits_now() -> float:
        model.eval()
        with torch.no_grad():
            found = float(loss_on(model, held_out)) / 0.6931471805599453  # ln 2
        model.train()
        return found

    bits = None
    for epoch in job.epochs(options.epochs):
        for batch, numbers in job.batches():
            job.backward(loss_on(job.model, batch))
            seen.write(job, epoch, numbers)
            job.step()
        bits = bits_now()
        job.report(bits=bits)
        if job.rank == 0:
            print(f"epoch {epoch + 1} on {job.world_size}: {bits:.3f} bits for each character", flush=True)
    if bits is None:  # it was stopped between its last epoch and its end, and nothing is left to do
        bits = bits_now()
        if job.rank == 0:
            print(f"{bits:.3f} bits for each character", flush=True)
    return int(bits > options.target)


if __name__ == "__main__":
    sys.exit(main())
