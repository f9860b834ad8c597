"""A data set worked off by the workers that are there: each item has one result, whatever becomes of them."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import stretto.sdk
from stretto.errors import InputError
from stretto.sdk import shutdown
from stretto.sdk.results import ResultFolder
from stretto.testing.conductor import Conductor

pytestmark = [pytest.mark.torch, pytest.mark.processes, pytest.mark.sockets]

ITEMS, BATCH = 50, 4
PARTS = 13
DATA = TensorDataset(torch.arange(float(ITEMS)))
WITHIN_S = 120.0

WORKER = """
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
import stretto.sdk

folder, name = Path(sys.argv[1]), sys.argv[2]
data = TensorDataset(torch.arange(50.0))
job = stretto.sdk.infer(data, output=folder / "output", batch_size=4, report_s=0.0)
for (numbers,) in job.batches():
    with (folder / "begun").open("a") as begun:
        begun.write(f"{name} {int(numbers[0])}\\n")
    while len((folder / "begun").read_text().splitlines()) > int((folder / "most").read_text() or 0):
        time.sleep(0.02)
    job.write(2 * numbers)
"""


@pytest.fixture(autouse=True)
def sigterm_means_what_it_did() -> Iterator[None]:
    yield
    for each in [*shutdown.LISTENERS]:
        each.give_back()


def values(folder: Path) -> list[float]:
    """The results in the order of items; each part has those of its own items."""
    told = []
    for numbers, result in stretto.sdk.read_results(folder):
        assert len(numbers) == len(result)
        told += result.tolist()
    return told


DOUBLED = [2.0 * number for number in range(ITEMS)]


# ── alone ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}], ids=["here", "by processes of the loader"])
def test_alone_every_item_is_done_once_and_in_order(tmp_path: Path, loader: dict[str, Any]) -> None:
    job = stretto.sdk.infer(DATA, output=tmp_path / "new" / "output", batch_size=BATCH, loader=loader)
    assert (job.rank, job.world_size) == (0, 1)
    seen = []
    for (numbers,) in job.batches():
        seen += numbers.tolist()
        job.write({"doubled": [2 * numbers]})
    assert seen == list(range(ITEMS))
    found = [result["doubled"][0] for _, result in job.results()]
    assert torch.cat(found).tolist() == DOUBLED
    assert len(found) == PARTS


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    first = stretto.sdk.infer(DATA, output=tmp_path, batch_size=BATCH)
    batches = first.batches()
    for _ in range(5):
        (numbers,) = next(batches)
        first.write(2 * numbers)
    del batches
    (tmp_path / ".unfinished-of-a-killed-one").write_bytes(b"half")
    again = stretto.sdk.infer(DATA, output=tmp_path, batch_size=BATCH)
    made = 0
    for (numbers,) in again.batches():
        made += 1
        again.write(2 * numbers)
    assert (made, values(tmp_path)) == (PARTS - 5, DOUBLED)
    assert list(tmp_path.glob(".*")) == []


def test_results_are_small_although_they_are_cut_from_large_tensors(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path, 1, 1)
    assert results.claim(0)
    results.write(0, torch.zeros(1_000_000)[:1])
    assert (tmp_path / "part-000000000.pt").stat().st_size < 10_000


def refuse(**arguments: Any) -> Callable[[Path], Any]:
    return lambda folder: stretto.sdk.infer(
        **{"data": DATA, "output": folder, "batch_size": BATCH, **arguments}
    )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        pytest.param(refuse(batch_size=0), "batch_size must be >= 1, got 0", id="no batch"),
        pytest.param(refuse(data=DataLoader(DATA)), "got a DataLoader: give its dataset", id="a loader"),
        pytest.param(refuse(loader={"shuffle": True}), "must leave shuffle to", id="an order of its own"),
        pytest.param(
            refuse(batch_size=5), "50 items in batches of 4, got 50 in batches of 5", id="other parts"
        ),
        pytest.param(refuse(output="/proc/none"), "output /proc/none: cannot be written", id="no folder"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tmp_path: Path, made: Callable[[Path], Any], message: str
) -> None:
    ResultFolder(tmp_path, ITEMS, BATCH)
    with pytest.raises(InputError, match=message) as refused:
        made(tmp_path)
    assert "\n" not in str(refused.value)


def test_results_that_could_not_be_read_back_are_refused(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path, 1, 1)
    with pytest.raises(InputError, match=r"a result must be tensors, numbers and texts, .* got PosixPath"):
        results.write(0, {"where": [Path("/")]})
    assert not results.look()


def test_the_loop_is_one_write_for_each_batch(tmp_path: Path) -> None:
    job = stretto.sdk.infer(DATA, output=tmp_path, batch_size=BATCH)
    with pytest.raises(RuntimeError, match="write\\(\\) must be called once for each batch"):
        job.write(1)
    with pytest.raises(RuntimeError, match="write\\(\\) must be called once for each batch"):
        for _ in job.batches():
            pass


# ── claims of several processes ───────────────────────────────────────────────────────────────────


HOLDER = """
import sys, time
from pathlib import Path
from stretto.sdk.results import ResultFolder

