"""Under ONES a real training starts with what one worker holds, and each epoch may double its batch."""

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large, pytest.mark.long]

EXAMPLES = Path(__file__).parents[3] / "examples"
OPTIONS = ("--slots", "3", "--gpu-type", "cpu", "--policy", "ones")
SUBMITTED, FITS, MOST = 96, 48, 144  # samples of a step, and of one worker's part of it
BATCHES = f"--batch {SUBMITTED} --max-batch {MOST}"
GROWS = [[48], [48, 48], [48, 48, 48]]  # what its workers take of a step, one after the other


def steps_by_attempt(folder: Path) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(epoch, samples) of each worker at each step of each attempt, as the workers wrote them down."""
    steps = defaultdict(list)
    for path in folder.glob("*.jsonl"):
        attempt = int(path.name.split(".")[1])
        # What a worker is writing at this moment has no end of line yet.
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                step, epoch, numbers = json.loads(line)
                steps[attempt, step].append((epoch, len(numbers)))
    return steps


def shares_in_turn(folder: Path) -> list[tuple[int, list[int]]]:
    """(first epoch, samples by worker, largest first) of each batch on which it trained, in turn.

    The rest of an epoch and of what was left when the workers changed is smaller, and is left out.
    """
    turns: list[tuple[int, list[int]]] = []
    for _, parts in sorted(steps_by_attempt(folder).items()):
        shares = sorted((samples for _, samples in parts), reverse=True)
        if shares in GROWS and (not turns or turns[-1][1] != shares):
            turns.append((parts[0][0], shares))
    return turns


def test_the_batch_of_a_real_training_grows_gradually_and_its_workers_take_what_they_were_given(
    tmp_path: Path,
) -> None:
    seen = tmp_path / "seen"
    running = Running(tmp_path, *OPTIONS)
    running.begin()
    try:
        with running.client() as client:
            job = {
                "name": "grows",
                "run": f"{sys.executable} digits_cnn.py --epochs 100000 --seen {seen} {BATCHES}",
                "workdir": str(EXAMPLES),
                "resources": {"accelerators": 1},
                "elastic": {"min": 1, "max": 3},
                "batch": {"policy": "adaptive", "init": SUBMITTED, "per_gpu": FITS, "max": MOST},
                "grace_period": "5s",
                "envs": {"OMP_NUM_THREADS": "1"},
            }
            name = str(client.submit(json.dumps(job))["id"])
            until(
                lambda: [shares for _, shares in shares_in_turn(seen)][-1:] == GROWS[-1:],
                *(300.0, "three workers train with what they were given"),
            )
            shown = client.describe(name)
            client.change(name, "cancel")
            until(lambda: client.describe(name)["ended_s"], what="it ends")
        turns = shares_in_turn(seen)
        assert [shares for _, shares in turns] == GROWS, "what one holds, less than was submitted, at first"
        assert all(later > earlier for (earlier, _), (later, _) in pairwise(turns)), "an epoch on each"
        given = [
            action["after"]["local_batch"]
            for _, _, kind, body in running.log_of_all()
            if kind == "Decided"
            for action in body["actions"]
            if action["job"] == name and action["after"]
        ]
        assert given == GROWS, "what was decided is what they took"
        assert (shown["restarts"], shown["training_gpus"]) == (0, 3), "it grew in place"
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
    finally:
        running.end()
