"""Large tests: some run at a time, and those of one cluster or file in a row in one process.

Tests on a whole cluster, a service or a training mostly wait, each for what it asserts and not for a time. So
a few of them run beside each other. What some share starts once, as all that share it are in one process.
"""

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests of a conformance suite, with the cluster that they run over.
OVER_A_CLUSTER = re.compile(r"tests/conformance/.*\[(local|emulated|ray|slurm|kubernetes|kubelets)\b")
# Files, or folders of such, whose tests share what is started for a whole session.
SHARING = {
    "tests/backends/ray/": "ray",
    "tests/experiments/test_on_ray.py": "ray",
    "tests/backends/slurm/": "tests/backends/slurm/",
}


def row_of(name: str) -> str:
    """What a test shares with those that run in a row with it: a cluster, a folder, or its file."""
    if found := OVER_A_CLUSTER.match(name):
        return found[1]
    return next((row for path, row in SHARING.items() if name.startswith(path)), name.partition("::")[0])


class InRows(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process one row after another: that over Ray, which takes longest, then those of most tests."""

    def _split_scope(self, nodeid: str) -> str:
        """As pytest-xdist asks for it."""
        return row_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """As pytest-xdist asks for it, whenever a process has little left."""
        if "ray" in self.workqueue:
            self.workqueue.move_to_end("ray", last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InRows | None:
    """For large tests only."""
    return InRows(config, log) if config.getoption("--part") in ("large", "smoke") else None
