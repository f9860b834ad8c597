"""A real service, its agent and nvidia-ml-py, over a stand-in for NVIDIA's library: see `nvml_stand_in`."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.nvml_stand_in import say, stand_in
from tests.service.running import Running

from stretto.agent.node import LOCK_FOLDERS
from stretto.cli.app import status_of
from stretto.demo.own_service import until

pytestmark = pytest.mark.processes

RULE = ("--idle-below", "0.1", "--idle-after", "5s")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / secrets.token_hex(8)
    folder.mkdir()
    yield folder
    for locks in LOCK_FOLDERS:
        for path in locks.glob(f"gpu-GPU-{folder.name}-*.lock"):
            path.unlink()


@pytest.mark.slow
def test_who_holds_gpus_that_do_nothing_is_named_and_who_uses_them_is_not(
    machine: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Running(
        tmp_path, "--policy", "fifo", *RULE, "--pass-env", "STAND_IN_NVML", env=stand_in(machine)
    )
    say(machine, busy=0)
    try:
        service.begin()
        monkeypatch.setenv("STRETTO_URL", service.url)
        with service.client() as client:
            (node,) = client.nodes()
            assert (node["gpu_type"], node["gpus"]) == ("h100", 2)
            job = str(client.submit("run: sleep 600\nname: sleepy\n")["id"])
            until(lambda: client.idle_holders()["idle"], what="it is an idle holder")
            say(machine, busy=2, used_gb=7.5)
            until(lambda: client.describe(job)["gpu_memory_gb"] == 7.5, what="its memory is told")
            shown = client.describe(job)
            assert 0 <= shown["gpus_busy"] < 0.1
            assert shown["idle_s"] >= 5.0
            (node,) = client.nodes()
            assert [use and use["busy"] is not None for use in node["gpu_use"]] == [True, False]
            capsys.readouterr()
            assert status_of(["usage", "--idle"]) == 0
            header, row = (line.split("\t") for line in capsys.readouterr().out.splitlines())
            cells = dict(zip(header, row, strict=True))
            assert (cells["job"], cells["name"], cells["gpus"]) == (job, "sleepy", "1 x h100")
            assert (cells["memory"], cells["busy"][-1]) == ("7.5 GB", "%")
            for command in (["nodes"], ["top"]):
                assert status_of(command) == 0
                header, row, *_ = (line.split("\t") for line in capsys.readouterr().out.splitlines())
                assert dict(zip(header, row, strict=False))["busy"][-1] == "%"
            assert status_of(["describe", job]) == 0
            assert " % of the time, 7.5 of 80 GB in use" in capsys.readouterr().out
            say(machine, busy=95)
            until(lambda: not client.idle_holders()["idle"], what="it is none any more")
            client.change(job, "cancel")
            client.wait(job)
    finally:
        service.end()
