"""Components are found by name here, in other packages, in modules and in files."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from stretto import components
from stretto.components import Registry
from stretto.model import InputError

FILE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Cup:
    size: int = 1
    def pour(self): ...
"""


@dataclass(frozen=True)
class Mug:
    """A component of this package."""

    size: int = 2

    def pour(self) -> None:
        """Do what a component must."""


CUPS = Registry("cup", {"mug": f"{__name__}:Mug"}, "test.cups", "cup", ("pour",))


@pytest.fixture(autouse=True)
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package announces `beaker`, and a `mug` that does not replace ours."""
    points = {
        "test.cups": [
            EntryPoint("beaker", f"{__name__}:Mug", "test.cups"),
            EntryPoint("mug", "absent:Mug", "test.cups"),
        ]
    }
    monkeypatch.setattr(components, "entry_points", lambda group: points[group])


def test_names_are_ours_and_those_of_other_packages() -> None:
    assert CUPS.names() == ("beaker", "mug")
    assert CUPS.load("mug") == CUPS.load("beaker") == Mug()


def test_settings_are_those_of_the_component() -> None:
    assert CUPS.load("beaker", size="5") == Mug(5)
    with pytest.raises(InputError, match=r"^unknown setting cup\.sise, did you mean 'size'\?$"):
        CUPS.load("mug", sise=1)


def test_a_class_in_a_file_needs_no_registration(tmp_path: Path) -> None:
    path = tmp_path / "cups.py"
    path.write_text(FILE)
    assert CUPS.load(f"{path}:Cup", size="3").size == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("muk", "unknown cup 'muk', did you mean 'mug'?; there are beaker, mug"),
        ("plate", "unknown cup 'plate', expected one of beaker, mug, and module:Class"),
        ("absent.py:Cup", "cup file absent.py cannot be read: No such file"),
        ("no.such:Cup", "cup module 'no.such' cannot be imported"),
        ("pathlib:Path", "cup 'pathlib:Path': expected a dataclass 'Path' in pathlib"),
        (
            "stretto.model:cluster",
            "cup 'stretto.model:cluster': expected a dataclass 'cluster' in stretto.model, did you mean",
        ),
        ("cups.py", "cup 'cups.py': expected its class behind it, cups.py:Class"),
        ("stretto.model:Cluster", "'stretto.model:Cluster' is no cup: Cluster has no pour"),
    ],
)
def test_a_name_without_a_component_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        CUPS.load(name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
