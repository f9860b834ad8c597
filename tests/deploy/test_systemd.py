"""The unit of systemd: what it starts is a command of ours, and systemd takes it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stretto import defaults
from stretto.cli.app import status_of

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = FOLDER / "stretto.service"


def test_its_options_are_options_of_the_service(started: list[Any]) -> None:
    assert status_of(["serve", "--config", str(FOLDER / "service.yaml")]) == 0
    (config,) = started
    assert (config.policy, config.backend.name, config.port) == (defaults.POLICY, "local", 8700)
    assert "ExecStart=/opt/stretto/bin/stretto serve --config /etc/stretto/service.yaml\n" in UNIT.read_text()


def test_workers_outlive_a_restart_and_wrong_input_is_not_tried_again() -> None:
    settings = dict(
        line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#"
    )
    assert settings["KillMode"] == "process"
    assert settings["RestartPreventExitStatus"] == "2"


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    text = (
        UNIT.read_text()
        .replace("/opt/stretto/bin/stretto", "/bin/true")
        .replace("stretto\nGroup=stretto", "root")
    )
    (tmp_path / "stretto.service").write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "stretto.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in checked.stderr.splitlines() if "stretto.service" in line]
    assert (checked.returncode, ours) == (0, [])
