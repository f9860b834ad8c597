"""What the suite does not ask of a cluster is said, and is little."""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import pytest
from tests.conformance.conftest import WORLDS
from tests.conformance.table import Outcomes, table

pytestmark = [pytest.mark.processes, pytest.mark.large]

MOST_LACKING = {"local": 0, "ray": 10, "slurm": 1, "kubernetes": 1, "kubelets": 1}
COLUMNS = ("local", "ray", "slurm", "kubernetes", "kubelets")  # of the page's table


PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def names_of_tests(files: str = "test_*") -> Iterator[str]:
    """Names of all tests of this folder that a cluster could lack."""
    for path in sorted(Path(__file__).parent.glob(f"{files}.py")):
        module = importlib.import_module(f"tests.conformance.{path.stem}")
        found = {name: value for name, value in vars(module).items() if not inspect.isclass(value)}
        for value in vars(module).values():
            if inspect.isclass(value) and value.__name__.startswith("Test"):
                found |= dict(inspect.getmembers(value, inspect.isfunction))
        for name, value in found.items():
            asked = set(inspect.signature(value).parameters) if name.startswith("test_") else set()
            if asked & {"stage", "service", "world"}:
                yield name


def lacks_of(cluster: str) -> Mapping[str, str]:
    """Tests that a cluster does not have, with reasons; no cluster is begun."""
    module = importlib.import_module(f"tests.conformance.worlds.{cluster}")
    (world,) = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and value.__name__.endswith("World")
    ]
    assert is_dataclass(world)
    (field,) = [field for field in fields(world) if field.name == "lacks"]
    assert field.default_factory is not MISSING
    lacking: Mapping[str, str] = field.default_factory()
    return lacking


@pytest.mark.parametrize("name", WORLDS)
def test_what_a_cluster_lacks_is_a_test_with_a_reason_and_little(name: str) -> None:
    everything, lacks = set(names_of_tests()), lacks_of(name)
    assert set(lacks) <= everything
    assert all(len(why.split()) >= 4 for why in lacks.values())
    assert len(lacks) <= MOST_LACKING.get(name, len(everything) // 2)


def test_the_page_of_kubernetes_says_what_the_suite_asks_of_each_cluster() -> None:
    rows = re.findall(r"^\| .+? \| `(test_\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    with_tests = {
        path.stem for path in Path(__file__).parent.glob("test_*.py") if [*names_of_tests(path.stem)]
    }
    assert {file for file, _ in rows} == with_tests - {"test_scene", "test_two_hundred"}, "those are long"
    for file, cells in rows:
        for cluster, cell in zip(COLUMNS, cells.split(" | "), strict=True):
            lacking = len({*names_of_tests(file)} & {*lacks_of(cluster)})
            assert cell == (f"all but {lacking}" if lacking else "all"), (file, cluster)


def test_the_table_has_a_cell_for_every_test_and_cluster_and_says_what_was_skipped() -> None:
    outcomes = Outcomes()
    outcomes.add("test_lives", "test_a_worker_ends", "local", "passed")
    outcomes.add("test_lives", "test_a_worker_ends", "emulated", "skipped", "it is no process")
    outcomes.add("test_stops", "test_a_signal_ends_it", "local", "passed")
    outcomes.add("test_stops", "test_a_signal_ends_it", "local", "failed")
    assert list(table(outcomes, ["local", "emulated"])) == [
        "                       local    emulated",
        "",
        "test_lives",
        "a worker ends         passed     skipped",
        "",
        "test_stops",
        "a signal ends it      failed           .",
        "",
        "          passed           1           0",
        "          failed           1           0",
        "         skipped           0           1",
        "",
        "emulated: it is no process",
        "  skipped: a worker ends",
    ]
