"""Backends by their names, and their options from the command line and from --set."""

import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stretto.backends.options import Site, option
from stretto.backends.protocol import Backend
from stretto.cli.app import status_of
from stretto.model import InputError
from stretto.service.backend_registry import BACKENDS, backend_class, backend_names, backend_options


@dataclass(frozen=True)
class Elsewhere:
    """A backend of somebody else."""

    name: ClassVar[str] = "elsewhere"

    region: str = option("north", help="Where its machines are.")
    workers: int = option(2, at_least=1, at_most=8)

    async def open(self, site: Site) -> Backend:
        """It is never opened here."""
        raise InputError(f"{self.region} has no machines for {site.state.name}")


HERE = f"{__name__}:Elsewhere"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a backend that an installed package announces."""
    info = tmp_path / "elsewhere-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[stretto.backends]\nelsewhere = {HERE}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "elsewhere"


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_has_a_class_of_options_with_its_name_and_defaults(name: str) -> None:
    component = backend_class(name)
    assert component.name == name
    assert (component.__doc__ or "").endswith(".")
    assert all(each.metadata.get("cli", "").startswith(("--", "")) for each in fields(component))  # type: ignore[arg-type]
    if name != "emulated":  # of which a cluster must be named
        assert backend_options(name) == component()


def test_a_backend_of_an_installed_package_is_found_by_name(installed: str) -> None:
    assert backend_names() == (*BACKENDS, "elsewhere")
    assert backend_options(installed, settings={"workers": "3"}) == Elsewhere(workers=3)


def test_a_backend_is_named_by_module_and_class_too() -> None:
    assert backend_options(HERE, settings={"region": "south"}) == Elsewhere("south")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"workers": "0"}, "backend.workers must be >= 1 and <= 8, got 0"),
        ({"workers": "9"}, "backend.workers must be >= 1 and <= 8, got 9"),
        ({"workers": "many"}, "backend.workers must be a whole number, got 'many'"),
        ({"zone": "a"}, "unknown setting backend.zone"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_its_name(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as refused:
        backend_options(HERE, settings=settings)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "kubernets"], "--backend kubernets: expected one of local, emulated, ray, slurm"),
        (["--backend", "no.such.module:Thing"], "--backend no.such.module:Thing: cannot be imported"),
        (
            ["--backend", "stretto.model:Job"],
            "stretto.model:Job: expected a dataclass 'Job' with open",
        ),
        (["--address", "auto"], "--address: means something with --backend ray only"),
        (
            ["--grow", "no", "--backend", "slurm"],
            "--grow: means something with --backend ray or kubernetes only",
        ),
        (["--partition", "a"], "--partition: means something with --backend slurm only"),
        (
            ["--pass-env", "A", "--backend", "ray"],
            "--pass-env: means something with --backend local or slurm only",
        ),
        (["--slots", "2", "--backend", "slurm"], "--slots: means something with --backend local only"),
        (["--pace", "2"], "--pace: means something with --backend emulated only"),
        (["--backend", "emulated"], "--backend emulated: missing --cluster"),
        (["--backend", "emulated", "--cluster", "x", "--pace", "0"], "--pace 0: expected a number above 0"),
        (["--set", "backend.slots=0"], "backend.slots must be >= 1, got 0"),
        (["--set", "backend.gpus=1"], "unknown setting backend.gpus"),
        (["--slots", "2", "--set", "backend.slots=3"], "--set backend.slots: expected instead of --slots"),
        (["--set", "backends.slots=1"], "unknown space 'backends'"),
    ],
)
def test_what_does_not_fit_a_backend_is_one_line_and_status_2(
    words: list[str], said: str, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["serve", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert started == []


def test_settings_of_a_backend_reach_it_and_no_policy(started: list[Any], installed: str) -> None:
    words = ["--set", "backend.region=south", "--policy", "tiresias", "--set", "policy.round_s=5"]
    assert status_of(["serve", "--backend", installed, *words]) == 0
    assert started[0].backend == Elsewhere("south")
    assert started[0].settings == {"policy.round_s": "5"}


@pytest.mark.processes
def test_options_are_read_without_the_backends_themselves() -> None:
    program = (
        "import sys, stretto.cli.app\n"
        "heavy = {'httpx', 'ray', 'stretto.backends.protocol', 'stretto.service.eventlog'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
