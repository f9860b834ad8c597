"""A loop of any kind that reports and leaves."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stretto.sdk.adapters.loop import LoopCallback
from stretto.testing.conductor import Conductor

pytestmark = [pytest.mark.sockets, pytest.mark.torch]


@pytest.fixture(autouse=True)
def no_warning_only_once() -> Iterator[None]:
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def test_it_reports_and_computes_what_is_left_from_its_own_steps() -> None:
    with Conductor() as conductor:
        env = conductor.environment_of("j.1.0")
        callback = LoopCallback(total_steps=1000, local_batch=8, dataset_samples=80, report_s=0.0, env=env)
        for step in range(901, 941):  # resumed at 900
            callback.tell(epoch=step // 10)
            callback.on_step(step, loss=torch.tensor(0.5, requires_grad=True))
        callback.close(940, loss=0.25)
        conductor.wait_until(lambda: bool(conductor.reports), 20, "a report")
        last = conductor.reports[-1]
        assert (last["step"], last["loss"], last["epoch"], last["samples"]) == (940, 0.25, 94, 940 * 8)
        assert last["in_place"] is False
        assert 0 < last["left_s"] < 60  # 60 steps of far less than a second each
        [[nodes, gpus, local, accumulation, grad_s, step_s]] = last["points"]
        assert (nodes, gpus, local, accumulation) == (1, 1, 8, 1)
        assert grad_s == step_s > 0


def test_sigterm_is_answered_between_steps_with_status_143_and_a_checkpoint(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Conductor() as conductor:
        callback = LoopCallback(env=conductor.environment_of("j.1.0"))
        os.kill(os.getpid(), signal.SIGTERM)
        step = 0
        while not callback.should_leave():
            step += 1
            assert step < 10_000
            callback.on_step(step)
        with pytest.raises(SystemExit) as end:
            callback.leave(step, tmp_path / "it.pt")
        assert end.value.code == 143
        assert signal.getsignal(signal.SIGTERM) == before
        conductor.wait_until(lambda: bool(conductor.checkpoints), 20, "a checkpoint")
        [saved] = conductor.checkpoints
        assert (saved["step"], saved["path"]) == (step, str(tmp_path / "it.pt"))


def test_without_a_service_it_only_listens_to_sigterm() -> None:
    callback = LoopCallback(env={})
    callback.on_step(1, loss=1.0)
    assert not callback.should_leave()
    callback.close(1)
