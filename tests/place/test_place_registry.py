"""Placers by name: those of this package, and one of another package."""

import sys
from pathlib import Path
from typing import Any

import pytest

from stretto.cli.app import status_of
from stretto.model import InputError
from stretto.place import PLACERS, Buddy, WholeNodes, load_placer
from stretto.place.registry import REGISTRY

OUTSIDE = """
from dataclasses import dataclass
from stretto.place import Consolidated
from stretto.settings import CheckedSettings, setting

PLACED = []

@dataclass(frozen=True)
class Patient(CheckedSettings, space="place"):
    patience: int = setting(1, at_least=1)

    def place(self, snapshot, shares):
        PLACED.append(self.patience)
        return Consolidated().place(snapshot, shares)

@dataclass(frozen=True)
class Idle:
    pass
"""
CLUSTER = "gpu_types:\n  gpu: {memory_gb: 16}\nnodes:\n  - {type: gpu, gpus: 4, count: 1}\n"
TRACE = "job_id,submitted_s,gpus,duration_s\na,0,4,100\nb,10,2,50\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as an installer leaves it: a package with two entry points, one of which is no placer."""
    (tmp_path / "patient_placer.py").write_text(OUTSIDE)
    info = tmp_path / "patient_placer-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patient-placer\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[stretto.placers]\npatient = patient_placer:Patient\nidle = patient_placer:Idle\n"
    )
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "trace.csv").write_text(TRACE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "patient_placer", raising=False)
    return tmp_path


def simulated(folder: Path, *more: str) -> int:
    world = ["--cluster", str(folder / "cluster.yaml"), "--trace", str(folder / "trace.csv")]
    return status_of(["simulate", *world, "--policy", "fifo", "--set", "place.rule=patient", *more])


def test_a_placer_of_an_installed_package_places_by_name(installed: Path) -> None:
    assert {*REGISTRY.names()} == {*PLACERS, "patient", "idle"}
    assert simulated(installed, "--set", "place.patience=3") == 0
    assert set(sys.modules["patient_placer"].PLACED) == {3}


def test_a_wrong_setting_of_it_is_one_line_and_status_2(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(installed, "--set", "place.patience=0") == 2
    assert capsys.readouterr().err == "stretto: place.patience must be >= 1, got 0\n"


def test_what_has_no_method_place_is_no_placer(installed: Path) -> None:
    with pytest.raises(InputError, match="'idle' is no placer: Idle has no place"):
        load_placer("idle")


@pytest.mark.parametrize("name", PLACERS)
def test_every_placer_can_be_had_by_name(name: str) -> None:
    assert load_placer(name) == REGISTRY.class_of(name)()


def test_settings_are_the_fields_of_a_placer() -> None:
    assert load_placer("whole-nodes", evict=False) == WholeNodes(evict=False)
    assert load_placer("buddy", migrate=False, split=True) == Buddy(migrate=False, split=True)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tetris", {}, "unknown placer 'tetris', expected one of .*buddy"),
        (
            "buddy",
            {"move": True},
            "unknown setting place.move, expected one of migrate, split",
        ),
        ("spread", {"evict": True}, "unknown setting place.evict, there are none"),
        ("whole-nodes", {"evict": "maybe"}, "place.evict must be true or false, got 'maybe'"),
    ],
)
def test_what_is_not_there_is_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_placer(name, **settings)
