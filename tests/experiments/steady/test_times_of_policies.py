"""Each policy's decisions are measured in processes of their own, and ended where they take too long."""

import textwrap
from pathlib import Path

import pytest

from stretto.experiments.steady.policy_times import PolicyTimes, times_of_policies
from stretto.experiments.steady.world import Steady

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SMALL = Steady(jobs=64, gpus=128, rounds=7)
SLOW = """
    from dataclasses import dataclass
    from typing import ClassVar
    from stretto.policies.fifo import FirstInFirstOut

    @dataclass(frozen=True)
    class Slow(FirstInFirstOut):
        "Waits for its turn for ever where there are many jobs."

        name: ClassVar[str] = "slow"

        def allocate(self, snapshot, speeds):
            while len(snapshot.jobs) > {most}:
                pass
            if {breaks}:
                raise RuntimeError("no idea")
            return super().allocate(snapshot, speeds)
"""


def slow_policy(path: Path, most: int, breaks: bool = False) -> str:
    path.write_text(textwrap.dedent(SLOW).format(most=most, breaks=breaks))
    return f"{path}:Slow"


def test_a_policy_that_is_quick_enough_has_its_times() -> None:
    heard: list[PolicyTimes] = []
    rows = times_of_policies(SMALL, ["fifo", "srtf"], 60.0, heard.append)
    assert [row.policy for row in rows] == ["fifo", "srtf"]
    assert rows == heard
    for row in rows:
        assert (row.decisions, row.exceeds, row.most_jobs, row.error) == (2, False, None, "")
        assert row.p50_ms is not None
        assert row.max_ms is not None
        assert row.peak_mb is not None
        assert 0 < row.p50_ms <= row.max_ms
        assert row.peak_mb > 10


def test_a_decision_that_takes_too_long_is_ended_and_fewer_jobs_are_tried(tmp_path: Path) -> None:
    (row,) = times_of_policies(SMALL, [slow_policy(tmp_path / "slow.py", most=5)], 0.5)
    # The ladder of 64 jobs begins with 2 and 4; with 8 it never ends.
    assert (row.exceeds, row.most_jobs, row.p50_ms) == (True, 4, None)


def test_a_policy_that_breaks_off_says_why(tmp_path: Path) -> None:
    (row,) = times_of_policies(SMALL, [slow_policy(tmp_path / "slow.py", most=1_000, breaks=True)], 60.0)
    assert row == PolicyTimes(row.policy, error="RuntimeError: no idea")
