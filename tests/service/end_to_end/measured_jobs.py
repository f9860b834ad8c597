"""Jobs whose steps take what their model says, and the speeds that a service has measured of them."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.client import Client
from stretto.demo.own_service import until
from stretto.service.eventlog import Recorded

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


def measure_on_one_and_two(client: Client, names: Sequence[str], within_s: float) -> None:
    """Jobs that train on one worker are measured there and on two; then they may have one to four."""

    def are_measured(counts: list[int]) -> bool:
        return all(measured(client, name) == counts for name in names)

    until(lambda: are_measured([1]), within_s, "all are measured on one worker")
    for name in names:
        client.change(name, "scale", min_gpus=2, max_gpus=2)
    until(lambda: are_measured([1, 2]), within_s, "all are measured on two workers")
    for name in names:
        client.change(name, "scale", min_gpus=1, max_gpus=4)


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


def as_if_the_other_had_shown_it(
    flat: Sequence[str], linear: Sequence[str]
) -> Callable[[Recorded], Recorded]:
    """What makes of an event of a log one in which jobs of either model have reported steps of the other.

    On n workers a step of `flat` takes (1 + n) / 2 times as long as on one, a step of `linear` 1 / n times.
    """
    power = {**dict.fromkeys(flat, 1.0), **dict.fromkeys(linear, -1.0)}

    def changed(recorded: Recorded) -> Recorded:
        job = recorded.body.get("job")
        if recorded.kind != "Reported" or job not in power or not recorded.body["report"].get("points"):
            return recorded
        report = dict(recorded.body["report"])
        report["points"] = [
            [
                *point[:4],
                *(seconds * (2 / (point[1] * (1 + point[1]))) ** power[job] for seconds in point[4:]),
            ]
            for point in report["points"]
        ]
        return replace(recorded, body={**recorded.body, "report": report})

    return changed


def gpus_given(actions: Sequence[Mapping[str, Any]], job: str) -> int:
    """GPUs that a decision gives to a job; 0 where it says nothing of it."""
    masks = [
        mask
        for each in actions
        if each["job"] == job
        for mask in (each["after"] or {"nodes": {}})["nodes"].values()
    ]
    return sum(int(mask).bit_count() for mask in masks)
