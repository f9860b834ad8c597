"""Jobs whose steps take what their model says, and the speeds that a service has measured of them."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.client import Client

SCRIPT = Path(__file__).parent / "pretending.py"


def submit(client: Client, model: str, gpus: int, most: int, **keys: Any) -> str:
    """A job that may train on one to `most` workers, and asks for `gpus`; with other keys of its file."""
    job = {
        "name": model,
        "model": model,
        "run": f"{sys.executable} {SCRIPT} {model}",
        "resources": {"accelerators": gpus},
        "elastic": {"min": 1, "max": most},
        "grace_period": "5s",
        "envs": {"OMP_NUM_THREADS": "1"},
        **keys,
    }
    return str(client.submit(json.dumps(job))["id"])


def measured(client: Client, name: str) -> list[int]:
    """Counts of workers on which it was measured."""
    return [entry["gpus"] for entry in measured_entries(client, name)]


def measured_entries(client: Client, name: str) -> list[dict[str, Any]]:
    """Entries of its table that were measured."""
    entries = client.describe(name)["speeds"]["entries"]
    return [entry for entry in entries if entry["source"] == "measured"]


def worth_of_third(client: Client, name: str) -> float:
    """What the third worker of a job has brought, in times of what its second did, as it was measured."""
    per_s = {entry["gpus"]: float(entry["per_s"]) for entry in measured_entries(client, name)}
    second = per_s[2] - per_s[1]
    return max(0.0, per_s[3] - per_s[2]) / second if second > 0 else 0.0


def gpus_given(actions: Sequence[Mapping[str, Any]], job: str) -> int:
    """GPUs that a decision gives to a job; 0 where it says nothing of it."""
    masks = [
        mask
        for each in actions
        if each["job"] == job
        for mask in (each["after"] or {"nodes": {}})["nodes"].values()
    ]
    return sum(int(mask).bit_count() for mask in masks)
