"""What the suite does not ask of a cluster is said, and is little."""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.table import Outcomes, table
from tests.conformance.world import World

pytestmark = [pytest.mark.processes, pytest.mark.alone]

MOST_LACKING = {"local": 0, "ray": 1, "slurm": 1, "kubernetes": 1}


def names_of_tests() -> Iterator[str]:
    """Names of all tests of this folder that a cluster could lack."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.conformance.{path.stem}")
        found = {name: value for name, value in vars(module).items() if not inspect.isclass(value)}
        for value in vars(module).values():
            if inspect.isclass(value) and value.__name__.startswith("Test"):
                found |= dict(inspect.getmembers(value, inspect.isfunction))
        for name, value in found.items():
            asked = set(inspect.signature(value).parameters) if name.startswith("test_") else set()
            if asked & {"stage", "service", "world"}:
                yield name


def test_what_a_cluster_lacks_is_a_test_with_a_reason_and_little(cluster: World) -> None:
    everything = set(names_of_tests())
    assert set(cluster.lacks) <= everything
    assert all(len(why.split()) >= 4 for why in cluster.lacks.values())
    assert len(cluster.lacks) <= MOST_LACKING.get(cluster.name, len(everything) // 2)


def test_the_table_has_a_cell_for_every_test_and_cluster_and_says_what_was_skipped() -> None:
    outcomes = Outcomes()
    outcomes.add("test_lives", "test_a_worker_ends", "local", "passed")
    outcomes.add("test_lives", "test_a_worker_ends", "emulated", "skipped", "it is no process")
    outcomes.add("test_stops", "test_a_signal_ends_it", "local", "passed")
    outcomes.add("test_stops", "test_a_signal_ends_it", "local", "failed")
    assert list(table(outcomes, ["local", "emulated"])) == [
        "                    local emulated",
        "",
        "test_lives",
        "a worker ends      passed  skipped",
        "",
        "test_stops",
        "a signal ends it   failed        .",
        "",
        "          passed        1        0",
        "          failed        1        0",
        "         skipped        0        1",
        "",
        "emulated: it is no process",
        "  skipped: a worker ends",
    ]
