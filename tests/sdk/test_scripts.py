"""What scripts bring along and do in their loops, in one process."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stretto.sdk
from stretto.errors import InputError
from stretto.sdk import shutdown, state
from stretto.sdk.checkpoints import read_newest
from stretto.testing.conductor import Conductor

pytestmark = pytest.mark.torch

DATA = TensorDataset(torch.arange(96.0).reshape(48, 2), torch.arange(48))


@pytest.fixture(autouse=True)
def sigterm_means_what_it_did() -> Iterator[None]:
    yield  # trainings that were begun here and did not end would hear of it in later tests
    for each in [*shutdown.LISTENERS]:
        each.give_back()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))

    def __len__(self) -> int:
        return 5


class Locked:
    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}

    def load_state_dict(self, saved: object) -> None:
        """Never comes to it."""


class Wrapped(DistributedDataParallel):
    def __init__(self) -> None:
        nn.Module.__init__(self)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"data": DataLoader(DATA)}, "got a DataLoader: give its dataset", id="a loader"),
        pytest.param({"data": Stream()}, "by number, got Stream", id="a stream"),
        pytest.param({"loader": {"drop_last": True}}, "leave drop_last to elastic", id="not its own"),
        pytest.param({"extra_state": {"a": torch.zeros(3)}}, r"\['a'\] must have state_dict", id="a tensor"),
        pytest.param({"extra_state": {"it": Locked()}}, r"\['it'\] must have .* pickled", id="lock"),
        pytest.param({"model": nn.ReLU()}, "must have parameters, got ReLU", id="no parameters"),
        pytest.param({"model": Wrapped()}, "leave out DistributedDataParallel", id="a wrapped model"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_before_anything_begins(arguments: dict[str, Any], message: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"model": model, "optimizer": optimizer, "data": DATA, "batch_size": 8}
    with pytest.raises(InputError, match=message):
        stretto.sdk.elastic(**(given | arguments))


@pytest.mark.sockets
def test_a_second_training_or_a_group_of_the_script_is_refused_where_the_size_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Conductor() as conductor:
        for name, value in conductor.environment_of("j.1.0").items():
            monkeypatch.setenv(name, value)
        conductor.publish(["j.1.0"])
        job = a_job(nn.Linear(2, 1))
        assert [len(x) for _ in job.epochs(1) for x, _ in trained(job)] == [8] * 6
        with pytest.raises(InputError, match="called once"):
            a_job(nn.Linear(2, 1))
        monkeypatch.setenv("STRETTO_WORKER_ID", "j.1.1")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "0")
        dist.init_process_group("gloo", rank=0, world_size=1)
        try:
            with pytest.raises(InputError, match="leave out init_process_group"):
                a_job(nn.Linear(2, 1))
        finally:
            dist.destroy_process_group()


ENDS_EARLY = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import stretto.sdk
from stretto.sdk.training_group import TrainingGroup

TrainingGroup.exit_barrier = lambda group, occasion, wait: False  # the others do not come
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
job = stretto.sdk.elastic(model, optimizer, data=TensorDataset(torch.ones(48, 2)), batch_size=8)
for _ in job.epochs(2):
    for (x,) in job.batches():
        job.backward(job.model(x).square().mean())
        job.step()
        raise SystemExit(0)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_rank_that_ends_in_the_middle_of_an_epoch_without_the_others_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, check=True)
    said = "rank 0 ended after step 1, and others have not: all must after the same step"
    assert said in done.stderr


@pytest.mark.sockets
def test_processes_of_a_torchrun_within_a_worker_are_not_taken_for_that_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Conductor() as conductor:
        for name, value in conductor.environment_of("j.1.0").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("STRETTO_JOB_ID", "j")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # as torchrun says; the service says the job
        with pytest.raises(InputError, match="leave torchrun out"):
            a_job(nn.Linear(2, 1))


def a_job(model: nn.Module, **arguments: Any) -> stretto.sdk.ElasticJob:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    given: dict[str, Any] = {"optimizer": optimizer, "data": DATA, "batch_size": 8}
    return stretto.sdk.elastic(model, **(given | arguments))


def trained(job: stretto.sdk.ElasticJob) -> Iterator[Any]:
    """The batches of an epoch, each trained on."""
    for x, y in job.batches():
        job.backward(job.model(x).square().mean())
        job.step()
        yield x, y


def test_sparse_gradients_are_trained_without_being_measured() -> None:
    table = nn.EmbeddingBag(48, 3, sparse=True)
    before = table.weight.detach().clone()
    job = a_job(table)
    for _ in job.epochs(2):
        for _, rows in job.batches():
            job.backward(job.model(rows.reshape(-1, 1)).sum())
            job.step()
    assert job.steps == 12
    assert not torch.equal(before, table.weight)


@pytest.mark.sockets
@pytest.mark.parametrize("kind", [torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("passes", [1, 2])
def test_models_of_any_kind_of_number_are_measured(
    kind: torch.dtype, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Conductor() as conductor:
        for name, value in conductor.environment_of("j.1.0").items():
            monkeypatch.setenv(name, value)
        conductor.publish(["j.1.0"])
        job = a_job(nn.Linear(2, 1, dtype=kind), max_local_batch=8 // passes, report_s=0.0)
        for _ in job.epochs(8):
            for x, _ in job.batches():
                job.backward(job.model(x.to(kind)).abs().square().mean())
                job.step()
    assert job.steps == 48
    assert conductor.reports[-1]["grad_var"] > 0


def test_all_optimizers_step_after_one_backward_pass_and_go_into_checkpoints(tmp_path: Any) -> None:
    def begin() -> tuple[nn.Module, list[torch.optim.Optimizer], stretto.sdk.ElasticJob]:
        model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
        optimizers = [
            torch.optim.SGD(model[0].parameters(), lr=1e-4, momentum=0.9),
            torch.optim.Adam(model[1].parameters(), lr=1e-4),
        ]
        return (
            model,
            optimizers,
            a_job(model, optimizer=optimizers, checkpoint_dir=str(tmp_path), checkpoint_s=0),
        )

    model, optimizers, job = begin()
    before = [each.detach().clone() for each in model.parameters()]
    for _ in job.epochs(1):
        assert len(list(trained(job))) == 6
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    _, optimizers_too, resumed = begin()
    assert resumed.steps > 0
    pairs = zip(optimizers, optimizers_too, strict=True)
    assert all(
        each["state"].keys() == other["state"].keys()
        for each, other in ((a.state_dict(), b.state_dict()) for a, b in pairs)
    )


def test_extra_state_goes_into_checkpoints_under_the_name_that_the_argument_had_before(
    tmp_path: Path,
) -> None:
    average = nn.BatchNorm1d(2)
    with pytest.warns(DeprecationWarning, match="extra_state"):
        job = a_job(nn.Linear(2, 1), also={"mean": average}, checkpoint_dir=str(tmp_path), checkpoint_s=0)
    for _ in job.epochs(1):
        for _ in trained(job):
            average(torch.tensor([[0.0, 8.0], [2.0, 8.0]]))
    saved = read_newest(tmp_path)
    assert saved is not None
    assert [*saved["other"]["parts"]] == ["also-mean"]
    resumed = nn.BatchNorm1d(2)
    a_job(nn.Linear(2, 1), extra_state={"mean": resumed}, checkpoint_dir=str(tmp_path))
    assert resumed.running_mean is not None
    assert resumed.running_mean[1] > 1.0


def test_both_names_of_extra_state_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="one argument under two names"):
        a_job(nn.Linear(2, 1), also={}, extra_state={})


def test_gradients_that_a_script_sets_to_zero_between_passes_are_missed() -> None:
    model = nn.Linear(2, 1)
    job = a_job(model, max_local_batch=4)
    next(job.epochs(1))
    batches = job.batches()
    job.backward(job.model(next(batches)[0]).mean())
    job.step()
    model.zero_grad()
    loss = job.model(next(batches)[0]).mean()
    with pytest.raises(RuntimeError, match="leave zero_grad"):
        job.backward(loss)


def test_a_loop_left_before_its_step_evaluates_without_the_group_and_goes_on() -> None:
    job = a_job(nn.Linear(2, 1))
    for epoch in job.epochs(3):
        held = job.batches()  # a progress bar would hold it likewise
        for x, _ in held:
            loss = job.model(x).mean()
            if epoch == 1 and job.steps == 8:
                assert job.model.in_micro_batch
                break
            job.backward(loss)
            job.step()
        del held, x
        assert not job.model.in_micro_batch
        assert job.sum(of=2.0) == {"of": 2.0}
    assert job.steps == 6 + 2 + 6


def test_a_sum_is_refused_where_newcomers_would_be_alone_with_it() -> None:
    job = a_job(nn.Linear(2, 1))
    for _ in job.epochs(1):
        with pytest.raises(RuntimeError, match="must follow batches"):
            job.sum(right=1.0)
        list(trained(job))


def test_a_schedule_s_counter_is_one_after_it_has_travelled() -> None:
    tensors: list[torch.Tensor] = []
    tree = {"milestones": Counter({3: 1}), "row": [torch.ones(2)]}
    again = state.put_back(state.take_out(tree, tensors), tensors)
    assert type(again["milestones"]) is Counter
    assert again["milestones"] == Counter({3: 1})
    assert torch.equal(again["row"][0], torch.ones(2))
