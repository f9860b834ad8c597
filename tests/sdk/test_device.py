"""Which device a worker trains on."""

import pytest
import torch

import stretto.sdk

pytestmark = pytest.mark.torch


def test_a_slot_for_processors_has_no_gpu_on_a_machine_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cpu = torch.device("cpu")
    env = {"STRETTO_GPU_TYPE": "cpu", "STRETTO_GPUS_PER_WORKER": "2"}
    assert (stretto.sdk.device(env), stretto.sdk.devices(env)) == (cpu, (cpu, cpu))


def test_another_worker_has_the_gpu_that_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    found = stretto.sdk.device({"STRETTO_GPU_TYPE": "h100", "LOCAL_RANK": "1"})
    assert chosen == [found] == [torch.device("cuda", 1)]
