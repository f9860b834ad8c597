"""Which samples were trained on: written down by every worker, counted when all is over.

What a step trained on counts once the step has ended. Where an attempt was cut off and a later one went on
from a checkpoint, the steps after that checkpoint were done anew: the latest attempt counts.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any


class Seen:
    """The notes of one worker, in a file of its own; without a folder it writes none."""

    def __init__(self, folder: str | None) -> None:
        self.file = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            name = f"{os.environ.get('STRETTO_WORKER_ID', '0.1.0')}.{os.getpid()}.jsonl"
            self.file = (Path(folder) / name).open("w", buffering=1, encoding="utf-8")

    def write(self, job: Any, epoch: int, numbers: Any) -> None:
        """Between the backward pass and the step of a batch."""
        if self.file is not None and not job.is_padding:
            self.file.write(json.dumps([job.steps, epoch, numbers.tolist()]) + "\n")


def count(folder: Path) -> dict[int, Counter[int]]:
    """How often each sample was trained on, by epoch."""
    steps: dict[int, list[tuple[int, list[int]]]] = {}
    attempts: dict[int, list[tuple[int, int, list[int]]]] = {}
    for path in folder.glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        attempts.setdefault(int(path.name.split(".")[1]), []).extend(json.loads(line) for line in lines)
    for attempt in sorted(attempts):
        first = min((step for step, _, _ in attempts[attempt]), default=0)
        steps = {step: what for step, what in steps.items() if attempts[attempt] == [] or step < first}
        for step, epoch, numbers in attempts[attempt]:
            steps.setdefault(step, []).append((epoch, numbers))
    found: dict[int, Counter[int]] = {}
    for what in steps.values():
        for epoch, numbers in what:
            found.setdefault(epoch, Counter()).update(numbers)
    return found


def is_exact(folder: Path, samples: int, epochs: int) -> bool:
    """Whether each sample was trained on exactly once in each epoch."""
    return count(folder) == {epoch: Counter(range(samples)) for epoch in range(epochs)}


def main() -> int:
    """Compare what two runs trained on; 0 where each sample of each epoch was trained on once, in both."""
    one, other = (count(Path(folder)) for folder in sys.argv[1:3])
    once = all(set(epoch.values()) == {1} for epoch in one.values())
    total = sum(epoch.total() for epoch in one.values())
    same = bool(one) and once and one == other
    print(f"{total} samples in {len(one)} epochs: " + ("each once" if same else "NOT each once"))
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
