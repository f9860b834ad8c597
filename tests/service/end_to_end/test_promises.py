"""Under UniSched a deadline is promised, or not, at once, and anew by what a real training reports."""

import json
import sys
from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running
from .learning import accuracy_after

pytestmark = [pytest.mark.processes, pytest.mark.alone]

SCRIPT = Path(__file__).parent / "learning.py"
OPTIONS = ("--slots", "1", "--gpu-type", "cpu", "--policy", "unisched")
SHORT = ("best_effort_lease_s=1", "deadline_lease_s=60", "profile_s=1")
REACHED_AFTER, ALLOWED = 1_000, 1_000_000  # epochs


def test_a_deadline_is_promised_once_the_reports_of_a_real_training_foresee_its_goal(tmp_path: Path) -> None:
    settings = (word for short in SHORT for word in ("--set", f"policy.{short}"))
    running = Running(tmp_path, *OPTIONS, *settings)
    running.begin()
    try:
        with running.client() as client:
            goal = {"metric": "accuracy", "target": accuracy_after(REACHED_AFTER), "max": ALLOWED}
            job = {
                "name": "learns",
                "run": f"{sys.executable} {SCRIPT}",
                "resources": {"accelerators": 1},
                "stop": goal,
                "expected_time": "90h",  # as its owner fears, who allows a million epochs
                "deadline": "4h",
                "preemptible": True,
                "grace_period": "1s",
                "envs": {"OMP_NUM_THREADS": "1"},
            }
            answer = client.submit(json.dumps(job))
            name = answer["id"]
            assert answer["outlook"]["promise"] == "no", "it would take longer than there is"
            assert answer["outlook"]["suspension"] == "assumed"
            until(lambda: client.describe(name)["outlook"]["promise"] == "yes", 240.0, "its goal is foreseen")
            shown = client.describe(name)
            assert 3 <= shown["progress"]["epoch"] < REACHED_AFTER, "long before it is there"
            assert shown["outlook"]["end_in_s"] <= shown["outlook"]["deadline_in_s"]
            until(
                lambda: client.describe(name)["outlook"]["lease_left_s"], what="a lease lasts until its end"
            )
            client.change(name, "cancel")
            until(lambda: client.describe(name)["ended_s"], what="it ends")
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
    finally:
        running.end()
