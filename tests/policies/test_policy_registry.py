from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from stretto import components
from stretto.model import InputError
from stretto.policies import POLICIES, describe_policies, load_policy, policy_names
from stretto.policies.fifo import FirstInFirstOut

OWN_POLICY = '''
from dataclasses import dataclass
from stretto.policies.fifo import FirstInFirstOut

@dataclass(frozen=True)
class Mine(FirstInFirstOut):
    """My own idea.

    At length.
    """
    patience_s: float = 60.0
    name = "mine"
    paper = ""

@dataclass(frozen=True)
class Demanding:
    secret: int
    name = placer = "demanding"
    views = triggers = configurations = allocate = None

class NoDataclass: ...

@dataclass(frozen=True)
class NoPolicy:
    name: str = "x"
'''


@pytest.mark.parametrize("name", POLICIES)
def test_every_registered_policy_loads_with_its_defaults_under_its_own_name(name: str) -> None:
    assert load_policy(name).name == name


def test_an_unknown_policy_is_met_with_a_suggestion_and_the_list() -> None:
    with pytest.raises(
        InputError, match=r"unknown policy 'fiffo', did you mean 'fifo'\?; there are 3sigma, afs"
    ):
        load_policy("fiffo")


def test_settings_reach_the_policy() -> None:
    assert load_policy("fifo", skip="true") == FirstInFirstOut(skip=True)
    with pytest.raises(InputError, match=r"unknown setting policy\.skp, did you mean 'skip'"):
        load_policy("fifo", skp="true")


def test_a_policy_in_a_file_of_ones_own_runs_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN_POLICY)
    mine = load_policy(f"{path}:Mine", patience_s="5")
    assert (mine.name, getattr(mine, "patience_s", None)) == ("mine", 5.0)
    assert type(load_policy(f"{path}:Mine")) is type(mine)  # the same content is the same module
    path.write_text(
        OWN_POLICY.replace("60.0", "7.0")
    )  # bytecode of a file of the same size and second is kept
    assert getattr(load_policy(f"{path}:Mine"), "patience_s", None) == 7.0


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{file}:Nobody", "expected a dataclass 'Nobody' in"),
        ("{file}:NoDataclass", "expected a dataclass 'NoDataclass' in"),
        ("{file}:NoPolicy", "is no policy: NoPolicy has no views, placer, triggers"),
        ("{file}:Demanding", "has no default for policy.secret: it must be set"),
        ("{folder}/absent.py:Mine", "cannot be read: No such file"),
        ("no.such.module:Mine", "policy module 'no.such.module' cannot be imported"),
        ("stretto.policies.fifo:Nobody", "expected a dataclass 'Nobody' in stretto.policies.fifo"),
    ],
)
def test_a_target_that_is_no_policy_is_one_clear_line(target: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    with pytest.raises(InputError, match=message):
        load_policy(target.format(file=tmp_path / "mine.py", folder=tmp_path))


def test_a_module_and_class_need_no_registration() -> None:
    assert load_policy("stretto.policies.fifo:FirstInFirstOut") == FirstInFirstOut()


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package announces the policies `mine` and `fifo`."""
    (tmp_path / "announced_policy.py").write_text(OWN_POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint("broken", "absent_policy:Mine", "stretto.policies"),
        EntryPoint("mine", "announced_policy:Mine", "stretto.policies"),
        EntryPoint("fifo", "announced_policy:Mine", "stretto.policies"),
    ]
    found = {"stretto.policies": points}
    monkeypatch.setattr(components, "entry_points", lambda group: found[group])


@pytest.mark.usefixtures("announced")
def test_what_other_packages_announce_is_found_by_name_and_never_replaces_ours() -> None:
    assert "mine" in policy_names()
    assert load_policy("mine").name == "mine"
    assert load_policy("fifo").name == "fifo"
    rows = {row.name: row for row in describe_policies()}
    assert rows["mine"].summary == "My own idea."
    assert rows["fifo"].summary.startswith("Start jobs in the order")
    assert rows["broken"].summary.startswith("cannot be loaded: policy module 'absent_policy'")


def test_policies_are_described_by_what_they_declare() -> None:
    row = {row.name: row for row in describe_policies()}["gavel"]
    assert row.summary.startswith("Give each job the fractions of time")
    assert (row.views, row.triggers) == (("throughput_table",), ("round every 360 s",))
    assert (row.placer, row.paper) == ("relaxed", "Gavel (OSDI 2020)")