results = ResultFolder(Path(sys.argv[1]), 50, 4)
print([results.claim(part) for part in (3, 4)], flush=True)
time.sleep(600)
"""


def test_a_part_belongs_to_one_process_until_that_is_killed(tmp_path: Path) -> None:
    ours = ResultFolder(tmp_path, ITEMS, BATCH)
    assert ours.claim(4)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[True, False]\n"
        assert not ours.claim(3)
        process.send_signal(signal.SIGKILL)
        process.wait(WITHIN_S)
    assert ours.claim(3)
    ours.write(3, 1)
    assert not ResultFolder(tmp_path, ITEMS, BATCH).claim(3)


# ── workers of a service ──────────────────────────────────────────────────────────────────────────


class Workers:
    """Processes that the conductor's service has started; the test says how many batches may go through."""

    def __init__(self, folder: Path, conductor: Conductor) -> None:
        self.folder, self.conductor = folder, conductor
        (folder / "worker.py").write_text(WORKER, encoding="utf-8")
        (folder / "begun").touch()
        self.let_through(0)

    def let_through(self, most: int) -> None:
        """Batches may be written until more than these have begun."""
        (self.folder / ".most").write_text(str(most), encoding="utf-8")
        (self.folder / ".most").replace(self.folder / "most")

    def start(self, *names: str) -> None:
        """Until they say that they are ready."""
        for name in names:
            command = [sys.executable, str(self.folder / "worker.py"), str(self.folder), name]
            self.conductor.start(name, command, {})
        self.conductor.wait_until(
            lambda: {*names} <= {*self.conductor.ready}, WITHIN_S, f"ready: {', '.join(names)}"
        )

    def publish(self, *names: str) -> None:
        """A generation that all of them have joined."""
        self.conductor.wait_joined(self.conductor.publish(names), WITHIN_S)

    def begun(self) -> list[tuple[str, int]]:
        """(worker, first item) of each batch that was begun, in their order."""
        lines = (self.folder / "begun").read_text(encoding="utf-8").splitlines()
        return [(name, int(number)) for name, number in (line.split() for line in lines)]

    def wait_begun(self, *names: str) -> None:
        """Until each of these has begun a batch."""
        self.conductor.wait_until(
            lambda: {*names} <= {name for name, _ in self.begun()}, WITHIN_S, f"batches of {', '.join(names)}"
        )

    def written(self) -> dict[str, int]:
        """When each result came into being."""
        return {path.name: path.stat().st_mtime_ns for path in (self.folder / "output").glob("part-*")}


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Conductor() as conductor:
        yield Workers(tmp_path, conductor)


@pytest.mark.slow
def test_workers_come_go_and_are_killed_and_each_item_has_one_result(workers: Workers) -> None:
    conductor = workers.conductor
    workers.start("a", "b")
    workers.publish("a", "b")
    workers.let_through(4)
    workers.wait_begun("a", "b")
    workers.start("c")
    workers.publish("a", "b", "c")  # grown
    workers.wait_begun("c")
    conductor.workers["c"].kill()  # its batch is left to others
    workers.publish("a")  # shrunk, to the one that is left
    workers.let_through(1000)
    assert conductor.wait_ended("b", WITHIN_S) == 0
    assert conductor.wait_ended("a", WITHIN_S) == 0
    assert values(workers.folder / "output") == DOUBLED
    begun = [number for _, number in workers.begun()]
    assert set(begun) == set(range(0, ITEMS, BATCH))
    assert len(begun) == PARTS + 1, "only what the killed one had begun is done anew"
    last = conductor.reports[-1]
    expected = {
        "step": PARTS,
        "samples": ITEMS,
        "dataset_samples": ITEMS,
        "init_batch": BATCH,
        "max_batch": BATCH,
    }
    assert expected.items() <= last.items()


@pytest.mark.slow
def test_one_that_is_told_to_leave_goes_within_its_grace_and_the_next_attempt_goes_on(
    workers: Workers,
) -> None:
    conductor = workers.conductor
    workers.let_through(4)
    workers.start("a", "b")
    workers.publish("a", "b")
    workers.wait_begun("a", "b")
    conductor.leave(until_s=60.0)
    workers.let_through(6)  # one more batch of each
    assert [conductor.wait_ended(name, WITHIN_S) for name in ("a", "b")] == [143, 143]
    kept = workers.written()
    assert 2 <= len(kept) < PARTS
    workers.let_through(1000)
    number = conductor.publish(["c"])  # before it begins: what was told to leave is another attempt
    workers.start("c")
    conductor.wait_joined(number, WITHIN_S)
    assert conductor.wait_ended("c", WITHIN_S) == 0
    assert values(workers.folder / "output") == DOUBLED
    assert kept.items() <= workers.written().items()


@pytest.mark.slow
def test_one_that_was_never_called_ends_well_once_it_is_not_wanted(workers: Workers) -> None:
    workers.start("a")
    workers.conductor.dismiss("a")
    assert workers.conductor.wait_ended("a", WITHIN_S) == 0
    assert not workers.begun()


@pytest.mark.slow
def test_workers_go_on_while_the_service_is_away(workers: Workers) -> None:
    workers.start("a")
    workers.publish("a")
    workers.conductor.is_away = True
    workers.let_through(1000)
    workers.conductor.wait_until(lambda: len(workers.written()) == PARTS, WITHIN_S, "all results")
    workers.conductor.is_away = False
    assert workers.conductor.wait_ended("a", WITHIN_S) == 0
    assert values(workers.folder / "output") == DOUBLED
