"""A recorded snapshot is enough: it decides the same in a fresh process."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.clusters import read_cluster
from stretto.experiments.log import decision
from stretto.model import Plan, Snapshot
from stretto.policies.registry import load_policy
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.traces import make_workload

pytestmark = pytest.mark.processes

DECIDE_AGAIN = """
import json, pickle, sys
from stretto.experiments.log import decision
from stretto.policies.registry import load_policy
from stretto.scheduler.round import decide
from stretto.sim.run import Setup, scheduler_of
from stretto.sim.settings import SimSettings
with open(sys.argv[2], "rb") as file:
    snapshots = pickle.load(file)
scheduler = scheduler_of(Setup(snapshots[0].cluster, load_policy(sys.argv[1]), SimSettings()))
print(json.dumps([decision(snapshot, decide(snapshot, scheduler)) for snapshot in snapshots]))
"""


@pytest.mark.parametrize("name", ["sia", "gavel", "tiresias", "pollux"])
def test_a_snapshot_taken_out_of_a_run_decides_the_same_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    """Estimates, memory and chance are in the snapshot: nothing that came before is needed."""
    workload = make_workload("synthetic-sia", jobs=8, hours=0.5, seed=1)
    policy = load_policy(name, **({"generations": 5} if name == "pollux" else {}))
    snapshots: list[Snapshot] = []
    decided: list[dict[str, object]] = []

    def keep(snapshot: Snapshot, plan: Plan) -> None:
        if len(decided) < 40:
            snapshots.append(snapshot)
            decided.append(decision(snapshot, plan))

    simulate(workload, Setup(read_cluster("sia-hetero-64"), policy, SimSettings()), record=keep)
    some = slice(1, None, 6)  # not in the order and company in which they were first decided
    path = tmp_path / "snapshots.pickle"
    path.write_bytes(pickle.dumps(list(reversed(snapshots[some]))))
    command = [
        sys.executable,
        "-c",
        DECIDE_AGAIN.replace("load_policy(sys.argv[1])", _loading(name)),
        name,
        str(path),
    ]
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(again) == json.loads(json.dumps(list(reversed(decided[some]))))
    assert any(one["actions"] for one in decided[some])


def _loading(name: str) -> str:
    return "load_policy(sys.argv[1], generations=5)" if name == "pollux" else "load_policy(sys.argv[1])"
